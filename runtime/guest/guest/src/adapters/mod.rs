//! Implements the core's plugin traits with guests: calls under limits, checked answers, and fallbacks.

pub(crate) mod fallback;
pub(crate) mod faults;
pub(crate) mod latency;
pub(crate) mod policy;
pub(crate) mod policy_fallback;
pub(crate) mod router;
pub(crate) mod running;
pub(crate) mod scaler;
pub(crate) mod tokens;
