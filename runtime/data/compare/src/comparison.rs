//! Compares one side with the other: statistics, distributions and single requests.

use serde::Serialize;

use crate::bootstrap::{Interval, intervals};
use crate::distance::{ks, wasserstein};
use crate::gate::Subject;
use crate::join::{Identity, MatchRule, join};
use crate::metric::{Metric, Statistic};
use crate::pairs::{Pairs, relative_error};
use crate::request::{Request, Requests};

const LISTED: [Statistic; 5] = [Statistic::Mean, Statistic::P50, Statistic::P90, Statistic::P95, Statistic::P99];

/// Maximum number of pairs drawn for the intervals of one metric, if the caller sets no number of resamples and
/// 100 resamples do not need more.
const MAX_DRAWN: usize = 20_000_000;

/// Options of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompareOptions {
    /// Number of resamples for intervals; 0 switches intervals off. `None` means 1,000, or fewer (at least 100) if
    /// there are more than 20,000 requests.
    pub resamples: Option<usize>,
    /// Seed of the resamples.
    pub seed: u64,
}

impl Default for CompareOptions {
    fn default() -> Self {
        Self { resamples: None, seed: 1 }
    }
}

/// The reason why two sides cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// A side has no requests.
    #[error("{0} has no requests")]
    Empty(String),
    /// The two sides have no request in common.
    #[error("{compared} and {reference} have no request in common: they were matched by {}", .rule.text())]
    NothingInCommon {
        /// The side that is compared.
        compared: String,
        /// The reference.
        reference: String,
        /// The rule.
        rule: MatchRule,
    },
    /// No common request has a complete answer on both sides.
    #[error("no request was answered whole in both {0} and {1}")]
    NothingWhole(String, String),
    /// No metric is known on both sides.
    #[error("{0} has no times to compare: expected times of tokens or ends of requests")]
    NoTimes(String),
}

/// One statistic of both sides, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The statistic.
    pub statistic: Statistic,
    /// The value of the reference.
    pub reference_ms: f64,
    /// The value of the compared side.
    pub compared_ms: f64,
    /// The relative error; negative if the compared side is lower.
    pub error: f64,
    /// The confidence interval of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_interval: Option<Interval>,
}

/// The comparison of one metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetricComparison {
    /// The metric.
    pub metric: Metric,
    /// Number of compared requests in which the metric is known on both sides.
    pub requests: u64,
    /// Statistics of both sides.
    pub statistics: Vec<Estimate>,
    /// Mean of the absolute relative errors of single requests (MAPE).
    pub mape: f64,
    /// Pearson's correlation over single requests; None if a side does not vary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pearson: Option<f64>,
    /// Kolmogorov-Smirnov statistic.
    pub ks: f64,
    /// The confidence interval of the Kolmogorov-Smirnov statistic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ks_interval: Option<Interval>,
    /// Wasserstein distance.
    pub wasserstein_ms: f64,
    /// The confidence interval of the Wasserstein distance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wasserstein_interval_ms: Option<Interval>,
    #[serde(skip)]
    pairs: Pairs,
}

/// Throughputs: output tokens of complete answers, divided by the time from the first arrival to the last token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ThroughputComparison {
    /// The throughput of the reference.
    pub reference_tokens_per_s: f64,
    /// The throughput of the compared side.
    pub compared_tokens_per_s: f64,
}

/// The comparison of a side with the reference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Name of the side that is compared.
    pub compared: String,
    /// Name of the reference.
    pub reference: String,
    /// The rule that matched the requests.
    pub rule: MatchRule,
    /// Number of requests that both sides have.
    pub matched: u64,
    /// Number of matched requests whose answers are complete on both sides. Only these are compared.
    pub whole: u64,
    /// Number of compared requests whose prompts or answers differ in length.
    pub other_lengths: u64,
    /// Number of requests that only the compared side has.
    pub only_compared: u64,
    /// Number of requests that only the reference has.
    pub only_reference: u64,
    /// Metrics that are known on both sides.
    pub metrics: Vec<MetricComparison>,
    /// Throughputs; None unless they are known for both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput: Option<ThroughputComparison>,
}

/// Compares a side with a reference. Each is passed with its name.
///
/// # Errors
/// If there is nothing to compare.
pub fn compare(
    (compared_name, compared): (&str, &Requests),
    (reference_name, reference): (&str, &Requests),
    options: CompareOptions,
) -> Result<Compared, CompareError> {
    for (name, side) in [(compared_name, compared), (reference_name, reference)] {
        if side.all().is_empty() {
            return Err(CompareError::Empty(name.to_owned()));
        }
    }
    let identities =
        |side: &Requests| side.all().iter().map(|request| request.identity.clone()).collect::<Vec<Identity>>();
    let joined = join(&identities(compared), &identities(reference), compared.has_hashes_of(reference));
    if joined.pairs.is_empty() {
        return Err(CompareError::NothingInCommon {
            compared: compared_name.to_owned(),
            reference: reference_name.to_owned(),
            rule: joined.rule,
        });
    }
    let both: Vec<(&Request, &Request)> = joined
        .pairs
        .iter()
        .map(|(left, right)| (&compared.all()[*left], &reference.all()[*right]))
        .filter(|(left, right)| left.is_whole && right.is_whole)
        .collect();
    if both.is_empty() {
        return Err(CompareError::NothingWhole(compared_name.to_owned(), reference_name.to_owned()));
    }
    let lengths = |request: &Request| (request.prompt_tokens, request.output_tokens);
    let other_lengths = both.iter().filter(|(left, right)| lengths(left) != lengths(right)).count() as u64;
    let metrics: Vec<MetricComparison> =
        Metric::ALL.into_iter().filter_map(|metric| of_metric(metric, &both, options)).collect();
    if metrics.is_empty() {
        let has_times = |side: &Requests| {
            side.all().iter().any(|request| Metric::ALL.iter().any(|metric| request.time_ns(*metric).is_some()))
        };
        let without = if has_times(reference) { compared_name } else { reference_name };
        return Err(CompareError::NoTimes(without.to_owned()));
    }
    let throughput = compared.tokens_per_s().zip(reference.tokens_per_s());
    Ok(Compared {
        compared: compared_name.to_owned(),
        reference: reference_name.to_owned(),
        rule: joined.rule,
        matched: joined.pairs.len() as u64,
        whole: both.len() as u64,
        other_lengths,
        only_compared: joined.only_left,
        only_reference: joined.only_right,
        metrics,
        throughput: throughput.map(|(compared_tokens_per_s, reference_tokens_per_s)| ThroughputComparison {
            reference_tokens_per_s,
            compared_tokens_per_s,
        }),
    })
}

fn of_metric(metric: Metric, both: &[(&Request, &Request)], options: CompareOptions) -> Option<MetricComparison> {
    let times = |(compared, reference): &(&Request, &Request)| {
        Some((reference.time_ns(metric)? / 1e6, compared.time_ns(metric)? / 1e6))
    };
    let in_ms: Vec<(f64, f64)> = both.iter().filter_map(times).collect();
    if in_ms.is_empty() {
        return None;
    }
    let resamples = options.resamples.unwrap_or((MAX_DRAWN / in_ms.len()).clamp(100, 1000));
    let intervals = intervals(&in_ms, &LISTED, resamples, options.seed, metric.name());
    let (reference, compared): (Vec<f64>, Vec<f64>) = in_ms.iter().copied().unzip();
    let estimate = |(index, statistic): (usize, Statistic)| {
        let (reference_ms, compared_ms) = (statistic.of(reference.clone()), statistic.of(compared.clone()));
        let error = relative_error(reference_ms, compared_ms);
        let error_interval = intervals.as_ref().map(|intervals| intervals.errors[index]);
        Estimate { statistic, reference_ms, compared_ms, error, error_interval }
    };
    let pairs = Pairs { metric, pairs: in_ms.iter().map(|(left, right)| (left * 1e6, right * 1e6)).collect() };
    Some(MetricComparison {
        metric,
        requests: in_ms.len() as u64,
        statistics: LISTED.into_iter().enumerate().map(estimate).collect(),
        mape: pairs.mape(),
        pearson: pairs.pearson(),
        ks: ks(&reference, &compared),
        ks_interval: intervals.as_ref().map(|intervals| intervals.ks),
        wasserstein_ms: wasserstein(&reference, &compared).unwrap_or(0.0),
        wasserstein_interval_ms: intervals.as_ref().map(|intervals| intervals.wasserstein_ms),
        pairs,
    })
}

impl MetricComparison {
    fn mean_ms(&self) -> f64 {
        self.statistics.first().map_or(0.0, |mean| mean.reference_ms)
    }
}

impl Compared {
    fn metric(&self, metric: Metric) -> Option<&MetricComparison> {
        self.metrics.iter().find(|each| each.metric == metric)
    }

    /// Returns the value that a gate limits, without the sign of an error. None if the value is not known on both
    /// sides.
    #[must_use]
    pub fn value(&self, subject: Subject) -> Option<f64> {
        let value = self.signed_value(subject)?;
        Some(if matches!(subject, Subject::Pearson(_)) { value } else { value.abs() })
    }

    /// Returns a statistic in milliseconds: the reference's value and the compared side's value.
    #[must_use]
    pub fn sides_ms(&self, metric: Metric, statistic: Statistic) -> Option<(f64, f64)> {
        let found = self.metric(metric)?.pairs.compare(statistic);
        Some((found.measured_ms, found.simulated_ms))
    }

    /// Returns the value that a gate limits. An error is negative if the compared side is lower.
    #[must_use]
    pub fn signed_value(&self, subject: Subject) -> Option<f64> {
        match subject {
            Subject::Statistic(metric, statistic) => Some(self.metric(metric)?.pairs.compare(statistic).error()),
            Subject::Mape(metric) => Some(self.metric(metric)?.mape),
            Subject::Pearson(metric) => self.metric(metric)?.pearson,
            Subject::Ks(metric) => Some(self.metric(metric)?.ks),
            Subject::Wasserstein(metric) => {
                let found = self.metric(metric)?;
                Some(relative_error(found.mean_ms(), found.mean_ms() + found.wasserstein_ms))
            }
            Subject::Throughput => {
                let ThroughputComparison { reference_tokens_per_s, compared_tokens_per_s } = self.throughput?;
                Some((compared_tokens_per_s - reference_tokens_per_s) / reference_tokens_per_s)
            }
            Subject::Outside => None,
        }
    }

    /// Returns the confidence interval of the value that a gate limits, with the sign of the error. None without an
    /// interval.
    #[must_use]
    pub fn interval(&self, subject: Subject) -> Option<Interval> {
        match subject {
            Subject::Statistic(metric, statistic) => {
                let listed = self.metric(metric)?.statistics.iter();
                listed.clone().find(|each| each.statistic == statistic)?.error_interval
            }
            Subject::Ks(metric) => self.metric(metric)?.ks_interval,
            Subject::Wasserstein(metric) => {
                let found = self.metric(metric)?;
                let relative = |ms: f64| relative_error(found.mean_ms(), found.mean_ms() + ms);
                let interval = found.wasserstein_interval_ms?;
                Some(Interval { low: relative(interval.low), high: relative(interval.high) })
            }
            Subject::Mape(_) | Subject::Pearson(_) | Subject::Throughput | Subject::Outside => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(factor: u64, count: u64) -> Requests {
        let request = |index: u64| Request {
            identity: Identity { name: Some(format!("r{index}")), ..Identity::default() },
            arrival_ns: Some(index * 1_000_000),
            prompt_tokens: 10,
            output_tokens: 11,
            ttft_ns: Some((100 + index) * 10_000 * factor),
            e2e_ns: Some((100 + index) * 20_000 * factor),
            is_whole: true,
            ..Request::default()
        };
        Requests::new((0..count).rev().map(request).collect())
    }

    fn subject(text: &str) -> Subject {
        text.parse().expect("it is one")
    }

    #[test]
    fn errors_are_those_of_matched_requests() {
        let found = compare(("sim", &requests(110, 90)), ("real", &requests(100, 100)), CompareOptions::default())
            .expect("they can be compared");
        assert_eq!((found.rule, found.matched, found.only_compared, found.only_reference), (MatchRule::Id, 90, 0, 10));
        let metrics: Vec<&str> = found.metrics.iter().map(|each| each.metric.name()).collect();
        assert_eq!(metrics, ["ttft", "itl", "e2e"], "queues are not known");
        for text in ["ttft p50 error", "ttft mean", "e2e p99.9", "ttft mape"] {
            let error = found.value(subject(text)).expect(text);
            assert!((error - 0.1).abs() < 1e-9, "{text}: {error}");
        }
        let interval = found.interval(subject("ttft p50")).expect("it is listed");
        assert!(interval.low <= 0.1 + 1e-9 && 0.1 <= interval.high + 1e-9, "{interval:?}");
        assert!(found.value(subject("ttft wasserstein")).is_some_and(|value| (value - 0.1).abs() < 1e-9));
        assert_eq!(found.value(subject("queue p50")), None);
        assert_eq!(found.value(subject("outside")), None);
    }

    #[test]
    fn nothing_cannot_be_compared_with_something() {
        let error = |left: &Requests, right: &Requests| {
            compare(("A", left), ("B", right), CompareOptions::default()).expect_err("there is nothing").to_string()
        };
        let (some, none) = (requests(1, 3), Requests::default());
        assert_eq!(error(&some, &none), "B has no requests");
        assert_eq!(error(&none, &some), "A has no requests");
        let without = |change: fn(&mut Request)| {
            let mut all = some.all().to_vec();
            all.iter_mut().for_each(change);
            Requests::new(all)
        };
        let timeless = without(|request| (request.ttft_ns, request.e2e_ns) = (None, None));
        assert!(error(&some, &timeless).starts_with("B has no times to compare"));
        let lost = without(|request| request.is_whole = false);
        assert_eq!(error(&lost, &some), "no request was answered whole in both A and B");
    }

    #[test]
    fn the_seed_decides_intervals_and_nothing_else() {
        let of = |seed| {
            let options = CompareOptions { resamples: Some(200), seed };
            compare(("sim", &requests(3, 50)), ("real", &requests(2, 50)), options).expect("they can be compared")
        };
        assert_eq!(of(1), of(1));
        assert_eq!(of(1).value(subject("ttft p50")), of(2).value(subject("ttft p50")));
    }
}
