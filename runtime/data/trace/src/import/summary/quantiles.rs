//! Quantiles of samples. A sample may be the mean of several samples.

use std::collections::BTreeMap;

use crate::capture::StepRecord;
use serde::Serialize;
use serde_json::Value;
use vcr_base::percentile::percentile_rank;

/// A summary of samples, in the unit of the samples (nanoseconds for times).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantiles {
    /// Number of samples.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum.
    pub max: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    single: Vec<u64>,
    /// (Mean, number of samples with this mean).
    means: Vec<(u64, u64)>,
}

impl Samples {
    pub(crate) fn add(&mut self, sample: u64) {
        self.single.push(sample);
    }

    pub(crate) fn extend(&mut self, samples: &[u64]) {
        self.single.extend_from_slice(samples);
    }

    /// Adds `count` samples that are known only by their mean.
    pub(crate) fn add_mean(&mut self, mean: u64, count: u64) {
        if count > 0 {
            self.means.push((mean, count));
        }
    }

    pub(crate) fn append(&mut self, other: &Self) {
        self.single.extend_from_slice(&other.single);
        self.means.extend_from_slice(&other.means);
    }

    pub(crate) fn of_means(&self) -> u64 {
        self.means.iter().map(|(_, count)| count).sum()
    }

    /// Computes the quantiles; `None` without samples. They follow the rule of [`vcr_base::percentile`], like the
    /// reports of runs.
    pub(crate) fn quantiles(mut self) -> Option<Quantiles> {
        self.single.sort_unstable();
        self.means.sort_unstable();
        let count = self.single.len() as u64 + self.of_means();
        let sum = self.single.iter().map(|sample| u128::from(*sample)).sum::<u128>()
            + self.means.iter().map(|(mean, count)| u128::from(*mean) * u128::from(*count)).sum::<u128>();
        let max = self.single.last().max(self.means.last().map(|(mean, _)| mean)).copied()?;
        let at = |percent: f64| Some(self.ranked(percentile_rank(count, percent)? + 1));
        Some(Quantiles { count, mean: sum as f64 / count as f64, p50: at(50.0)?, p90: at(90.0)?, p99: at(99.0)?, max })
    }

    /// The sample with this rank, from 1. Both lists must be sorted.
    fn ranked(&self, rank: u64) -> u64 {
        let (mut singles, mut means) = (self.single.iter().peekable(), self.means.iter().peekable());
        if self.means.is_empty() {
            return self.single[(rank - 1) as usize];
        }
        let mut seen = 0;
        let mut last = 0;
        while seen < rank {
            match (singles.peek(), means.peek()) {
                (Some(single), mean) if mean.is_none_or(|(mean, _)| single <= &mean) => {
                    last = **single;
                    seen += 1;
                    singles.next();
                }
                (_, Some((mean, count))) => {
                    last = *mean;
                    seen += count;
                    means.next();
                }
                (_, None) => break,
            }
        }
        last
    }
}

/// A summary of the steps of a capture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepSummary {
    /// Number of step lines.
    pub count: u64,
    /// Time between the steps of an engine, by the engine's own clock if known.
    pub interval_ns: Option<Quantiles>,
    /// Number of tokens of a step.
    pub tokens: Option<Quantiles>,
    /// Number of requests with output in a step.
    pub outputs: Option<Quantiles>,
    /// Number of running requests, by the scheduler's statistics.
    pub running: Option<Quantiles>,
    /// Number of waiting requests, by the scheduler's statistics.
    pub waiting: Option<Quantiles>,
    /// Maximum share of the KV cache in use, from 0 to 1.
    pub max_kv_usage: Option<f64>,
}

pub(crate) fn scheduler_number(step: &StepRecord, field: &str) -> Option<f64> {
    step.scheduler.as_ref()?.get(field).and_then(Value::as_f64)
}

#[derive(Default)]
pub(super) struct StepTally {
    count: u64,
    interval_ns: Samples,
    tokens: Samples,
    outputs: Samples,
    running: Samples,
    waiting: Samples,
    max_kv_usage: Option<f64>,
    /// For each engine, the time of its latest step: (time of the message, time on the engine's clock).
    last: BTreeMap<u32, (u64, Option<u64>)>,
}

impl StepTally {
    pub(super) fn add(&mut self, step: &StepRecord) {
        self.count += 1;
        self.tokens.add(u64::from(step.tokens));
        self.outputs.add(u64::from(step.outputs));
        if let Some((at_ns, engine_ns)) = self.last.insert(step.rank, (step.at_ns, step.engine_ns)) {
            let (now, before) = step.engine_ns.zip(engine_ns).unwrap_or((step.at_ns, at_ns));
            self.interval_ns.add(now.saturating_sub(before));
        }
        let number = |field| scheduler_number(step, field);
        number("num_running_reqs").into_iter().for_each(|running| self.running.add(running as u64));
        number("num_waiting_reqs").into_iter().for_each(|waiting| self.waiting.add(waiting as u64));
        let usage = number("kv_cache_usage");
        self.max_kv_usage = match (self.max_kv_usage, usage) {
            (Some(most), Some(usage)) => Some(most.max(usage)),
            (most, usage) => most.or(usage),
        };
    }

    pub(super) fn finish(self) -> Option<StepSummary> {
        (self.count > 0).then(|| StepSummary {
            count: self.count,
            interval_ns: self.interval_ns.quantiles(),
            tokens: self.tokens.quantiles(),
            outputs: self.outputs.quantiles(),
            running: self.running.quantiles(),
            waiting: self.waiting.quantiles(),
            max_kv_usage: self.max_kv_usage,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_are_samples() {
        let mut samples = Samples::default();
        assert_eq!(samples.clone().quantiles(), None);
        samples.extend(&[30, 10, 20, 40]);
        let expected = Quantiles { count: 4, mean: 25.0, p50: 30, p90: 40, p99: 40, max: 40 };
        assert_eq!(samples.quantiles(), Some(expected));
    }

    proptest! {
        /// The mean of one sample counts like the sample itself.
        #[test]
        fn means_weigh_what_they_stand_for(all in prop::collection::vec((0u64..50, 1u64..5), 1..20)) {
            let (mut single, mut means) = (Samples::default(), Samples::default());
            for (index, (sample, count)) in all.iter().enumerate() {
                single.extend(&vec![*sample; *count as usize]);
                if index % 2 == 0 {
                    means.add_mean(*sample, *count);
                } else {
                    means.extend(&vec![*sample; *count as usize]);
                }
            }
            prop_assert_eq!(single.quantiles(), means.quantiles());
        }
    }
}
