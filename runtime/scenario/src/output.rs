//! `--out DIR`: requests, steps, a trace and what guests log, one file each for
//! all runs.
//!
//! Runs may go on side by side, so each writes parts of its own, and the parts
//! are joined in the order of the runs: the files are the same whatever the
//! thread count.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use serde_json::{Map, Value};
use vcr_cluster::observe::{Incident, StepRecord};
use vcr_cluster::record::{RequestRecord, ns_to_ms};
use vcr_cluster::{PoolConfig, Report, Topology};
use vcr_core::{AnyEngine, ServingEngine};
use vcr_steplog::{EngineLog, StepLine, settings_of};
use vcr_trace::perfetto::PerfettoWriter;

use crate::told::SeatOfRun;

const PARTS: [&str; 4] = ["requests.jsonl", "steps.jsonl", "trace.json", GUESTS];

/// The log of guests: only there where one has logged.
const GUESTS: &str = "guests.jsonl";

/// Where the outputs of a scenario go.
pub(crate) struct Outputs {
    folder: PathBuf,
    /// How many runs have parts, or had.
    runs_opened: AtomicUsize,
}

/// Parts that were not joined belong to a scenario that failed, and must not be
/// taken for results.
impl Drop for Outputs {
    fn drop(&mut self) {
        for index in 0..*self.runs_opened.get_mut() {
            for kind in PARTS {
                // Most often it has been joined and is gone.
                let _ = std::fs::remove_file(self.part(index, kind));
            }
        }
    }
}

impl Outputs {
    pub(crate) fn create(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self { folder: folder.to_owned(), runs_opened: AtomicUsize::new(0) })
    }

    /// Opens the parts of run number `index`.
    pub(crate) fn open_run(&self, index: usize, name: &str, engines: Vec<EnginePlace>) -> io::Result<RunFiles> {
        self.runs_opened.fetch_max(index + 1, Ordering::Relaxed);
        let open = |kind| File::create(self.part(index, kind)).map(BufWriter::new);
        let mut trace = PerfettoWriter::continued(open(PARTS[2])?);
        let process = index as u64 * 2 + 1;
        trace.process_name(process, &format!("{name}: engines"))?;
        trace.process_name(process + 1, &format!("{name}: requests"))?;
        for (worker, engine) in engines.iter().enumerate() {
            trace.thread_name(process, worker as u64 + 1, &engine.name)?;
        }
        Ok(RunFiles {
            name: name.to_owned(),
            logs: engines.iter().map(|_| EngineSteps::default()).collect(),
            engines,
            process,
            requests: open(PARTS[0])?,
            steps: open(PARTS[1])?,
            guests: open(GUESTS)?,
            trace,
            failure: None,
        })
    }

    /// Joins the parts of `runs` runs and writes the report.
    pub(crate) fn finish(&self, runs: usize, report: &impl Serialize) -> io::Result<()> {
        for kind in PARTS {
            let mut whole = BufWriter::new(File::create(self.folder.join(kind))?);
            let is_trace = kind == "trace.json";
            if is_trace {
                whole.write_all(PerfettoWriter::<File>::HEADER)?;
            }
            for index in 0..runs {
                if is_trace && index > 0 {
                    whole.write_all(PerfettoWriter::<File>::SEPARATOR)?;
                }
                io::copy(&mut File::open(self.part(index, kind))?, &mut whole)?;
                std::fs::remove_file(self.part(index, kind))?;
            }
            if is_trace {
                whole.write_all(PerfettoWriter::<File>::FOOTER)?;
            }
            whole.flush()?;
            if kind == GUESTS && whole.get_ref().metadata()?.len() == 0 {
                std::fs::remove_file(self.folder.join(kind))?;
            }
        }
        let mut out = BufWriter::new(File::create(self.folder.join("report.json"))?);
        serde_json::to_writer_pretty(&mut out, report)?;
        out.write_all(b"\n")?;
        out.flush()
    }

    fn part(&self, index: usize, kind: &str) -> PathBuf {
        self.folder.join(format!(".{kind}.{index}"))
    }
}

/// Where an engine of a run is, or one rank of it.
pub(crate) struct EnginePlace {
    pool: String,
    /// Index in the pool, over all ranks.
    index: u32,
    name: String,
}

impl EnginePlace {
    /// All that there can be in a cluster, in the order of a run.
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
    requests: BufWriter<File>,
    steps: BufWriter<File>,
    guests: BufWriter<File>,
    /// By engine of the run.
    logs: Vec<EngineSteps>,
    trace: PerfettoWriter<BufWriter<File>>,
    /// The first error of an observation, which has nobody to report it to.
    failure: Option<io::Error>,
}

/// The step log of one engine, as far as it is not written.
#[derive(Default)]
struct EngineSteps {
    log: EngineLog,
    /// A schedule is in the line that is being put together.
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
        let name = match incident {
            Incident::Crash => "crash",
            Incident::Restart => "restart",
            Incident::SlowDown => "slow-down",
            Incident::SlowDownEnd => "slow-down ends",
            Incident::Stall => "stall",
            Incident::StallEnd => "stall ends",
            Incident::StartUp => "start-up",
            Incident::Up => "up",
            Incident::Drain => "drain",
            Incident::Off => "off",
        };
        if matches!(incident, Incident::Crash | Incident::Off) {
            // Another engine takes its place; steps in flight came to nothing.
            self.write_line(worker, None);
            self.logs[worker as usize] = EngineSteps::default();
        }
        let outcome = self.trace.instant(self.process, u64::from(worker) + 1, name, at_ns);
        self.keep(outcome);
    }

    /// Writes what an engine's log has; the step whose result is in it took
    /// place between the two times.
    fn write_line(&mut self, worker: u32, times_ns: Option<(u64, u64)>) {
        let Some(mut line) = self.logs[worker as usize].take_line() else { return };
        line.settings = self.logs[worker as usize].settings.take();
        let EnginePlace { pool, index, .. } = &self.engines[worker as usize];
        line.of = Some(self.name.clone());
        line.pool = Some(pool.clone());
        line.engine = Some(*index);
        line.start_ms = times_ns.map(|(start_ns, _)| ns_to_ms(start_ns));
        line.duration_ms = times_ns.map(|(start_ns, end_ns)| ns_to_ms(end_ns - start_ns));
        let outcome = serde_json::to_writer(&mut self.steps, &line).map_err(io::Error::from);
        let outcome = outcome.and_then(|()| self.steps.write_all(b"\n"));
        self.keep(outcome);
    }

    fn keep(&mut self, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            self.failure.get_or_insert(error);
        }
    }

    fn trace_step(&mut self, step: &StepRecord<'_>) -> io::Result<()> {
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
        self.trace.slice(self.process, thread, name, step.start_ns, step.end_ns - step.start_ns, &args)?;
        let counters = [
            ("running", step.engine.num_running() as u64),
            ("waiting", step.engine.num_waiting() as u64),
            ("kv_blocks", shape.kv_active_blocks),
        ];
        self.trace.counter(self.process, &self.engines[step.worker as usize].name, step.start_ns, &counters)
    }

    /// Writes what guests told, the requests, and closes the parts.
    pub(crate) fn finish(mut self, report: &Report, seats: &[SeatOfRun]) -> io::Result<()> {
        for worker in 0..self.logs.len() as u32 {
            self.write_line(worker, None);
        }
        if let Some(error) = self.failure {
            return Err(error);
        }
        #[derive(Serialize)]
        struct Row<'a, R> {
            of: &'a str,
            #[serde(flatten)]
            row: R,
        }
        for (id, (record, row)) in report.requests.iter().zip(report.request_rows()).enumerate() {
            let workload = &report.workload_names[record.workload as usize];
            let row = Row { of: &self.name, row };
            serde_json::to_writer(&mut self.requests, &row)?;
            self.requests.write_all(b"\n")?;
            for (phase, start_ns, end_ns) in phases(record) {
                self.trace.span(self.process + 1, id as u64, workload, phase, start_ns, end_ns)?;
            }
        }
        for seat in seats {
            self.trace_notes(seat)?;
            self.write_lines(seat)?;
        }
        self.requests.flush()?;
        self.steps.flush()?;
        self.guests.flush()?;
        self.trace.flush()
    }

    /// The courses of gauges, and annotations on the track of the engine; those
    /// of a guest that serves a whole pool have a track before all engines.
    fn trace_notes(&mut self, seat: &SeatOfRun) -> io::Result<()> {
        let (place, thread) = match seat.engine {
            Some(engine) => {
                let is_seat = |place: &EnginePlace| place.pool == seat.pool && place.index == engine;
                match self.engines.iter().position(is_seat) {
                    Some(worker) => (self.engines[worker].name.clone(), worker as u64 + 1),
                    None => (format!("{} {engine}", seat.pool), 0),
                }
            }
            None => (seat.pool.clone(), 0),
        };
        for (name, at_ns, value) in &seat.notes.courses {
            self.trace.gauge(self.process, &format!("{place} {}: {name}", seat.guest), *at_ns, *value)?;
        }
        for (at_ns, text) in &seat.notes.annotations {
            self.trace.instant(self.process, thread, text, *at_ns)?;
        }
        Ok(())
    }

    fn write_lines(&mut self, seat: &SeatOfRun) -> io::Result<()> {
        #[derive(Serialize)]
        struct Line<'a> {
            of: &'a str,
            guest: &'a str,
            pool: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            engine: Option<u32>,
            text: &'a str,
        }
        for text in &seat.notes.lines {
            let line = Line { of: &self.name, guest: &seat.guest, pool: &seat.pool, engine: seat.engine, text };
            serde_json::to_writer(&mut self.guests, &line)?;
            self.guests.write_all(b"\n")?;
        }
        Ok(())
    }
}

/// The phases of a request's life that have both ends.
fn phases(record: &RequestRecord) -> Vec<(&'static str, u64, u64)> {
    let stops = [
        ("queue", Some(record.arrival_ns)),
        ("prefill", record.scheduled_ns),
        ("transfer", record.transfer_end_ns.and(record.prefill_end_ns)),
        ("decode", record.transfer_end_ns.or(record.prefill_end_ns)),
    ];
    let known: Vec<(&str, u64)> = stops.iter().filter_map(|(phase, at)| Some((*phase, (*at)?))).collect();
    let mut ends: Vec<u64> = known.iter().skip(1).map(|(_, at)| *at).collect();
    ends.extend(record.end_ns);
    known.into_iter().zip(ends).map(|((phase, start), end)| (phase, start, end)).collect()
}
