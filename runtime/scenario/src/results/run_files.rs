//! The parts of one run in the files of `--out DIR`: steps, trace and logs of guests.
//!
//! Runs may be parallel, so each writes parts of its own, and the parts are joined in the
//! order of the runs: the files do not depend on the thread count.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use vcr_cluster::observe::{Incident, StepRecord};
use vcr_cluster::record::{RequestRecord, ns_to_ms};
use vcr_cluster::{PoolConfig, Report, Topology};
use vcr_core::{AnyEngine, ServingEngine};
use vcr_steplog::{EngineLog, StepLine, settings_of};
use vcr_trace::perfetto::PerfettoWriter;

use crate::results::budget::{Budget, Counted};
use crate::results::guest_telemetry::InstanceTelemetry;
use crate::results::out_file::{OutFile, part};
use crate::results::pictures::name_of;

/// The place of an engine of a run, or of one of its ranks.
pub(crate) struct EnginePlace {
    pool: String,
    /// Index in the pool, over all ranks.
    index: u32,
    name: String,
}

impl EnginePlace {
    /// All places of a cluster, in the order of a run.
    pub(crate) fn all_of(topology: &Topology) -> Vec<Self> {
        let place = |pool: &PoolConfig, index| {
            let name = format!("{} {}", pool.name, pool.rank_name(index));
            Self { pool: pool.name.clone(), index, name }
        };
        let pools = topology.pools().into_iter();
        pools.flat_map(|pool| (0..pool.most_ranks()).map(move |index| place(pool, index))).collect()
    }
}

/// The parts of one run.
pub(crate) struct RunFiles {
    name: String,
    /// By engine of the run.
    engines: Vec<EnginePlace>,
    process: u64,
    /// The folder of the parts.
    drafts: PathBuf,
    budget: Arc<Budget>,
    steps: Option<BufWriter<Counted>>,
    guests: Option<BufWriter<File>>,
    /// By engine of the run.
    logs: Vec<EngineSteps>,
    trace: Option<PerfettoWriter<BufWriter<Counted>>>,
    /// The first error of an observation; observers cannot return one.
    failure: Option<io::Error>,
}

/// The part of an engine's step log that is not written yet.
#[derive(Default)]
struct EngineSteps {
    log: EngineLog,
    /// Whether the current line has a schedule.
    scheduled: bool,
    /// Requests that came after that schedule, and so belong to the next line.
    submitted_later: Vec<u64>,
    /// The engine's settings, until they are written, and whether they were.
    settings: Option<Map<String, Value>>,
    told_settings: bool,
}

impl EngineSteps {
    fn take_line(&mut self) -> Option<StepLine> {
        self.scheduled = false;
        let line = self.log.take_line();
        for tag in self.submitted_later.drain(..) {
            self.log.added(tag);
        }
        line
    }
}

impl RunFiles {
    pub(crate) fn open(
        drafts: PathBuf,
        index: usize,
        name: &str,
        engines: Vec<EnginePlace>,
        budget: &Arc<Budget>,
        wants: impl Fn(OutFile) -> bool,
    ) -> io::Result<Self> {
        let counted = |file| Counted::create(&part(&drafts, index, file), budget).map(BufWriter::new);
        let process = index as u64 * 2 + 1;
        let mut trace = None;
        if wants(OutFile::Trace) {
            let mut out = counted(OutFile::Trace)?;
            if index == 0 {
                out.write_all(PerfettoWriter::<File>::HEADER)?;
            }
            let mut events = PerfettoWriter::continued(out);
            events.process_name(process, &format!("{name}: engines"))?;
            events.process_name(process + 1, &format!("{name}: requests"))?;
            for (worker, engine) in engines.iter().enumerate() {
                events.thread_name(process, worker as u64 + 1, &engine.name)?;
            }
            trace = Some(events);
        }
        let guests = wants(OutFile::Guests).then(|| File::create(part(&drafts, index, OutFile::Guests)));
        Ok(Self {
            name: name.to_owned(),
            logs: engines.iter().map(|_| EngineSteps::default()).collect(),
            engines,
            process,
            steps: wants(OutFile::Steps).then(|| counted(OutFile::Steps)).transpose()?,
            guests: guests.transpose()?.map(BufWriter::new),
            trace,
            drafts,
            budget: Arc::clone(budget),
            failure: None,
        })
    }

    /// Whether any file has single steps.
    pub(crate) fn wants_steps(&self) -> bool {
        (self.steps.is_some() || self.trace.is_some()) && !self.budget.is_spent()
    }

    /// Removes the files of steps, of all runs, if they have become too large.
    fn keep_to_budget(&mut self) {
        if !self.budget.is_spent() || (self.steps.is_none() && self.trace.is_none()) {
            return;
        }
        (self.steps, self.trace) = (None, None);
        for entry in fs::read_dir(&self.drafts).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_of = |file: OutFile| name.to_string_lossy().starts_with(file.file_name());
            if is_of(OutFile::Steps) || is_of(OutFile::Trace) {
                // Another run may have removed it; the folder is removed at the end.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    pub(crate) fn submitted(&mut self, worker: u32, tag: u64) {
        let steps = &mut self.logs[worker as usize];
        if steps.scheduled {
            steps.submitted_later.push(tag);
        } else {
            steps.log.added(tag);
        }
    }

    pub(crate) fn aborted(&mut self, worker: u32, tag: u64) {
        // Within a line an abort comes before the schedule.
        if self.logs[worker as usize].scheduled {
            self.write_line(worker, None);
        }
        self.logs[worker as usize].log.aborted(tag);
    }

    pub(crate) fn scheduled(&mut self, worker: u32, engine: &AnyEngine) {
        if self.logs[worker as usize].scheduled {
            self.write_line(worker, None);
        }
        let steps = &mut self.logs[worker as usize];
        if !steps.told_settings {
            steps.settings = Some(settings_of(&engine.kind()));
            steps.told_settings = true;
        }
        steps.log.scheduled(engine);
        steps.scheduled = true;
        if engine.plan().scheduled.is_empty() && !engine.step_in_flight() {
            steps.log.applied(engine);
            self.write_line(worker, None);
        }
    }

    pub(crate) fn started(&mut self, step: &StepRecord<'_>) {
        let outcome = self.trace_step(step);
        self.keep(outcome);
    }

    pub(crate) fn applied(&mut self, worker: u32, start_ns: u64, end_ns: u64, engine: &AnyEngine) {
        let log = &mut self.logs[worker as usize].log;
        // Steps that did nothing but preempt have no result.
        while log.next_is_empty() {
            log.applied(engine);
        }
        log.applied(engine);
        self.write_line(worker, Some((start_ns, end_ns)));
    }

    pub(crate) fn incident(&mut self, worker: u32, at_ns: u64, incident: Incident) {
        if matches!(incident, Incident::Crash | Incident::Off) {
            // A new engine replaces it; steps in flight are lost.
            self.write_line(worker, None);
            self.logs[worker as usize] = EngineSteps::default();
        }
        if let Some(trace) = &mut self.trace {
            let outcome = trace.instant(self.process, u64::from(worker) + 1, name_of(incident), at_ns);
            self.keep(outcome);
        }
    }

    /// Writes the content of an engine's log; its step lasted from the first to the second
    /// time.
    fn write_line(&mut self, worker: u32, times_ns: Option<(u64, u64)>) {
        let Some(mut line) = self.logs[worker as usize].take_line() else { return };
        line.settings = self.logs[worker as usize].settings.take();
        let EnginePlace { pool, index, .. } = &self.engines[worker as usize];
        line.of = Some(self.name.clone());
        line.pool = Some(pool.clone());
        line.engine = Some(*index);
        line.start_ms = times_ns.map(|(start_ns, _)| ns_to_ms(start_ns));
        line.duration_ms = times_ns.map(|(start_ns, end_ns)| ns_to_ms(end_ns - start_ns));
        if let Some(steps) = &mut self.steps {
            let outcome = serde_json::to_writer(&mut *steps, &line).map_err(io::Error::from);
            let outcome = outcome.and_then(|()| steps.write_all(b"\n"));
            self.keep(outcome);
        }
        self.keep_to_budget();
    }

    fn keep(&mut self, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            self.failure.get_or_insert(error);
        }
    }

    fn trace_step(&mut self, step: &StepRecord<'_>) -> io::Result<()> {
        let Some(trace) = &mut self.trace else { return Ok(()) };
        let shape = &step.plan.shape;
        let thread = u64::from(step.worker) + 1;
        let name = match (shape.prefill_requests, shape.decode_requests) {
            (0, _) => "decode",
            (_, 0) => "prefill",
            _ => "mixed",
        };
        let args = [
            ("prefill_tokens", shape.prefill_tokens),
            ("decode_requests", shape.decode_requests),
            ("preempted", step.plan.preempted.len() as u64),
        ];
        trace.slice(self.process, thread, name, step.start_ns, step.end_ns - step.start_ns, &args)?;
        let counters = [
            ("running", step.engine.num_running() as u64),
            ("waiting", step.engine.num_waiting() as u64),
            ("kv_blocks", shape.kv_active_blocks),
        ];
        trace.counter(self.process, &self.engines[step.worker as usize].name, step.start_ns, &counters)
    }

    /// Writes telemetry of guests and the spans of requests, and closes the parts.
    pub(crate) fn finish(mut self, report: &Report, instances: &[InstanceTelemetry]) -> io::Result<()> {
        if self.wants_steps() {
            for worker in 0..self.logs.len() as u32 {
                self.write_line(worker, None);
            }
        }
        if let Some(error) = self.failure {
            return Err(error);
        }
        if let Some(trace) = &mut self.trace {
            for (id, record) in report.requests.iter().enumerate() {
                let workload = &report.workload_names[record.workload as usize];
                for (phase, start_ns, end_ns) in phases(record) {
                    trace.span(self.process + 1, id as u64, workload, phase, (start_ns, end_ns), &[])?;
                }
            }
        }
        self.trace_transfers(report)?;
        for instance in instances {
            self.trace_notes(instance)?;
            self.write_lines(instance)?;
        }
        self.steps.as_mut().map_or(Ok(()), Write::flush)?;
        self.guests.as_mut().map_or(Ok(()), Write::flush)?;
        self.trace.as_mut().map_or(Ok(()), PerfettoWriter::flush)?;
        self.keep_to_budget();
        Ok(())
    }

    /// Transfers of KV whose bytes moved: spans with their phases, and failures on the track of the engine.
    fn trace_transfers(&mut self, report: &Report) -> io::Result<()> {
        let Some(trace) = &mut self.trace else { return Ok(()) };
        let name = |engine: u32| report.engine_names.get(engine as usize).map_or("?", String::as_str);
        for (id, transfer) in report.kv_transfers.iter().enumerate() {
            let (id, category) = (id as u64, "KV");
            let title = format!("{} to {}", name(transfer.from), name(transfer.engine));
            match &transfer.outcome {
                Ok(moved) => {
                    let phases = transfer.phases();
                    let start_ns = phases.first().map_or(transfer.end_ns, |(_, start_ns, _)| *start_ns);
                    let sizes = [("bytes", moved.bytes), ("pages", moved.pages)];
                    trace.span(self.process, id, category, &title, (start_ns, transfer.end_ns), &sizes)?;
                    for (phase, start_ns, end_ns) in phases {
                        trace.span(self.process, id, category, phase, (start_ns, end_ns), &[])?;
                    }
                }
                Err(kind) => {
                    let text = format!("KV from {} did not arrive: {kind}", name(transfer.from));
                    trace.instant(self.process, u64::from(transfer.engine) + 1, &text, transfer.end_ns)?;
                }
            }
        }
        Ok(())
    }

    /// Gauges over time, and annotations on the track of the engine; those of a guest that
    /// serves a whole pool have a track before all engines.
    fn trace_notes(&mut self, instance: &InstanceTelemetry) -> io::Result<()> {
        let (place, thread) = match instance.engine {
            Some(engine) => {
                let is_place = |place: &EnginePlace| place.pool == instance.pool && place.index == engine;
                match self.engines.iter().position(is_place) {
                    Some(worker) => (self.engines[worker].name.clone(), worker as u64 + 1),
                    None => (format!("{} {engine}", instance.pool), 0),
                }
            }
            None => (instance.pool.clone(), 0),
        };
        let Some(trace) = &mut self.trace else { return Ok(()) };
        for (name, at_ns, value) in &instance.notes.courses {
            trace.gauge(self.process, &format!("{place} {}: {name}", instance.guest), *at_ns, *value)?;
        }
        for (at_ns, text) in &instance.notes.annotations {
            trace.instant(self.process, thread, text, *at_ns)?;
        }
        Ok(())
    }

    fn write_lines(&mut self, instance: &InstanceTelemetry) -> io::Result<()> {
        #[derive(Serialize)]
        struct Line<'a> {
            of: &'a str,
            guest: &'a str,
            pool: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            engine: Option<u32>,
            text: &'a str,
        }
        let Some(guests) = &mut self.guests else { return Ok(()) };
        for text in &instance.notes.lines {
            let line =
                Line { of: &self.name, guest: &instance.guest, pool: &instance.pool, engine: instance.engine, text };
            serde_json::to_writer(&mut *guests, &line)?;
            guests.write_all(b"\n")?;
        }
        Ok(())
    }
}

/// The phases of a request's life that have both ends.
fn phases(record: &RequestRecord) -> Vec<(&'static str, u64, u64)> {
    let has_way = record.queued_ns > record.arrival_ns;
    let stops = [
        ("arrival", has_way.then_some(record.arrival_ns)),
        ("queue", Some(record.queued_ns)),
        ("prefill", record.scheduled_ns),
        ("transfer", record.transfer_end_ns.and(record.prefill_end_ns)),
        ("decode", record.transfer_end_ns.or(record.prefill_end_ns)),
    ];
    let known: Vec<(&str, u64)> = stops.iter().filter_map(|(phase, at)| Some((*phase, (*at)?))).collect();
    let mut ends: Vec<u64> = known.iter().skip(1).map(|(_, at)| *at).collect();
    ends.extend(record.end_ns);
    known.into_iter().zip(ends).map(|((phase, start), end)| (phase, start, end)).collect()
}
