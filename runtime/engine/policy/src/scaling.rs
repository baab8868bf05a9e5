//! The state of a pool, as autoscalers see it.

/// The most engines that an autoscaler from outside is taken at its word for; more is
/// a mistake, such as a number below 0 in unsigned bits.
pub const DESIRED_ENGINES_MAX: u32 = 1_000_000;

/// An autoscaler's view of its pool at a tick. Everything else of the instant
/// has happened.
///
/// Counts of requests and tokens since the last tick are of the whole cluster, which receives the
/// offered load; engines and their work are those of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolView {
    /// The time, in nanoseconds.
    pub now_ns: u64,
    /// Engines that take requests.
    pub up_engines: u32,
    /// Starting engines, including restarts after a crash.
    pub starting_engines: u32,
    /// Engines that finish their requests and accept no more.
    pub draining_engines: u32,
    /// Requests that arrived since the last tick. They count when they arrive, not
    /// when they end: load that piles up is seen.
    pub arrived_requests: u64,
    /// Prompt tokens of these requests.
    pub arrived_prompt_tokens: u64,
    /// Requested output tokens of these requests.
    pub arrived_output_tokens: u64,
    /// Requests that ended with their whole output since the last tick.
    pub completed_requests: u64,
    /// Requests that had their first token since the last tick.
    pub ttft_count: u64,
    /// Sum of their times from arrival to that token, in nanoseconds.
    pub ttft_sum_ns: u128,
    /// Completed requests since the last tick whose time in the queue is known.
    pub queue_count: u64,
    /// Sum of their times from reaching the queue to their first step, in nanoseconds.
    pub queue_sum_ns: u128,
    /// Requests with an SLO that ended since the last tick, completed or not.
    pub slo_requests: u64,
    /// The part of these requests that met their SLO.
    pub slo_met_requests: u64,
    /// Gaps between consecutive output tokens that ended since the last tick.
    pub token_gap_count: u64,
    /// Their sum, in nanoseconds.
    pub token_gap_sum_ns: u128,
    /// Requests that run in the pool's engines, draining ones included.
    pub running_requests: u64,
    /// Requests that wait in these engines, or in front of them.
    pub waiting_requests: u64,
    /// KV blocks in use in these engines.
    pub active_blocks: u64,
    /// KV blocks that they have.
    pub total_blocks: u64,
    /// Prompt tokens still to compute, in these engines and in front of them.
    pub outstanding_prefill_tokens: u64,
    /// Preemptions in these engines since their processes started.
    pub preemption_count: u64,
    /// Price of one engine in US dollars for an hour, if it is known.
    pub engine_usd_per_hour: Option<f64>,
}
