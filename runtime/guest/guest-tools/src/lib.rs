//! Builds, creates and distributes guests.

pub mod build;
pub mod registry;
pub mod template;
