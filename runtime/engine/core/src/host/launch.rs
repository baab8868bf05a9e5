//! The host time of a step: preparing and launching it.
//!
//! Under async scheduling, the host launches a step while the previous step computes, and only then checks whether the
//! previous step has ended (vLLM 0.26, `step_with_batch_queue` with an executor in the same
//! process). If the launch takes longer than the previous step, the outputs of that step are late by the difference.
//! During this time the launched step already computes.

use super::overheads::Overheads;
use crate::latency::StepShape;

/// Launch state of an engine whose launches take time.
#[derive(Clone, Copy, Debug)]
pub struct Launches {
    overheads: Overheads,
    is_async: bool,
    last_end_ns: u64,
    /// Whether the next step was launched during the last priced step.
    is_launched: bool,
    /// Time for which the next step has already computed at `last_end_ns`.
    ahead_ns: u64,
}

impl Launches {
    /// State for an engine with or without async scheduling. None if launches take no time.
    #[must_use]
    pub fn new(overheads: &Overheads, is_async: bool) -> Option<Self> {
        let host = Self { overheads: *overheads, is_async, last_end_ns: 0, is_launched: false, ahead_ns: 0 };
        overheads.has_launches().then_some(host)
    }

    /// Corrects the durations of consecutive steps. The first step has shape `shape` and starts at `now_ns`. The step
    /// after the last one, `next`, is already decided and is launched during the last step.
    pub fn pace(&mut self, shape: &StepShape, next: Option<&StepShape>, now_ns: u64, durations_ns: &mut [u64]) {
        let goes_on = self.is_async && self.is_launched && now_ns == self.last_end_ns;
        let own_launch_ns = if goes_on { 0 } else { self.overheads.launch_ns(shape) };
        let ahead_ns = if goes_on { self.ahead_ns } else { 0 };
        durations_ns[0] = durations_ns[0].saturating_sub(ahead_ns);
        let next_launch_ns = next.filter(|_| self.is_async).map_or(0, |next| self.overheads.launch_ns(next));
        let rest_ns = durations_ns[0];
        let launches_ns = if durations_ns.len() == 1 { own_launch_ns + next_launch_ns } else { own_launch_ns };
        durations_ns[0] = self.overheads.longer_ns(rest_ns, launches_ns);
        self.ahead_ns =
            if durations_ns.len() == 1 { durations_ns[0].saturating_sub(rest_ns.max(own_launch_ns)) } else { 0 };
        self.is_launched = next.is_some();
        self.last_end_ns = durations_ns.iter().fold(now_ns, |end_ns, duration_ns| end_ns.saturating_add(*duration_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODE: StepShape = StepShape { decode_requests: 4, decode_tokens: 4, ..SHAPE };
    const PREFILL: StepShape = StepShape { prefill_requests: 1, prefill_tokens: 100, ..SHAPE };
    const LARGE: StepShape = StepShape { prefill_requests: 1, prefill_tokens: 1000, ..SHAPE };
    const SHAPE: StepShape = StepShape {
        prefill_requests: 0,
        prefill_tokens: 0,
        prefill_context_tokens: 0,
        prefill_attention_pairs: 0,
        prefill_completions: 0,
        prefill_completion_context_tokens: 0,
        decode_requests: 0,
        decode_tokens: 0,
        decode_context_tokens: 0,
        sampled_requests: 0,
        kv_active_blocks: 0,
        kv_total_blocks: 0,
        block_size_tokens: 0,
        waiting_requests: 0,
        adapter_count: 0,
        adapter_tokens: 0,
        recompute: crate::latency::RecomputeShape {
            output_tokens: 0,
            promptless_chunks: 0,
            promptless_context_tokens: 0,
            completions: 0,
            completion_context_tokens: 0,
        },
        encoder: crate::latency::EncoderShape { items: 0, embeds: 0 },
    };

    fn host(is_async: bool) -> Launches {
        let overheads = Overheads { prefill_launch_ns: 12, large_launch_ns: 30, ..Overheads::default() };
        Launches { overheads, is_async, last_end_ns: 0, is_launched: false, ahead_ns: 0 }
    }

    /// The corrected durations of consecutive steps, given their prices.
    fn paced(host: &mut Launches, steps: &[(StepShape, u64)]) -> Vec<u64> {
        let mut now_ns = 0;
        let each = |(index, (shape, price_ns)): (usize, &(StepShape, u64))| {
            let mut durations_ns = [*price_ns];
            host.pace(shape, steps.get(index + 1).map(|(next, _)| next), now_ns, &mut durations_ns);
            now_ns += durations_ns[0];
            durations_ns[0]
        };
        steps.iter().enumerate().map(each).collect()
    }

    #[test]
    fn a_launch_that_is_longer_than_the_step_before_delays_its_end() {
        let steps = [(DECODE, 8), (LARGE, 22), (DECODE, 8), (PREFILL, 9), (DECODE, 8)];
        // When its launch ends, the large step has computed for 22 ns and is done.
        assert_eq!(paced(&mut host(true), &steps), [30, 0, 12, 5, 8]);
    }

    #[test]
    fn without_async_scheduling_a_step_takes_as_long_as_its_launch() {
        assert_eq!(paced(&mut host(false), &[(DECODE, 8), (LARGE, 22), (LARGE, 40), (PREFILL, 9)]), [8, 30, 40, 12]);
    }

    #[test]
    fn requests_of_a_step_with_a_launch_add_to_it() {
        let mut host = host(true);
        host.overheads.launch_per_request_ns = 2;
        // A launch with one prompt and no decodes: 30 + 2.
        assert_eq!(paced(&mut host, &[(DECODE, 8), (LARGE, 22), (DECODE, 8)]), [32, 0, 8]);
    }

    #[test]
    fn the_first_step_after_a_pause_is_launched_before_it_computes() {
        let mut host = host(true);
        let mut durations_ns = [9];
        host.pace(&PREFILL, None, 100, &mut durations_ns);
        assert_eq!(durations_ns, [12]);
        let mut durations_ns = [8, 8, 8];
        host.pace(&DECODE, Some(&DECODE), 500, &mut durations_ns);
        assert_eq!(durations_ns, [8; 3], "decodes in a row are not paced");
    }
}
