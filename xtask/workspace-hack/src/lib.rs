//! Nothing: the manifest requests features of dependencies for all builds.
