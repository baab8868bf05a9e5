//! Finds guests by reference.
