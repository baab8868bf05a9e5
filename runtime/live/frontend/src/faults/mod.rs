//! Faults that clients see: errors, stalls, broken streams, reset connections.

mod body;
mod caller;
mod error_body;
mod events;
mod injector;
mod kind;
mod layer;
mod rule;
mod short;
#[cfg(test)]
mod tests;

pub use axum::http::HeaderName;
pub use caller::Tenants;
pub use error_body::error_response;
pub use injector::ClientFaults;
pub use kind::FaultKind;
pub use layer::FaultLayer;
pub use rule::{ClientFault, CountedPer, FaultConditions};
pub use vcr_base::units::rule::RuleError;
