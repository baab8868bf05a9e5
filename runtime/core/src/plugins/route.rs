//! Routers: the engine of a pool that takes a request.

use crate::kv::hash::BlockHash;

/// A router's view of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Index of the worker in its pool.
    pub worker: u32,
    /// Requests in the running list.
    pub running_requests: u32,
    /// Requests waiting for admission or a transfer.
    pub waiting_requests: u32,
    /// Most requests that run at once.
    pub max_num_seqs: u32,
    /// KV blocks referenced by at least one request.
    pub active_blocks: u32,
    /// KV blocks in all.
    pub total_blocks: u32,
    /// Prompt tokens assigned to the worker and not yet computed.
    pub outstanding_prefill_tokens: u64,
    /// Leading prompt blocks of the request in the worker's prefix cache; 0
    /// unless [`Router::needs_overlap`].
    pub overlap_blocks: u32,
}

/// The part of the request that the worker will compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoutePhase {
    /// All of it.
    #[default]
    Whole,
    /// It computes the prompt; another pool generates the output.
    Prefill,
    /// It gets the prompt's KV from another pool and generates the output.
    Decode,
}

/// The request to be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteQuery<'a> {
    /// The time; never less than in the call before.
    pub now_ns: u64,
    /// Number of the request. One whose engine died may be routed again, under
    /// the same number.
    pub request: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Output tokens it may have.
    pub max_tokens: u32,
    /// Its priority; lower is sooner.
    pub priority: i32,
    /// The adapter it runs with, where it has one.
    pub lora: Option<u32>,
    /// Its tenant; 0 if unknown.
    pub tenant: u64,
    /// Its session: the turns of a conversation share the number.
    pub session: u64,
    /// Tokens per KV block in the pool.
    pub block_size_tokens: u32,
    /// The part of it that the worker will compute.
    pub phase: RoutePhase,
    /// Whether it may be refused: it has not been with an engine before.
    pub may_shed: bool,
    /// Hashes of the full blocks of its prompt, first to last.
    pub blocks: &'a [BlockHash],
}

/// A router's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The worker at this position among those that were shown.
    Worker(usize),
    /// None: all have too much to do, and the request is refused.
    Shed,
}

/// A request that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRequest {
    /// Its number.
    pub request: u64,
    /// Index in the pool of the worker that it was last routed to.
    pub worker: u32,
    /// Output tokens that it got.
    pub output_tokens: u32,
    /// Whether it failed, and was not answered to its end.
    pub failed: bool,
}

/// Chooses among the workers of one pool that are up.
///
/// It may keep state from call to call. Given the same construction and the
/// same calls it must answer the same.
pub trait Router: Send {
    /// Chooses one of `workers`, which is never empty and ordered by worker, or
    /// refuses the request, if that may be.
    ///
    /// # Errors
    /// When the router cannot choose. It must not be asked again.
    fn route(&mut self, query: &RouteQuery<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError>;

    /// Number of requests that it will send to other workers before one comes to the worker
    /// with index `worker` in the pool, whatever they are, as long as all of the pool
    /// are up. None where that depends.
    fn requests_before(&self, _worker: u32) -> Option<u64> {
        None
    }

    /// Whether [`WorkerLoad::overlap_blocks`] should be filled in.
    fn needs_overlap(&self) -> bool {
        false
    }

    /// Whether [`Router::ended`] should be called.
    fn needs_ended(&self) -> bool {
        false
    }

    /// A request is over that this router has routed.
    fn ended(&mut self, _request: &EndedRequest) {}
}

/// Why a router could not choose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("router `{router}` failed: {reason}")]
pub struct RouteError {
    /// The router's name as the user knows it.
    pub router: String,
    /// The problem, and what to do about it.
    pub reason: String,
}
