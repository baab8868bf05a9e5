//! Tables of our own, in the package's layout.
