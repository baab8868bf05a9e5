//! Injected faults: rules of users, and guests that inject failures.

pub(crate) mod active;
pub(crate) mod injector;
pub(crate) mod rule;
