//! Reserves a fraction of the running requests' future outputs.

use crate::request::{Flags, Request};
use crate::sglang::config::SglangConfig;

/// Number of passes in which the share falls from its first value to its minimum.
const DECAY_PASSES: u32 = 600;

#[derive(Debug)]
pub(super) struct OutputReserve {
    /// Remaining output tokens of all running requests, each clipped to `clip_tokens`.
    tokens: u64,
    /// The fraction of `tokens` that is reserved.
    ratio: NewTokenRatio,
    /// Maximum number of tokens that count for one request.
    clip_tokens: u32,
}

impl OutputReserve {
    pub(super) fn new(config: &SglangConfig) -> Self {
        Self { tokens: 0, ratio: NewTokenRatio::new(config), clip_tokens: config.clip_max_new_tokens() }
    }

    pub(super) fn reserved_tokens(&self) -> f64 {
        self.tokens as f64 * self.ratio.value()
    }

    /// Number of a request's remaining output tokens, clipped to `clip_tokens`.
    #[inline]
    pub(super) fn of(&self, request: &Request) -> u32 {
        (request.end_tokens - request.num_tokens).min(self.clip_tokens)
    }

    /// Starts to count a request that starts to run.
    pub(super) fn begin(&mut self, request: &mut Request) {
        debug_assert!(!request.flags.has(Flags::RESERVES));
        request.flags.set(Flags::RESERVES, true);
        self.tokens += u64::from(self.of(request));
    }

    pub(super) fn end(&mut self, request: &mut Request) {
        if request.flags.has(Flags::RESERVES) {
            request.flags.set(Flags::RESERVES, false);
            self.tokens -= u64::from(self.of(request));
        }
    }

    /// Updates the count after a request has generated more tokens. Until now, `before_tokens` were counted for it.
    #[inline]
    pub(super) fn recount(&mut self, before_tokens: u32, request: &Request) {
        self.tokens -= u64::from(before_tokens - self.of(request));
    }

    /// Updates the count after one token of a request that had `left_tokens` left.
    #[inline]
    pub(super) fn count_one(&mut self, left_tokens: u32) {
        self.tokens -= u64::from(left_tokens <= self.clip_tokens);
    }

    pub(super) fn fall(&mut self, passes: u32) {
        self.ratio.fall(passes);
    }

    pub(super) fn restart(&mut self) {
        self.ratio.restart();
    }

    pub(super) fn restart_at(&mut self, ratio: f64) {
        self.ratio.restart_at(ratio);
    }
}

#[derive(Clone, Copy, Debug)]
struct NewTokenRatio {
    first: f64,
    least: f64,
    /// Value at the start of the decline. `passes` counts the passes since then.
    from: f64,
    passes: u32,
}

impl NewTokenRatio {
    fn new(config: &SglangConfig) -> Self {
        let first = 0.7 * config.schedule_conservativeness();
        Self { first, least: 0.14 * first, from: first, passes: 0 }
    }

    fn value(self) -> f64 {
        if self.passes == 0 {
            return self.from;
        }
        let fallen = (self.first - self.least) * f64::from(self.passes) / f64::from(DECAY_PASSES);
        (self.from - fallen).max(self.least)
    }

    fn fall(&mut self, passes: u32) {
        self.passes = self.passes.saturating_add(passes);
    }

    fn restart(&mut self) {
        self.restart_at(self.first);
    }

    fn restart_at(&mut self, ratio: f64) {
        self.from = ratio;
        self.passes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sglang::config::SglangConfigInput;

    #[test]
    fn the_share_falls_to_its_least_and_no_further() {
        let config = SglangConfig::new(SglangConfigInput::default()).unwrap();
        let mut ratio = NewTokenRatio::new(&config);
        assert_eq!(ratio.value(), 0.7);
        ratio.fall(300);
        assert!((ratio.value() - 0.399).abs() < 1e-12);
        ratio.fall(300);
        let least = ratio.value();
        assert!((least - 0.098).abs() < 1e-12);
        ratio.fall(u32::MAX);
        assert_eq!(ratio.value(), least);
    }

    #[test]
    fn an_estimate_below_the_least_holds_for_one_pass() {
        let config = SglangConfig::new(SglangConfigInput::default()).unwrap();
        let mut ratio = NewTokenRatio::new(&config);
        ratio.restart_at(0.01);
        assert_eq!(ratio.value(), 0.01);
        ratio.fall(1);
        assert!((ratio.value() - 0.098).abs() < 1e-12);
        ratio.restart();
        assert_eq!(ratio.value(), 0.7);
    }
}
