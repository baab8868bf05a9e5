//! Routers: which engine of a pool takes a request.

pub use vcr_policy::routing::{Choice, EndedRequest, RoutePhase, RouteRequest, WorkerLoad};

/// Chooses among the running workers of one pool.
///
/// It may keep state between calls. Equal construction and equal calls must give equal answers.
pub trait Router: Send {
    /// Chooses one of `workers`, or refuses the request if that is allowed. `workers` is never empty and is ordered by
    /// worker.
    ///
    /// # Errors
    /// If the router cannot choose. It must not be called again.
    fn route(&mut self, query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError>;

    /// Number of requests that the router sends to other workers before its next request for the worker with
    /// index `worker`, whatever the requests contain, while the whole pool is up. None if
    /// that depends on the requests.
    fn requests_before(&self, _worker: u32) -> Option<u64> {
        None
    }

    /// Whether [`WorkerLoad::cached_prompt_blocks`] should be filled in.
    fn needs_overlap(&self) -> bool {
        false
    }

    /// Whether [`WorkerLoad::host_prompt_blocks`] and [`WorkerLoad::disk_prompt_blocks`] should be
    /// filled in. Only called if [`Router::needs_overlap`] returns true.
    fn needs_tiers(&self) -> bool {
        false
    }

    /// Whether [`Router::ended`] should be called.
    fn needs_ended(&self) -> bool {
        false
    }

    /// Reports the end of a request that this router has routed.
    fn ended(&mut self, _request: &EndedRequest) {}
}

/// The reason why a router could not choose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("router `{router}` failed: {reason}")]
pub struct RouteError {
    /// The router's name as the user knows it.
    pub router: String,
    /// The problem and what to do about it.
    pub reason: String,
}
