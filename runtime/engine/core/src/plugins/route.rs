//! Routers: the engine of a pool that takes a request.

pub use vcr_policy::routing::{Choice, EndedRequest, RoutePhase, RouteRequest, WorkerLoad};

/// Chooses among the workers of one pool that are up.
///
/// It may keep state between calls. Equal construction and equal calls must give equal answers.
pub trait Router: Send {
    /// Chooses one of `workers`, which is never empty and ordered by worker, or
    /// refuses the request, if that may be.
    ///
    /// # Errors
    /// When the router cannot choose. It must not be asked again.
    fn route(&mut self, query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError>;

    /// Number of requests that it will send to other workers before the next one for the worker at
    /// index `worker` in the pool, whatever their contents, while the whole pool is up. None if
    /// that depends on the requests.
    fn requests_before(&self, _worker: u32) -> Option<u64> {
        None
    }

    /// Whether [`WorkerLoad::cached_prompt_blocks`] should be filled in.
    fn needs_overlap(&self) -> bool {
        false
    }

    /// Whether [`WorkerLoad::host_prompt_blocks`] and [`WorkerLoad::disk_prompt_blocks`] should be
    /// filled in; only asked of a router that needs the overlap.
    fn needs_tiers(&self) -> bool {
        false
    }

    /// Whether [`Router::ended`] should be called.
    fn needs_ended(&self) -> bool {
        false
    }

    /// A request that this router has routed has ended.
    fn ended(&mut self, _request: &EndedRequest) {}
}

/// Why a router could not choose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("router `{router}` failed: {reason}")]
pub struct RouteError {
    /// The router's name as the user knows it.
    pub router: String,
    /// The problem and its remedy.
    pub reason: String,
}
