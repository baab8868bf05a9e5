//! The router of engines whose requests are routed elsewhere.

use vcr_core::route::RouteError;

use super::{PoolRouter, RouteRequest, Routed};
use crate::fleet::Worker;

/// Stands before an engine that is simulated by itself, on a lane ([`crate::simulation`]). A request that
/// the engine loses is beyond its lane: the lane fails, and the run is repeated on one thread, whose
/// router can route it.
pub(super) struct Elsewhere;

impl PoolRouter for Elsewhere {
    fn route(&mut self, _request: &RouteRequest<'_>, _workers: &mut [Worker]) -> Result<Routed, RouteError> {
        Err(RouteError {
            router: "router".to_owned(),
            reason: "an engine that is simulated by itself routes nothing".to_owned(),
        })
    }
}
