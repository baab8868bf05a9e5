//! The state of a pool that autoscalers receive.

/// Maximum number of engines that an external autoscaler may request. A larger number is
/// a mistake, such as a negative number in unsigned bits.
pub const DESIRED_ENGINES_MAX: u32 = 1_000_000;

/// What an autoscaler knows about its pool at a tick. All other events of the same time
/// have already happened.
///
/// Numbers of requests and tokens since the last tick are for the whole cluster, which receives the
/// offered load. Engines and their work are those of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolView {
    /// The time in nanoseconds.
    pub now_ns: u64,
    /// Number of engines that take requests.
    pub up_engines: u32,
    /// Number of starting engines, including restarts after a crash.
    pub starting_engines: u32,
    /// Number of engines that finish their requests and accept no more.
    pub draining_engines: u32,
    /// Number of requests that arrived since the last tick, so that load that piles up is visible.
    pub arrived_requests: u64,
    /// Number of prompt tokens of the arrived requests.
    pub arrived_prompt_tokens: u64,
    /// Number of requested output tokens of the arrived requests.
    pub arrived_output_tokens: u64,
    /// Number of requests that completed since the last tick.
    pub completed_requests: u64,
    /// Number of requests that got their first token since the last tick.
    pub ttft_count: u64,
    /// Sum of the TTFT of the requests in `ttft_count`, in nanoseconds.
    pub ttft_sum_ns: u128,
    /// Number of requests completed since the last tick whose time in the queue is known.
    pub queue_count: u64,
    /// Sum of the queue times of the requests in `queue_count`, in nanoseconds.
    pub queue_sum_ns: u128,
    /// Number of requests with an SLO that ended since the last tick, completely or not.
    pub slo_requests: u64,
    /// Number of the requests in `slo_requests` that met their SLO.
    pub slo_met_requests: u64,
    /// Number of gaps between consecutive output tokens that ended since the last tick.
    pub token_gap_count: u64,
    /// Sum of the gaps in `token_gap_count`, in nanoseconds.
    pub token_gap_sum_ns: u128,
    /// Number of requests that run in the pool's engines, including draining ones.
    pub running_requests: u64,
    /// Number of requests that wait in the pool's engines or in front of them.
    pub waiting_requests: u64,
    /// Number of KV blocks in use in the pool's engines.
    pub active_blocks: u64,
    /// Total number of KV blocks of the pool's engines.
    pub total_blocks: u64,
    /// Number of prompt tokens to compute, in the pool's engines and in front of them.
    pub outstanding_prefill_tokens: u64,
    /// Number of preemptions in the pool's engines since their processes started.
    pub preemption_count: u64,
    /// Price of one engine in US dollars per hour, if known.
    pub engine_usd_per_hour: Option<f64>,
}
