//! What goes wrong on purpose.

mod active;
mod rule;

pub(crate) use active::{ArrivedRequest, Asked, Due, Faults};
pub use rule::{FaultKind, FaultRule, FaultRuleError, RequestMatch};
