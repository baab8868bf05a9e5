//! Simulates measured requests: the same arrivals, lengths and content on an engine with the exact scheduler,
//! priced with trial coefficients.

use std::sync::Arc;

use vcr_cluster::observe::{Observer, StepRecord, Unobserved};
use vcr_cluster::record::Outcome;
use vcr_cluster::{
    Answers, Overheads, PoolConfig, Report, RunConfig, Topology, TracePacing, WhenFull, WorkloadConfig, WorkloadSource,
    simulate,
};
use vcr_core::ServingEngine;
use vcr_fitted::{FittedRange, StepPrice, StepWork, TERM_COUNT};
use vcr_latency::Fitted;

use crate::error::FitError;
use crate::measurements::data::Measurements;
use crate::solve::parameters::{
    ARRIVAL, ARRIVAL_TOKEN, LARGE_LAUNCH, LAUNCH_REQUEST, LAUNCH_SPREAD_PERMILLE, PREFILL_LAUNCH, Row,
};

/// A trial model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Prices of steps.
    pub step: StepPrice,
    /// Time outside of steps.
    pub overheads: Overheads,
}

impl Candidate {
    pub(crate) fn of(values: &Row) -> Result<Self, FitError> {
        let mut coefficients = [0.0; TERM_COUNT];
        coefficients.copy_from_slice(&values[..TERM_COUNT]);
        let step = StepPrice::new(coefficients, FittedRange::default(), None);
        let overheads = Overheads {
            arrival_ns: values[ARRIVAL].round() as u64,
            arrival_per_prompt_token_ps: (values[ARRIVAL_TOKEN] * 1e3).round() as u64,
            prefill_launch_ns: values[PREFILL_LAUNCH].round() as u64,
            large_launch_ns: values[LARGE_LAUNCH].round() as u64,
            launch_per_request_ns: values[LAUNCH_REQUEST].round() as u64,
            launch_spread_permille: LAUNCH_SPREAD_PERMILLE,
            ..Overheads::default()
        };
        Ok(Self { step: step.map_err(|error| FitError::NoFit(error.to_string()))?, overheads })
    }
}

/// Simulated times of one request in nanoseconds, counted from its arrival at the client.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Simulated {
    /// Virtual time of its arrival at the client.
    pub arrival_ns: u64,
    /// Time until admission. None if the request was never admitted.
    pub scheduled_ns: Option<u64>,
    /// Time in the queue until admission, counted as in the measurements.
    pub queue_ns: Option<u64>,
    /// Time until the first token.
    pub ttft_ns: Option<u64>,
    /// Time until the last token.
    pub e2e_ns: Option<u64>,
    /// Number of prompt tokens found in the cache.
    pub cached_tokens: u32,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Number of output tokens.
    pub output_tokens: u32,
    /// Index of the engine that served the request.
    pub worker: u32,
}

/// One step of an engine.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedStep {
    /// Virtual time of its start.
    pub start_ns: u64,
    /// Virtual time of its end.
    pub end_ns: u64,
    /// Work of the step.
    pub work: StepWork,
    /// Work of the next step, if it was already decided when this one started.
    pub next: Option<StepWork>,
}

/// A simulation of measurements.
#[derive(Debug)]
pub struct Simulation {
    /// The requests, in the order of the measurements.
    pub requests: Vec<Simulated>,
    /// The steps of each engine, in order of time. Empty unless requested.
    pub steps: Vec<Vec<SimulatedStep>>,
    /// The whole report.
    pub report: Report,
}

/// Simulates `measurements` on `pool`, with the candidate as its latency model.
///
/// # Errors
/// If the pool cannot run.
pub fn run(
    measurements: &Measurements,
    pool: &PoolConfig,
    candidate: &Candidate,
    seed: u64,
    with_steps: bool,
) -> Result<Simulation, FitError> {
    let pacing = Pacing { speedup: 1.0, most_at_once: measurements.most_at_once() };
    paced(measurements, pool, candidate, seed, with_steps, pacing)
}

pub(crate) fn run_at_once(
    measurements: &Measurements,
    pool: &PoolConfig,
    candidate: &Candidate,
    seed: u64,
) -> Result<Simulation, FitError> {
    paced(measurements, pool, candidate, seed, false, Pacing { speedup: AT_ONCE, most_at_once: None })
}

/// A speedup with which a year passes within a millisecond.
const AT_ONCE: f64 = 1e12;

/// The pace of arrivals.
#[derive(Clone, Copy)]
struct Pacing {
    speedup: f64,
    most_at_once: Option<u32>,
}

fn paced(
    measurements: &Measurements,
    pool: &PoolConfig,
    candidate: &Candidate,
    seed: u64,
    with_steps: bool,
    Pacing { speedup, most_at_once }: Pacing,
) -> Result<Simulation, FitError> {
    let step = candidate.step;
    let overheads = candidate.overheads;
    let pool = PoolConfig {
        name: "engine".to_owned(),
        latency: Arc::new(move |context| Ok(Box::new(Fitted::new(step, context.seed)))),
        overheads,
        ..pool.clone()
    };
    let source = WorkloadSource::Trace {
        trace: Arc::clone(measurements.trace()),
        pacing: TracePacing::Recorded { speedup },
        copies: 1,
        stagger_ns: 0,
        answers: Answers::Simulated,
    };
    let mut workload = WorkloadConfig::new("measured", source);
    if let Some(most) = most_at_once {
        workload.client.max_in_flight = Some(most.into());
        workload.client.when_full = WhenFull::Delay;
    }
    let config = RunConfig { seed, workloads: vec![workload], ..RunConfig::new("fit", Topology::Aggregated(pool)) };
    let mut steps = Steps::default();
    let observer: &mut dyn Observer = if with_steps { &mut steps } else { &mut Unobserved };
    let report = simulate(config, observer).map_err(|error| FitError::Simulation(error.to_string()))?;
    let mut requests = requests(measurements, &overheads, &report)?;
    for request in &mut requests {
        if measurements.has_queue_from_arrival() {
            request.queue_ns = request.scheduled_ns;
        } else {
            take_up(request, &steps.0);
        }
    }
    Ok(Simulation { requests, steps: steps.0, report })
}

/// Shortens the wait by the rest of the step in progress. The engine looks for new requests between
/// two steps, and counts their wait from then on.
fn take_up(request: &mut Simulated, steps: &[Vec<SimulatedStep>]) {
    let (Some(steps), Some(queue_ns), Some(scheduled_ns)) =
        (steps.get(request.worker as usize), request.queue_ns, request.scheduled_ns)
    else {
        return;
    };
    let queued_ns = request.arrival_ns + scheduled_ns - queue_ns;
    let under_way = steps.get(steps.partition_point(|step| step.end_ns <= queued_ns));
    if let Some(step) = under_way.filter(|step| step.start_ns < queued_ns) {
        request.queue_ns = Some(queue_ns.saturating_sub(step.end_ns - queued_ns));
    }
}

/// The simulated requests in the order of the measurements, which is the order of the trace's rows.
fn requests(measurements: &Measurements, overheads: &Overheads, report: &Report) -> Result<Vec<Simulated>, FitError> {
    let rows = &measurements.trace().requests;
    let row_of = |session: u64, turn: u32| {
        // Sessions are numbered by their first rows, and their turns are consecutive.
        let mut row = rows.partition_point(|row| u64::from(row.session) < session && row.turn == 0);
        if rows.get(row).is_none_or(|found| u64::from(found.session) != session || found.turn != 0) {
            row = rows.iter().position(|row| u64::from(row.session) == session && row.turn == 0)?;
        }
        for _ in 0..turn {
            row = rows[row].next_turn? as usize;
        }
        Some(row)
    };
    let mut simulated = vec![Simulated::default(); rows.len()];
    let mut rejected = 0u64;
    let mut reason = None;
    for record in &report.requests {
        let Some(row) = row_of(record.session, record.turn) else { continue };
        let since = |at_ns: Option<u64>| at_ns.map(|at_ns| at_ns.saturating_sub(record.arrival_ns));
        if let Outcome::Rejected(why) = record.outcome {
            rejected += 1;
            reason.get_or_insert_with(|| why.to_string());
        }
        simulated[row] = Simulated {
            arrival_ns: record.arrival_ns,
            scheduled_ns: since(record.scheduled_ns),
            queue_ns: since(record.scheduled_ns)
                .map(|ns| ns.saturating_sub(overheads.arrival_of_ns(record.prompt_tokens))),
            ttft_ns: since(record.first_token_ns),
            e2e_ns: since(record.last_token_ns),
            cached_tokens: record.cached_tokens,
            prompt_tokens: record.prompt_tokens,
            output_tokens: record.output_tokens,
            worker: record.decode_worker.or(record.prefill_worker).unwrap_or(0),
        };
    }
    if let Some(reason) = reason {
        let all = rows.len();
        return Err(FitError::Engine(format!(
            "{rejected} of {all} measured requests can never run on this engine: {reason}; correct `--engine`"
        )));
    }
    Ok(simulated)
}

#[derive(Default)]
struct Steps(Vec<Vec<SimulatedStep>>);

impl Observer for Steps {
    fn wants_steps(&self) -> bool {
        true
    }

    fn started(&mut self, step: &StepRecord<'_>) {
        let worker = step.worker as usize;
        if self.0.len() <= worker {
            self.0.resize_with(worker + 1, Vec::new);
        }
        let work = StepWork::from(&step.plan.shape);
        let next = (step.engine.steps_in_flight() > 1).then(|| StepWork::from(&step.engine.plan().shape));
        self.0[worker].push(SimulatedStep { start_ns: step.start_ns, end_ns: step.end_ns, work, next });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that reaches the queue 40 ns after the client sent it, and waits until a step at 200 ns.
    fn waited() -> Simulated {
        Simulated { arrival_ns: 10, queue_ns: Some(150), scheduled_ns: Some(190), ..Simulated::default() }
    }

    fn queue_ns(request: Simulated, steps: &[(u64, u64)]) -> Option<u64> {
        let work = StepWork::default();
        let steps = steps.iter().map(|&(start_ns, end_ns)| SimulatedStep { start_ns, end_ns, work, next: None });
        let mut request = request;
        take_up(&mut request, &[steps.collect()]);
        request.queue_ns
    }

    #[test]
    fn engines_take_up_requests_between_steps() {
        assert_eq!(queue_ns(waited(), &[(0, 30), (30, 80), (80, 200)]), Some(120), "30 ns of a step were left");
        assert_eq!(queue_ns(waited(), &[(0, 30), (90, 200)]), Some(150), "the engine was idle");
        assert_eq!(queue_ns(waited(), &[(0, 50), (50, 200)]), Some(150), "it came between two steps");
        assert_eq!(queue_ns(waited(), &[(0, 20), (30, 400)]), Some(0), "the wait is within one step");
        assert_eq!(queue_ns(waited(), &[]), Some(150));
    }

    #[test]
    fn requests_that_never_waited_are_left_alone() {
        let never = Simulated { queue_ns: None, scheduled_ns: None, ..waited() };
        assert_eq!(queue_ns(never, &[(0, 400)]), None);
        let elsewhere = Simulated { worker: 3, ..waited() };
        assert_eq!(queue_ns(elsewhere, &[(0, 400)]), Some(150), "steps of another engine say nothing");
    }
}
