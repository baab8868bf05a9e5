//! Guests as the core's plugins: calls with limits and checked answers, and the
//! fallbacks of guests that fail.

pub(crate) mod fallback;
pub(crate) mod faults;
pub(crate) mod latency;
pub(crate) mod policy;
pub(crate) mod policy_fallback;
pub(crate) mod router;
pub(crate) mod running;
pub(crate) mod scaler;
pub(crate) mod tokens;
