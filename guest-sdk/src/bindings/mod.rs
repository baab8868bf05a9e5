//! The component interfaces, generated from `wit/`, and their adapters to the traits of guests: a
//! module for each world, and one for the common imports.

pub mod faults;
pub mod latency;
pub mod routing;
pub mod scaling;
pub mod scheduling;
pub mod shared;
pub mod tokens;

use crate::slot::Slot;

/// A guest with a place for itself.
pub trait Exported: Sized {
    /// The guest and the state that its calls keep.
    type Kept: 'static;

    fn slot() -> &'static Slot<Self::Kept>;
}
