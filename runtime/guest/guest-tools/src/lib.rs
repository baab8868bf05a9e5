//! Building, creating and distributing guests.

pub mod build;
pub mod registry;
pub mod template;
