//! Compares predictions with measurements.
//!
//! A model predicts measured requests from their arrivals, lengths and content, without their times. Both
//! sides are compared by percentiles, request by request and as distributions, and checked against gates.

use serde::Serialize;
use vcr_compare::{Comparison, Gate, Metric, NEAR_ZERO_MS, Pairs, Statistic, Subject, ks, wasserstein};
use vcr_fitted::ModelFile;
use vcr_scenario::fitted;

use crate::error::FitError;
use crate::judge::intervals::{self, Again, Bounds, Capacity};
use crate::judge::metrics::{comparisons, pairs};
use crate::judge::steps::{self, StepComparison};
use crate::measurements::data::Measurements;
use crate::simulate::{Candidate, Simulation, run};
use crate::source::Source;

/// One prediction and its comparison with measurements.
#[derive(Debug, Serialize)]
pub struct Judged {
    /// Name of the measurements.
    pub name: String,
    /// Whether the model was fitted on some of the measurements, according to the digest of the file and the parts of
    /// it that were fitted and judged.
    pub in_sample: bool,
    /// Number of requests compared.
    pub requests: u64,
    /// Percentiles of both sides.
    pub comparisons: Vec<Comparison>,
    /// Intervals of the compared statistics. Empty without draws.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<Bounds>,
    /// The load and the capacity of the engine, if the load is long enough for a comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,
    /// Errors request by request.
    pub per_request: Vec<PerRequest>,
    /// Output tokens per second of both sides.
    pub throughput: Throughput,
    /// Gaps that prefills lengthen, if single gaps were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interference: Option<Interference>,
    /// The steps of both sides, if they were recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<StepComparison>,
    /// Fraction of the prompt tokens found in the cache, unless both sides found none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_hits: Option<PrefixHits>,
    /// Fraction of the simulated step time outside the range that the model was fitted on.
    pub outside_fitted_range: f64,
    /// The data of both sides, for figures.
    #[serde(skip)]
    pub sides: Sides,
}

/// Both sides of a prediction.
#[derive(Debug)]
pub struct Sides {
    /// The measured side.
    pub measurements: Measurements,
    /// The predicted side.
    pub simulation: Simulation,
    /// The measured and predicted times of each request, by metric.
    pub pairs: Vec<Pairs>,
}

/// The accuracy of a metric, request by request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PerRequest {
    /// The metric's name.
    pub metric: &'static str,
    /// Mean absolute percentage error, as a fraction.
    pub mape: f64,
    /// Pearson's correlation coefficient.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pearson: Option<f64>,
}

/// Output tokens, divided by the time from the first arrival to the last token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Throughput {
    /// The measured throughput.
    pub measured_tokens_per_s: f64,
    /// The predicted throughput.
    pub simulated_tokens_per_s: f64,
}

/// Fractions of the prompt tokens found in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PrefixHits {
    /// The measured fraction.
    pub measured: f64,
    /// The predicted fraction.
    pub simulated: f64,
}

/// Gaps longer than one and a half times the median. They mostly come from steps with prefills.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interference {
    /// Measured fraction of such gaps among all gaps.
    pub measured_share: f64,
    /// Predicted fraction of such gaps among all gaps.
    pub simulated_share: f64,
    /// Measured mean of such gaps, relative to the median of all gaps.
    pub measured_factor: f64,
    /// Predicted mean of such gaps, relative to the median of all gaps.
    pub simulated_factor: f64,
}

/// Predicts the measurements of a source and judges the prediction.
///
/// # Errors
/// If the engine cannot serve the measured requests.
pub fn judge(model: &ModelFile, source: &Source, seed: u64, again: Again) -> Result<Judged, FitError> {
    let candidate = Candidate { step: model.step, overheads: fitted::overheads(model) };
    let simulation = run(&source.measurements, &source.pool, &candidate, seed, true)?;
    let pairs = pairs(&source.measurements, &simulation);
    let per_request = pairs
        .iter()
        .map(|pairs| PerRequest { metric: pairs.metric.name(), mape: pairs.mape(), pearson: pairs.pearson() })
        .collect();
    let fitted_on = &model.provenance.inputs;
    let in_sample = source.measurements.inputs().iter().any(|input| fitted_on.iter().any(|on| on.overlaps(input)));
    let comparisons = comparisons(&source.measurements, &simulation);
    let (intervals, capacity) = intervals::of(model, source, &comparisons, seed, again)?;
    Ok(Judged {
        name: source.measurements.name().to_owned(),
        in_sample,
        requests: source.measurements.requests().iter().filter(|request| request.is_whole).count() as u64,
        comparisons,
        intervals,
        capacity,
        per_request,
        throughput: throughput(&source.measurements, &simulation),
        interference: interference(&source.measurements, &simulation),
        steps: steps::compare(&source.measurements, &simulation),
        prefix_hits: prefix_hits(&source.measurements, &simulation),
        outside_fitted_range: outside(model, &simulation),
        sides: Sides { measurements: source.measurements.clone(), simulation, pairs },
    })
}

impl Judged {
    fn pairs(&self, metric: Metric) -> Option<&Pairs> {
        self.sides.pairs.iter().find(|pairs| pairs.metric == metric)
    }

    /// The value that a gate limits. None if the metric was not measured.
    #[must_use]
    pub fn value(&self, gate: &Gate) -> Option<f64> {
        let per_request = |metric: Metric| self.per_request.iter().find(|each| each.metric == metric.name());
        match gate.subject() {
            Subject::Statistic(metric, statistic) => {
                let listed = |each: &&Comparison| each.metric == metric && each.statistic == statistic;
                match self.comparisons.iter().find(listed) {
                    Some(found) => Some(found.error().abs()),
                    None => Some(self.pairs(metric)?.compare(statistic).error().abs()),
                }
            }
            Subject::Mape(metric) => Some(per_request(metric)?.mape),
            Subject::Pearson(metric) => per_request(metric)?.pearson,
            Subject::Ks(metric) => {
                let (measured, simulated) = self.pairs(metric)?.sides();
                Some(ks(&measured, &simulated))
            }
            Subject::Wasserstein(metric) => {
                let (measured, simulated) = self.pairs(metric)?.sides();
                let distance = wasserstein(&measured, &simulated)?;
                Some(distance / Statistic::Mean.of(measured).max(NEAR_ZERO_MS * 1e6))
            }
            Subject::Throughput => {
                let measured = self.throughput.measured_tokens_per_s;
                Some(((self.throughput.simulated_tokens_per_s - measured) / measured).abs())
            }
            Subject::Outside => Some(self.outside_fitted_range),
        }
    }
}

/// The result of a gate for one prediction.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Name of the measurements.
    pub input: String,
    /// The gate.
    pub gate: Gate,
    /// The value that the gate limits. None if it was not measured.
    pub value: Option<f64>,
}

impl Verdict {
    /// The results of all gates for all predictions.
    #[must_use]
    pub fn all(all: &[Judged], gates: &[Gate]) -> Vec<Self> {
        let of =
            |judged: &Judged, gate: &Gate| Self { input: judged.name.clone(), gate: *gate, value: judged.value(gate) };
        all.iter().flat_map(|judged| gates.iter().map(move |gate| of(judged, gate))).collect()
    }

    /// Whether the gate holds. It does not if the metric was not measured.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.value.is_some_and(|value| self.gate.holds(value))
    }

    /// The value as text.
    #[must_use]
    pub fn value_text(&self) -> String {
        self.value.map_or_else(|| "not measured".to_owned(), |value| self.gate.value_text(value))
    }
}

fn throughput(measurements: &Measurements, simulation: &Simulation) -> Throughput {
    let (mut tokens, mut measured_end_ns, mut simulated_end_ns) = (0.0, 0, 0);
    for (measured, simulated) in measurements.requests().iter().zip(&simulation.requests) {
        let measured_ns = if measurements.point().is_some() { simulated.e2e_ns } else { measured.e2e_ns };
        let (Some(measured_ns), Some(simulated_ns)) = (measured_ns, simulated.e2e_ns) else { continue };
        tokens += f64::from(measured.output_tokens);
        measured_end_ns = measured_end_ns.max(measured.arrival_ns + measured_ns);
        simulated_end_ns = simulated_end_ns.max(simulated.arrival_ns + simulated_ns);
    }
    let first_ns = measurements.requests().iter().map(|request| request.arrival_ns).min().unwrap_or(0);
    let per_s = |end_ns: u64| tokens / (end_ns.saturating_sub(first_ns).max(1) as f64 / 1e9);
    let measured = match measurements.point() {
        Some(point) => point.output_tokens_per_s.unwrap_or_else(|| per_s(simulated_end_ns)),
        None => per_s(measured_end_ns),
    };
    Throughput { measured_tokens_per_s: measured, simulated_tokens_per_s: per_s(simulated_end_ns) }
}

fn prefix_hits(measurements: &Measurements, simulation: &Simulation) -> Option<PrefixHits> {
    let (mut prompt, mut measured, mut simulated) = (0.0, 0.0, 0.0);
    for (request, predicted) in measurements.requests().iter().zip(&simulation.requests) {
        prompt += f64::from(request.prompt_tokens);
        measured += f64::from(request.cached_tokens);
        simulated += f64::from(predicted.cached_tokens);
    }
    (measured + simulated > 0.0).then(|| PrefixHits { measured: measured / prompt, simulated: simulated / prompt })
}

fn interference(measurements: &Measurements, simulation: &Simulation) -> Option<Interference> {
    let mut gaps: Vec<u64> =
        measurements.requests().iter().flat_map(|request| request.gaps_ns.iter().copied()).collect();
    gaps.sort_unstable();
    let measured_median_ns = *gaps.get(gaps.len() / 2)? as f64;
    let simulated = &simulation.report.token_gaps_ns;
    let mut measured = Band::above(measured_median_ns);
    gaps.iter().for_each(|gap_ns| measured.add(*gap_ns, 1));
    let mut predicted = Band::above(simulated.percentile(50.0)? as f64);
    simulated.for_each(|gap_ns, times| predicted.add(gap_ns, times));
    let (measured_share, measured_factor) = measured.share_and_factor();
    let (simulated_share, simulated_factor) = predicted.share_and_factor();
    Some(Interference { measured_share, simulated_share, measured_factor, simulated_factor })
}

/// Sums over all gaps, and over the gaps well above the median.
struct Band {
    median_ns: f64,
    count: f64,
    above: f64,
    above_ns: f64,
}

impl Band {
    fn above(median_ns: f64) -> Self {
        Self { median_ns, count: 0.0, above: 0.0, above_ns: 0.0 }
    }

    fn add(&mut self, gap_ns: u64, times: u64) {
        self.count += times as f64;
        if gap_ns as f64 > 1.5 * self.median_ns {
            self.above += times as f64;
            self.above_ns += gap_ns as f64 * times as f64;
        }
    }

    fn share_and_factor(&self) -> (f64, f64) {
        (self.above / self.count.max(1.0), self.above_ns / self.above.max(1.0) / self.median_ns)
    }
}

/// The fraction of the step time that is extrapolated.
fn outside(model: &ModelFile, simulation: &Simulation) -> f64 {
    let (mut all_ns, mut outside_ns) = (0.0, 0.0);
    for step in simulation.steps.iter().flatten() {
        let ns = (step.end_ns - step.start_ns) as f64;
        all_ns += ns;
        if !model.step.range().contains(&step.work) {
            outside_ns += ns;
        }
    }
    if all_ns > 0.0 { outside_ns / all_ns } else { 0.0 }
}
