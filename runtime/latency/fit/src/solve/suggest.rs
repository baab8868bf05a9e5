//! Suggests loads whose measurement would make a stated prediction most certain.
//!
//! For given steps, mean times are sums of parameters, so the fit's information about the parameters gives the
//! certainty of a mean time. Simulating another load shows how much information its measurement would add.

use std::str::FromStr;

use nalgebra::{DMatrix, DVector};
use serde::Serialize;
use vcr_cluster::PoolConfig;

use crate::error::FitError;
use crate::measurements::aggregates::{Arrivals, Point, Rate};
use crate::measurements::data::Measurements;
use crate::simulate::{Candidate, run};
use crate::solve::MODEL_ERROR;
use crate::solve::observations::{MeanRow, mean_rows};
use crate::solve::parameters::{Observation, PARAMETERS, Row};
use crate::solve::regress::{MAX_KNOWN_OBSERVATIONS, Prior, knowledge};

/// The arrivals of a load's requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// A closed loop with this many requests.
    Concurrency(u32),
    /// Poisson arrivals with this mean rate per second.
    RatePerS(f64),
}

/// A load of requests with equal lengths.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    /// New tokens of each prompt.
    pub prompt_tokens: u32,
    /// Tokens of each answer.
    pub output_tokens: u32,
    /// The arrivals of the requests.
    pub pace: Pace,
    /// Number of requests.
    pub requests: u32,
}

/// Half the width of the 90 % interval of each mean time, relative to the mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Certainty {
    /// For the time to the first token.
    pub ttft: f64,
    /// For the time between tokens.
    pub itl: f64,
}

/// A load to measure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Suggested {
    /// The load.
    pub load: Load,
    /// Its duration in seconds, according to the fit.
    pub lasts_s: f64,
    /// The certainty of the prediction once this load and the loads before it in the list are in the fit.
    pub then: Certainty,
}

/// Suggestions for a stated prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Suggestion {
    /// The prediction.
    pub prediction: Load,
    /// The certainty with the current data.
    pub now: Certainty,
    /// The suggested loads, in order of effect; empty if no load helps.
    pub loads: Vec<Suggested>,
}

/// Nine of ten values lie within this many standard deviations of the mean.
const NINE_OF_TEN: f64 = 1.645;
/// Prompt lengths, answer lengths and concurrencies of the loads that are tried.
const PROMPTS: [u32; 6] = [32, 128, 512, 2_048, 8_192, 32_768];
const OUTPUTS: [u32; 3] = [16, 128, 512];
const AT_ONCE: [u32; 5] = [1, 8, 32, 128, 256];
const LONGEST_S: f64 = 300.0;
/// A further load must shrink the intervals at least to this fraction.
const WORTH: f64 = 0.9;

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            "expected prompt_tokens, output_tokens and concurrency or rate, such as `prompt_tokens: 4000, \
             output_tokens: 200, concurrency: 16`"
                .to_owned()
        };
        let (mut prompt_tokens, mut output_tokens, mut pace) = (None, None, None);
        for part in text.split(',') {
            let (key, value) = part.split_once(':').ok_or_else(expected)?;
            let value = value.trim().replace('_', "");
            let count = || value.parse().ok().filter(|count: &u32| (1..=10_000_000).contains(count));
            match key.trim() {
                "prompt_tokens" => prompt_tokens = Some(count().ok_or_else(expected)?),
                "output_tokens" => output_tokens = Some(count().ok_or_else(expected)?),
                "concurrency" => pace = Some(Pace::Concurrency(count().ok_or_else(expected)?)),
                "rate" => {
                    let rate = value.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
                    pace = Some(Pace::RatePerS(rate.ok_or_else(expected)?));
                }
                _ => return Err(expected()),
            }
        }
        let load = prompt_tokens.zip(output_tokens).zip(pace);
        let ((prompt_tokens, output_tokens), pace) = load.ok_or_else(expected)?;
        Ok(Self { prompt_tokens, output_tokens, pace, requests: requests(pace) })
    }
}

/// Enough requests to show a load: several rounds of all concurrent requests.
fn requests(pace: Pace) -> u32 {
    match pace {
        Pace::Concurrency(at_once) => at_once.saturating_mul(4).clamp(30, 1_000),
        Pace::RatePerS(_) => 300,
    }
}

struct Predicted {
    ttft: MeanRow,
    itl: MeanRow,
    lasts_s: f64,
}

/// Finds loads to measure for `prediction`, in addition to the `observations` of a fit with the parameters `values`.
///
/// # Errors
/// If the engine cannot serve the prediction.
pub(crate) fn suggest(
    prediction: Load,
    pool: &PoolConfig,
    candidate: &Candidate,
    observations: &[Vec<Observation>],
    prior: &Prior,
    values: &Row,
    seed: u64,
) -> Result<Suggestion, FitError> {
    let is_async = pool.engine.as_vllm().is_some_and(|engine| engine.async_scheduling());
    let predict = |load: &Load| -> Result<Option<Predicted>, FitError> {
        let arrivals = match load.pace {
            Pace::Concurrency(at_once) => Arrivals::Closed(at_once),
            Pace::RatePerS(per_s) => Arrivals::Open(Rate::at_random(per_s)),
        };
        let measurements = Measurements::made_up(Point {
            name: "prediction".to_owned(),
            arrivals,
            requests: load.requests,
            prompt_tokens: (f64::from(load.prompt_tokens), 0.0),
            output_tokens: (f64::from(load.output_tokens), 0.0),
            reported: Vec::new(),
            output_tokens_per_s: None,
        });
        let simulation = run(&measurements, pool, candidate, seed, true)?;
        let end_ns = simulation.requests.iter().filter_map(|each| Some(each.arrival_ns + each.e2e_ns?)).max();
        let [ttft, itl] = mean_rows(&simulation, values, is_async);
        let lasts_s = end_ns.unwrap_or(0) as f64 / 1e9;
        Ok(ttft.zip(itl).map(|(ttft, itl)| Predicted { ttft, itl, lasts_s }))
    };
    let expected = predict(&prediction)?.ok_or_else(|| {
        FitError::NoFit("the stated prediction has no time between tokens: expected 2 output tokens or more".to_owned())
    })?;
    let mut known = knowledge(observations, prior, values);
    let certainty = |known: &DMatrix<f64>| {
        let known = known.clone().cholesky()?;
        let of = |mean: &MeanRow| {
            let scaled = DVector::from_iterator(
                PARAMETERS,
                mean.row.iter().zip(&prior.spread).map(|(amount, spread)| amount * spread / mean.time_ns(values)),
            );
            let variance = scaled.dot(&known.solve(&scaled));
            NINE_OF_TEN * (variance + MODEL_ERROR * MODEL_ERROR).sqrt()
        };
        Some(Certainty { ttft: of(&expected.ttft), itl: of(&expected.itl) })
    };
    let unknown = || FitError::NoFit("the measured times give no finite solution".to_owned());
    let now = certainty(&known).ok_or_else(unknown)?;
    let mut tried = Vec::new();
    for load in loads(&prediction, pool) {
        // Loads that do not fit into the engine are not suggested.
        let Ok(Some(predicted)) = predict(&load) else { continue };
        if predicted.lasts_s <= LONGEST_S {
            let observed = [predicted.ttft.observation(values), predicted.itl.observation(values)];
            let added = knowledge(&[observed.to_vec()], prior, values) - DMatrix::identity(PARAMETERS, PARAMETERS);
            tried.push((load, predicted.lasts_s, added));
        }
    }
    let width = |certainty: &Certainty| certainty.ttft + certainty.itl;
    let (mut loads, mut last) = (Vec::new(), now);
    while loads.len() < 2 {
        let with = tried.iter().filter_map(|(load, lasts_s, added)| {
            Some((Suggested { load: *load, lasts_s: *lasts_s, then: certainty(&(&known + added))? }, added))
        });
        let best = with.min_by(|(one, _), (other, _)| width(&one.then).total_cmp(&width(&other.then)));
        let Some((best, added)) = best.filter(|(best, _)| width(&best.then) < WORTH * width(&last)) else { break };
        known += added;
        last = best.then;
        loads.push(best);
    }
    Ok(Suggestion { prediction, now, loads })
}

/// The loads that are tried: lengths and concurrencies close to the prediction's, and far from them.
fn loads(prediction: &Load, pool: &PoolConfig) -> Vec<Load> {
    let most = pool.engine.as_vllm().map_or(256, |engine| engine.max_num_seqs());
    let with = |usual: &[u32], own: u32| {
        let mut all: Vec<u32> = usual.iter().copied().chain([own]).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let own = match prediction.pace {
        Pace::Concurrency(at_once) => at_once,
        Pace::RatePerS(_) => 1,
    };
    let mut loads = Vec::new();
    for prompt_tokens in with(&PROMPTS, prediction.prompt_tokens) {
        for output_tokens in with(&OUTPUTS, prediction.output_tokens) {
            for at_once in with(&AT_ONCE, own).into_iter().filter(|at_once| *at_once <= most) {
                let pace = Pace::Concurrency(at_once);
                loads.push(Load { prompt_tokens, output_tokens, pace, requests: requests(pace) });
            }
        }
    }
    loads
}

impl MeanRow {
    /// The information from measuring one of the two means of a load: half of the load's.
    fn observation(&self, values: &Row) -> Observation {
        let measured_ns = self.time_ns(values);
        let weight = self.served * self.served * MAX_KNOWN_OBSERVATIONS / 2.0;
        Observation { row: self.row, measured_ns, scale_ns: measured_ns, weight }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_are_stated_by_lengths_and_pace() {
        let read = |text: &str| text.parse::<Load>();
        let load = read("prompt_tokens: 4_000, output_tokens: 200, concurrency: 16").expect("it is one");
        assert_eq!((load.prompt_tokens, load.output_tokens), (4000, 200));
        assert_eq!((load.pace, load.requests), (Pace::Concurrency(16), 64));
        let open = read("rate: 2.5, output_tokens: 1, prompt_tokens: 10").expect("it is one");
        assert_eq!(open.pace, Pace::RatePerS(2.5));
        for wrong in [
            "",
            "prompt_tokens: 4000",
            "prompt_tokens: 0, output_tokens: 1, rate: 1",
            "a: 1, rate: 1",
            "prompt_tokens: 1, output_tokens: 1, rate: -1",
            "prompt_tokens: 1, output_tokens: 1, concurrency: 1.5",
        ] {
            assert!(read(wrong).expect_err(wrong).starts_with("expected prompt_tokens"), "{wrong}");
        }
    }
}
