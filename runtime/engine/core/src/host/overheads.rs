//! Time that requests spend outside of engine steps.

use crate::latency::StepShape;

/// The largest launch spread, in thousandths: launches vary from 0 to twice their mean.
pub const PERMILLE: u32 = 1000;

const PS_PER_NS: u128 = 1000;

/// Times outside of engine steps. Before a request reaches a queue and after the step of a token, they delay
/// requests and tokens, and do not change the duration of steps. Only launch times change the duration of steps.
/// All times default to zero.
///
/// In a cluster, the first pool of a request defines the arrival cost, and the pool whose tokens clients see
/// defines the output cost. Each pool has its own launch cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overheads {
    /// Time from the client to the queue in front of the engines: network, API server, tokenizer.
    pub arrival_ns: u64,
    /// Additional arrival time for each prompt token, in picoseconds.
    pub arrival_per_prompt_token_ps: u64,
    /// Additional time of the first output token. The first token never reaches the client after the second one.
    pub first_token_ns: u64,
    /// Time from the end of a step to the client: detokenizer, API server, network. Answers without tokens,
    /// such as refusals, take it as well.
    pub output_ns: u64,
    /// Host time to launch a step with prefill chunks and at most [`GRAPH_TOKENS_MAX`] tokens in total.
    /// Under async scheduling, the host launches a step while the previous step computes, and detects the end of the
    /// previous step only after the launch. Otherwise, the step itself takes at least this long.
    pub prefill_launch_ns: u64,
    /// Host time to launch a step with more than [`GRAPH_TOKENS_MAX`] tokens, which has no CUDA graph.
    pub large_launch_ns: u64,
    /// Additional launch time for each request in a step with a launch time.
    pub launch_per_request_ns: u64,
    /// Maximum deviation of launch times from their mean, in thousandths of the mean. Launch times are distributed
    /// evenly. A step that takes as long as the mean launch is thus delayed by the longer
    /// launches.
    pub launch_spread_permille: u32,
}

/// The largest step, in tokens, that vLLM captures as a CUDA graph by default.
pub const GRAPH_TOKENS_MAX: u64 = 512;

impl Overheads {
    /// Time from the client to the queue, for a prompt of this length.
    #[must_use]
    pub fn arrival_of_ns(&self, prompt_tokens: u32) -> u64 {
        let tokens_ps = u128::from(self.arrival_per_prompt_token_ps) * u128::from(prompt_tokens);
        let tokens_ns = (tokens_ps + PS_PER_NS / 2) / PS_PER_NS;
        self.arrival_ns.saturating_add(u64::try_from(tokens_ns).unwrap_or(u64::MAX))
    }

    /// Time from the end of an answer's last step until the answer reaches the client.
    #[must_use]
    pub fn answer_ns(&self, output_tokens: u32) -> u64 {
        let first_ns = if output_tokens == 1 { self.first_token_ns } else { 0 };
        self.output_ns.saturating_add(first_ns)
    }

    /// Gap between the first two tokens at the client, if they are `gap_ns` apart at the engine.
    #[must_use]
    pub fn first_gap_ns(&self, gap_ns: u64) -> u64 {
        gap_ns.saturating_sub(self.first_token_ns)
    }

    /// Host time to launch a step with this shape; 0 if the launch never delays the step.
    pub(super) fn launch_ns(&self, shape: &StepShape) -> u64 {
        let step_ns = if shape.prefill_tokens.saturating_add(shape.decode_tokens) > GRAPH_TOKENS_MAX {
            self.large_launch_ns
        } else if shape.prefill_requests > 0 {
            self.prefill_launch_ns
        } else {
            return 0;
        };
        let requests = shape.prefill_requests.saturating_add(shape.decode_requests);
        step_ns.saturating_add(self.launch_per_request_ns.saturating_mul(requests))
    }

    /// The mean of the longer of two times: the GPU time, and a launch time with the mean `launches_ns`.
    #[must_use]
    pub fn longer_ns(&self, gpu_ns: u64, launches_ns: u64) -> u64 {
        let (gpu, launches) = (u128::from(gpu_ns), u128::from(launches_ns));
        let spread = launches * u128::from(self.launch_spread_permille.min(PERMILLE)) / u128::from(PERMILLE);
        let longest = launches + spread;
        if gpu + spread <= launches {
            return launches_ns;
        }
        if gpu >= longest {
            return gpu_ns;
        }
        let reach = longest - gpu;
        u64::try_from(gpu + reach * reach / (4 * spread)).unwrap_or(u64::MAX)
    }

    /// The same overheads, multiplied by `factor`. The spread is a ratio and stays the same.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let scaled = |time: u64| (time as f64 * factor) as u64;
        Self {
            arrival_ns: scaled(self.arrival_ns),
            arrival_per_prompt_token_ps: scaled(self.arrival_per_prompt_token_ps),
            first_token_ns: scaled(self.first_token_ns),
            output_ns: scaled(self.output_ns),
            prefill_launch_ns: scaled(self.prefill_launch_ns),
            large_launch_ns: scaled(self.large_launch_ns),
            launch_per_request_ns: scaled(self.launch_per_request_ns),
            launch_spread_permille: self.launch_spread_permille,
        }
    }

    /// Whether launches take any time.
    #[must_use]
    pub fn has_launches(&self) -> bool {
        [self.prefill_launch_ns, self.large_launch_ns, self.launch_per_request_ns].iter().any(|ns| *ns > 0)
    }

    /// Whether a request reaches the queue later than it arrives.
    #[must_use]
    pub fn delays_arrivals(&self) -> bool {
        self.arrival_ns > 0 || self.arrival_per_prompt_token_ps > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_of_two_is_their_maximum_where_they_are_far_apart() {
        let overheads = Overheads { launch_spread_permille: 500, ..Overheads::default() };
        let longer = |gpu_ns| overheads.longer_ns(gpu_ns, 100);
        assert_eq!([0, 50, 150, 400].map(longer), [100, 100, 150, 400]);
        // Launches take 50 to 150, compared with 100: the upper half takes 125 on average.
        assert_eq!(longer(100), 112);
        assert_eq!([0, 99, 100, 101].map(|gpu_ns| Overheads::default().longer_ns(gpu_ns, 100)), [100, 100, 100, 101]);
    }

    #[test]
    fn prompts_cost_by_the_token_rounded_once() {
        let overheads = Overheads { arrival_ns: 5, arrival_per_prompt_token_ps: 2_300, ..Overheads::default() };
        assert_eq!([0, 1, 10, 1_000_000].map(|tokens| overheads.arrival_of_ns(tokens)), [5, 7, 28, 2_300_005]);
        let endless = Overheads { arrival_per_prompt_token_ps: u64::MAX, ..overheads };
        assert_eq!(endless.arrival_of_ns(u32::MAX), u64::MAX);
    }
}
