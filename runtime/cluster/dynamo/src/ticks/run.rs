//! Runs a workload on a cluster with one engine whose steps take one tick each.

use std::collections::BTreeMap;
use std::sync::Arc;

use vcr_cluster::observe::{Observer, Progress, StepRecord};
use vcr_cluster::record::Outcome;
use vcr_cluster::{
    Answers, Overload, PoolConfig, Report, RunConfig, RunConfigError, SimError, Topology, TracePacing, WorkloadConfig,
    WorkloadSource, simulate,
};
use vcr_core::factory::copies;
use vcr_core::plan::{AdmissionStop, ScheduledKind};
use vcr_core::ticks::TickConfig;
use vcr_core::{AnyEngine, ServingEngine};
use vcr_latency::{Fixed, FixedInput};
use vcr_trace::{Trace, TraceRequest};

use crate::ticks::settings::TickSettings;
use crate::ticks::summary::Summary;
use crate::ticks::workload::{TickRequest, Workload};
use crate::ticks::{Bound, RequestReport, RequestStatus, TickRecord};
use crate::ticks::{SCHEMA_VERSION, TickReport};

/// Virtual duration of a tick.
pub const TICK_NS: u64 = 1_000_000;

/// Name of the run, its pool and its workload.
const NAME: &str = "ticks";

/// The reason why a replay could not finish.
#[derive(Debug, thiserror::Error)]
pub enum TickRunError {
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Config(Vec<RunConfigError>),
    /// The simulation failed.
    #[error(transparent)]
    Simulation(SimError),
}

/// Replays a workload. `watcher` may end the replay early, but sees no steps.
pub fn replay(
    config: &TickConfig,
    workload: &Workload,
    watcher: &mut dyn Observer,
) -> Result<TickReport, TickRunError> {
    let run = run_config(config, workload);
    run.check().map_err(TickRunError::Config)?;
    let mut recorder = Recorder { requests: &workload.requests, ticks: Vec::new(), watcher };
    let report = simulate(run, &mut recorder).map_err(TickRunError::Simulation)?;
    let ticks = recorder.ticks;
    let requests = request_reports(config, &workload.requests, &ticks, &report);
    let summary = Summary::of(config, &requests, &ticks);
    let config = TickSettings::of(config);
    let kind = TickReport::KIND.to_owned();
    Ok(TickReport { kind, schema_version: SCHEMA_VERSION, config, stopped_by: None, summary, requests, ticks })
}

fn run_config(config: &TickConfig, workload: &Workload) -> RunConfig {
    let latency = copies(Fixed::new(FixedInput::Step { step_ns: TICK_NS }).expect("a tick is a valid duration"));
    let pool = PoolConfig::new(NAME, 1, config.clone(), latency);
    RunConfig { workloads: vec![workload_config(workload)], ..RunConfig::new(NAME, Topology::Aggregated(pool)) }
}

fn workload_config(workload: &Workload) -> WorkloadConfig {
    let first_tick = workload.requests.first().map_or(0, |request| request.arrival_tick);
    let requests: Vec<TraceRequest> = (0..)
        .zip(&workload.requests)
        .map(|(index, request)| TraceRequest {
            request_id: Some(request.id.as_str().into()),
            line: index + 1,
            session: index,
            turn: 0,
            next_turn: None,
            arrival_ns: Some(u64::from(request.arrival_tick - first_tick) * TICK_NS),
            delay_ns: 0,
            input_tokens: request.prompt_tokens,
            output_tokens: request.max_output_tokens,
            dependencies: Default::default(),
            hash_ids: Default::default(),
            output_token_ids: Default::default(),
            items: Default::default(),
            // The scheduler serves smaller priorities first.
            priority: -request.priority,
            strict_priority: 0,
            policy_class: None,
        })
        .collect();
    let sessions = requests.len() as u32;
    let trace = Arc::new(Trace { requests, sessions, block_size_tokens: 1, ..Trace::default() });
    let pacing = TracePacing::Recorded { speedup: 1.0 };
    let source = WorkloadSource::Trace { trace, pacing, copies: 1, stagger_ns: 0, answers: Answers::Simulated };
    WorkloadConfig { start_ns: u64::from(first_tick) * TICK_NS, ..WorkloadConfig::new(NAME, source) }
}

/// Records ticks, and forwards all other calls to another observer. Request tags are indices into the workload,
/// because both are in order of arrival.
struct Recorder<'a> {
    requests: &'a [TickRequest],
    ticks: Vec<TickRecord>,
    watcher: &'a mut dyn Observer,
}

impl Recorder<'_> {
    fn id(&self, tag: u64) -> String {
        self.requests[tag as usize].id.clone()
    }
}

impl Observer for Recorder<'_> {
    fn wants_steps(&self) -> bool {
        true
    }

    fn wants_stop(&self) -> bool {
        self.watcher.wants_stop()
    }

    fn started(&mut self, step: &StepRecord<'_>) {
        let entries = &step.plan.scheduled;
        let admitted_ids =
            entries.iter().filter(|entry| entry.kind == ScheduledKind::New).map(|entry| self.id(entry.tag));
        let decoded = entries.iter().filter(|entry| entry.samples);
        self.ticks.push(TickRecord {
            tick: step.start_ns / TICK_NS,
            admitted_ids: admitted_ids.collect(),
            admitted_prefill_tokens: step.plan.shape.prefill_tokens,
            decoded_tokens: step.plan.shape.sampled_requests,
            decoded_ids: decoded.map(|entry| self.id(entry.tag)).collect(),
            completed_ids: Vec::new(),
            queued: step.engine.load().num_waiting as u64,
            active: step.engine.load().num_running as u64,
            used_kv_pages: u64::from(step.engine.load().num_active_blocks),
            held_by: match step.plan.admission_stop {
                AdmissionStop::RunningSlots => Some(Bound::MaxActive),
                AdmissionStop::Blocks => Some(Bound::KvPages),
                AdmissionStop::Budget => Some(Bound::PrefillTokens),
                _ => None,
            },
        });
    }

    fn applied(&mut self, _worker: u32, _start_ns: u64, _end_ns: u64, engine: &AnyEngine) {
        let ended = engine.outputs().outputs.iter().filter(|output| output.finish.is_some());
        let ended: Vec<String> = ended.map(|output| self.id(output.tag)).collect();
        if let Some(tick) = self.ticks.last_mut() {
            tick.completed_ids = ended;
        }
    }

    fn progress(&mut self, progress: &Progress) {
        self.watcher.progress(progress);
    }

    fn overloaded(&mut self, overload: &Overload) {
        self.watcher.overloaded(overload);
    }

    fn check_limits(&mut self) -> Result<(), String> {
        self.watcher.check_limits()
    }
}

fn request_reports(
    config: &TickConfig,
    requests: &[TickRequest],
    ticks: &[TickRecord],
    report: &Report,
) -> Vec<RequestReport> {
    let by_id = |ids: fn(&TickRecord) -> &Vec<String>| -> BTreeMap<&str, u64> {
        ticks.iter().flat_map(|tick| ids(tick).iter().map(|id| (id.as_str(), tick.tick))).collect()
    };
    let (admitted, completed) = (by_id(|tick| &tick.admitted_ids), by_id(|tick| &tick.completed_ids));
    let one = |(index, request): (usize, &TickRequest)| {
        let admitted_tick = admitted.get(request.id.as_str()).copied();
        let completed_tick = completed.get(request.id.as_str()).copied();
        // A stopped replay has no records of requests that have not arrived.
        let outcome = report.requests.get(index).map(|record| record.outcome);
        let pages = config.reserved_pages(request.prompt_tokens, request.max_output_tokens);
        RequestReport {
            id: request.id.clone(),
            status: match outcome {
                Some(Outcome::Rejected(_)) => RequestStatus::Refused,
                _ if completed_tick.is_some() => RequestStatus::Completed,
                _ => RequestStatus::Unfinished,
            },
            reason: outcome.as_ref().and_then(Outcome::reason),
            arrival_tick: u64::from(request.arrival_tick),
            admitted_tick,
            completed_tick,
            reserved_kv_pages: if admitted_tick.is_some() { u64::from(pages) } else { 0 },
        }
    };
    requests.iter().enumerate().map(one).collect()
}
