//! Requests and workers, as routers see them, and the choice that they answer.

use crate::scheduling::Slo;

/// A router's view of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Index of the worker in its pool.
    pub worker: u32,
    /// Requests in the running list.
    pub running_requests: u32,
    /// Requests waiting for admission or a transfer.
    pub waiting_requests: u32,
    /// The most requests that run at once.
    pub max_running_requests: u32,
    /// KV blocks referenced by at least one request.
    pub active_blocks: u32,
    /// KV blocks in all.
    pub total_blocks: u32,
    /// Prompt tokens assigned to the worker and not yet computed.
    pub outstanding_prefill_tokens: u64,
    /// Leading prompt blocks of the request in the worker's prefix cache; 0
    /// for routers that do not ask for it.
    pub cached_prompt_blocks: u32,
    /// Further prompt blocks that it would load from its host; 0 for routers that do not request
    /// this field.
    pub host_prompt_blocks: u32,
    /// Blocks of the prompt beyond the cached ones that it would load from its disk; likewise.
    pub disk_prompt_blocks: u32,
    /// Waiting requests whose KV is being transferred to the worker.
    pub loading_requests: u32,
    /// Duration of the step that it finished last, in nanoseconds; 0 before the first.
    pub last_step_ns: u64,
    /// Preemptions since its process started.
    pub preemption_count: u64,
}

/// The part of the request that the worker will compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoutePhase {
    /// It computes the prompt and generates the output.
    #[default]
    Whole,
    /// It computes the prompt; another pool generates the output.
    Prefill,
    /// It receives the prompt's KV from another pool and generates the output.
    Decode,
}

/// The request to be routed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteRequest<'a> {
    /// The time; never less than in the call before.
    pub now_ns: u64,
    /// Number of the request. If its engine crashes, it may be routed again under the same number.
    pub id: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Output tokens it may have.
    pub max_tokens: u32,
    /// Its priority; lower is sooner.
    pub priority: i32,
    /// Its adapter, if it has one.
    pub adapter: Option<u32>,
    /// Its tenant; 0 if unknown.
    pub tenant: u64,
    /// Its session: the turns of a conversation share the number.
    pub session: u64,
    /// Its latency objectives.
    pub slo: Slo,
    /// Tokens per KV block in the pool.
    pub block_size_tokens: u32,
    /// The part of it that the worker will compute.
    pub phase: RoutePhase,
    /// Whether it may be refused: it has not been with an engine before.
    pub may_refuse: bool,
    /// Hashes of the full blocks of its prompt, first to last.
    pub block_hashes: &'a [u64],
}

/// A router's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The worker with this index in the request's list.
    Worker(u32),
    /// No worker: all have too much to do, and the request is refused.
    Refuse,
}

/// A finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRequest {
    /// Its number.
    pub id: u64,
    /// Index in the pool of the worker that it was last routed to.
    pub worker: u32,
    /// Output tokens that it got.
    pub output_tokens: u32,
    /// Whether it failed, and was not answered to its end.
    pub failed: bool,
    /// Time from its arrival to its first output token, if known.
    pub ttft_ns: Option<u64>,
}
