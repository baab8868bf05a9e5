//! Injected faults: rules of a user, and a guest that injects failures.

pub(crate) mod active;
pub(crate) mod injector;
pub(crate) mod rule;
