//! Cargo uses build dependencies only if there is a build script.

fn main() {}
