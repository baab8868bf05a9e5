//! Share of the outputs to come that is reserved for the requests that run.

use crate::sglang::config::SglangConfig;

/// Passes in which the ratio falls from its first value to its least.
const DECAY_PASSES: u32 = 600;

/// The reserved ratio: SGLang's `new_token_ratio`.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewTokenRatio {
    first: f64,
    least: f64,
    /// Its value before it decayed, and the passes since.
    from: f64,
    passes: u32,
}

impl NewTokenRatio {
    pub(super) fn new(config: &SglangConfig) -> Self {
        let first = 0.7 * config.schedule_conservativeness;
        Self { first, least: 0.14 * first, from: first, passes: 0 }
    }

    pub(super) fn value(self) -> f64 {
        if self.passes == 0 {
            return self.from;
        }
        let fallen = (self.first - self.least) * f64::from(self.passes) / f64::from(DECAY_PASSES);
        (self.from - fallen).max(self.least)
    }

    /// It falls for that many passes.
    pub(super) fn fall(&mut self, passes: u32) {
        self.passes = self.passes.saturating_add(passes);
    }

    /// Resets it to its first value.
    pub(super) fn restart(&mut self) {
        self.restart_at(self.first);
    }

    pub(super) fn restart_at(&mut self, ratio: f64) {
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
