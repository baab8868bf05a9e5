//! Bindings generated from `wit/`, and their adapters to the guest traits. `shared` has the imports of all worlds.

pub mod faults;
pub mod latency;
pub mod routing;
pub mod scaling;
pub mod scheduling;
pub mod shared;
pub mod tokens;

use crate::slot::Slot;

/// A guest type whose static slot holds the guest.
pub trait Exported: Sized {
    /// The guest together with the state that it keeps between calls.
    type Kept: 'static;

    fn slot() -> &'static Slot<Self::Kept>;
}
