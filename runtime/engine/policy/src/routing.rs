//! Requests and workers that routers receive, and the choice that they answer with.

use crate::scheduling::Slo;

/// A router's knowledge of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Index of the worker in its pool.
    pub worker: u32,
    /// Number of running requests.
    pub running_requests: u32,
    /// Number of requests that wait for admission or a transfer.
    pub waiting_requests: u32,
    /// Maximum number of running requests.
    pub max_running_requests: u32,
    /// Number of KV blocks that requests reference.
    pub active_blocks: u32,
    /// Total number of KV blocks.
    pub total_blocks: u32,
    /// Number of prompt tokens assigned to the worker and not yet computed.
    pub outstanding_prefill_tokens: u64,
    /// Number of first prompt blocks that are in the worker's prefix cache. 0
    /// for routers that do not request this field.
    pub cached_prompt_blocks: u32,
    /// Number of further prompt blocks that the worker would load from its host tier. 0 for routers that do not request
    /// this field.
    pub host_prompt_blocks: u32,
    /// Number of further prompt blocks that it would load from its disk. 0 for routers that do not request this field.
    pub disk_prompt_blocks: u32,
    /// Number of waiting requests whose KV is being transferred to the worker.
    pub loading_requests: u32,
    /// Duration of the worker's last finished step in nanoseconds; 0 before the first step.
    pub last_step_ns: u64,
    /// Number of preemptions since the worker's process started.
    pub preemption_count: u64,
}

/// The part of the request that the worker will compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoutePhase {
    /// The worker computes the prompt and generates the output.
    #[default]
    Whole,
    /// The worker computes the prompt; another pool generates the output.
    Prefill,
    /// The worker receives the prompt's KV from another pool and generates the output.
    Decode,
}

/// The request to be routed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteRequest<'a> {
    /// The time. It never decreases from call to call.
    pub now_ns: u64,
    /// Number of the request. If its engine crashes, the request may be routed again under the same number.
    pub id: u64,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Maximum number of output tokens.
    pub max_tokens: u32,
    /// The priority; lower is served sooner.
    pub priority: i32,
    /// The adapter, if any.
    pub adapter: Option<u32>,
    /// The tenant; 0 if unknown.
    pub tenant: u64,
    /// The session. All turns of a conversation have the same number.
    pub session: u64,
    /// Latency objectives.
    pub slo: Slo,
    /// Tokens per KV block in the pool.
    pub block_size_tokens: u32,
    /// The part of the request that the worker will compute.
    pub phase: RoutePhase,
    /// Whether the request may be refused, because no engine has had it before.
    pub may_refuse: bool,
    /// Hashes of the full blocks of the prompt, in order.
    pub block_hashes: &'a [u64],
}

/// A router's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The worker at this index in the given list.
    Worker(u32),
    /// No worker: all are too busy, and the request is refused.
    Refuse,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRequest {
    /// Number of the request.
    pub id: u64,
    /// Index in the pool of the worker that last had the request.
    pub worker: u32,
    /// Number of output tokens.
    pub output_tokens: u32,
    /// Whether the request failed, so that its answer is incomplete.
    pub failed: bool,
    /// Time from arrival to the first output token, if known.
    pub ttft_ns: Option<u64>,
}
