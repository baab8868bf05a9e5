//! Steps of a run's engines in the output files: `steps.jsonl`, and the engines' tracks in `trace.json`.
//!
//! Engines in real time report their steps from their own threads. Each engine's log has its own lock. The lock of
//! the files is held while a line is written.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};
use vcr_cluster::observe::{Incident, RequestName, StepSink};
use vcr_cluster::record::ns_to_ms;
use vcr_cluster::{PoolConfig, Topology};
use vcr_core::plan::StepPlan;
use vcr_core::{Compilation, ServingEngine};
use vcr_steplog::{EngineLog, Id, StepLine, settings_of};
use vcr_trace::perfetto::PerfettoWriter;

use crate::results::budget::{Budget, Counted};
use crate::results::out_file::{OutFile, part};
use crate::results::pictures::name_of;

pub(crate) type Trace = PerfettoWriter<BufWriter<Counted>>;

/// The place of an engine, or of one of its ranks, in a run.
pub(crate) struct EnginePlace {
    pub(super) pool: String,
    /// Index in the pool, counted over all ranks.
    pub(super) index: u32,
    pub(super) name: String,
    settings: Map<String, Value>,
}

impl EnginePlace {
    /// All places in a cluster, in the order of the run's engines.
    pub(crate) fn all_of(topology: &Topology) -> Vec<Self> {
        let place = |pool: &PoolConfig, index| {
            let name = format!("{} {}", pool.name, pool.rank_name(index));
            Self { pool: pool.name.clone(), index, name, settings: settings_of(&pool.engine) }
        };
        let pools = topology.pools().into_iter();
        pools.flat_map(|pool| (0..pool.most_ranks()).map(move |index| place(pool, index))).collect()
    }
}

/// The part of an engine's step log that is not written yet.
#[derive(Default)]
struct EngineSteps {
    log: EngineLog,
    /// Whether the current line already has a schedule.
    scheduled: bool,
    /// Requests that arrived after that schedule and therefore belong to the next line.
    submitted_later: Vec<u64>,
    /// Whether the engine's settings are written.
    wrote_settings: bool,
    /// Buffer for a line.
    text: Vec<u8>,
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

    fn submitted(&mut self, tag: u64) {
        if self.scheduled {
            self.submitted_later.push(tag);
        } else {
            self.log.added(tag);
        }
    }
}

struct Open {
    steps: Option<BufWriter<Counted>>,
    trace: Option<Trace>,
    /// The first error of an observer call; observers cannot return errors.
    failure: Option<io::Error>,
}

impl Open {
    fn keep(&mut self, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            self.failure.get_or_insert(error);
        }
    }
}

pub(crate) struct StepFiles {
    run: String,
    engines: Vec<EnginePlace>,
    logs: Vec<Mutex<EngineSteps>>,
    /// Process number of the engines in the trace.
    process: u64,
    drafts: PathBuf,
    budget: Arc<Budget>,
    /// Whether any of these files was wanted at the start, and whether a step log was.
    are_wanted: bool,
    has_log: bool,
    open: Mutex<Open>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The lock may be poisoned by a panic, which is reported separately.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StepFiles {
    pub(crate) fn open(
        drafts: PathBuf,
        (index, run): (usize, &str),
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
                out.write_all(Trace::HEADER)?;
            }
            let mut events = PerfettoWriter::continued(out);
            events.process_name(process, &format!("{run}: engines"))?;
            events.process_name(process + 1, &format!("{run}: requests"))?;
            for (worker, engine) in engines.iter().enumerate() {
                events.thread_name(process, worker as u64 + 1, &engine.name)?;
            }
            trace = Some(events);
        }
        let steps = wants(OutFile::Steps).then(|| counted(OutFile::Steps)).transpose()?;
        Ok(Self {
            run: run.to_owned(),
            logs: engines.iter().map(|_| Mutex::default()).collect(),
            engines,
            process,
            drafts,
            budget: Arc::clone(budget),
            are_wanted: steps.is_some() || trace.is_some(),
            has_log: steps.is_some(),
            open: Mutex::new(Open { steps, trace, failure: None }),
        })
    }

    pub(super) fn engines(&self) -> &[EnginePlace] {
        &self.engines
    }

    /// Process number of the engines in the trace. The next number is that of the requests.
    pub(super) fn process(&self) -> u64 {
        self.process
    }

    /// Whether any file needs single steps.
    pub(crate) fn are_wanted(&self) -> bool {
        self.are_wanted && !self.budget.is_spent()
    }

    pub(super) fn with_trace(&self, write: impl FnOnce(&mut Trace) -> io::Result<()>) -> io::Result<()> {
        lock(&self.open).trace.as_mut().map_or(Ok(()), write)
    }

    /// Removes the step files of all runs if they have become too large.
    fn keep_to_budget(&self, open: &mut Open) {
        if !self.budget.is_spent() || (open.steps.is_none() && open.trace.is_none()) {
            return;
        }
        (open.steps, open.trace) = (None, None);
        for entry in fs::read_dir(&self.drafts).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_of = |file: OutFile| name.to_string_lossy().starts_with(file.file_name());
            if is_of(OutFile::Steps) || is_of(OutFile::Trace) {
                // Another run may already have removed the file. The folder is removed at the end in any case.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Records that a request entered an engine under its number in the run.
    pub(crate) fn arrived(&self, worker: u32, tag: u64) {
        lock(&self.logs[worker as usize]).submitted(tag);
    }

    /// Writes the content of an engine's log. `times_ns` is the start and end of its step.
    fn write_line(&self, worker: u32, engine: &mut EngineSteps, times_ns: Option<(u64, u64)>) {
        let Some(mut line) = engine.take_line().filter(|_| self.has_log) else {
            return self.keep_to_budget(&mut lock(&self.open));
        };
        let EnginePlace { pool, index, settings, .. } = &self.engines[worker as usize];
        line.settings = (!std::mem::replace(&mut engine.wrote_settings, true)).then(|| settings.clone());
        line.of = Some(self.run.clone());
        line.pool = Some(pool.clone());
        line.engine = Some(*index);
        line.start_ms = times_ns.map(|(start_ns, _)| ns_to_ms(start_ns));
        line.duration_ms = times_ns.map(|(start_ns, end_ns)| ns_to_ms(end_ns - start_ns));
        engine.text.clear();
        let made = serde_json::to_writer(&mut engine.text, &line).map_err(io::Error::from);
        engine.text.push(b'\n');
        let mut open = lock(&self.open);
        if let Some(steps) = &mut open.steps {
            let outcome = made.and_then(|()| steps.write_all(&engine.text));
            open.keep(outcome);
        }
        self.keep_to_budget(&mut open);
    }

    fn trace_step(
        &self,
        trace: &mut Trace,
        worker: u32,
        (start_ns, end_ns): (u64, u64),
        (plan, engine): (&StepPlan, &dyn ServingEngine),
    ) -> io::Result<()> {
        let shape = &plan.shape;
        let name = match (shape.prefill_requests, shape.decode_requests) {
            (0, _) => "decode",
            (_, 0) => "prefill",
            _ => "mixed",
        };
        let args = [
            ("prefill_tokens", shape.prefill_tokens),
            ("decode_requests", shape.decode_requests),
            ("preempted", plan.preempted.len() as u64),
        ];
        trace.slice(self.process, u64::from(worker) + 1, name, start_ns, end_ns - start_ns, &args)?;
        let counters = [
            ("running", engine.load().num_running as u64),
            ("waiting", engine.load().num_waiting as u64),
            ("kv_blocks", shape.kv_active_blocks),
        ];
        trace.counter(self.process, &self.engines[worker as usize].name, start_ns, &counters)
    }

    /// Writes the remaining content of all logs. Returns the first error of any write.
    pub(crate) fn finish_steps(&self) -> io::Result<()> {
        if self.are_wanted() {
            for (worker, engine) in self.logs.iter().enumerate() {
                self.write_line(worker as u32, &mut lock(engine), None);
            }
        }
        lock(&self.open).failure.take().map_or(Ok(()), Err)
    }

    pub(crate) fn close(&self) -> io::Result<()> {
        let mut open = lock(&self.open);
        open.steps.as_mut().map_or(Ok(()), Write::flush)?;
        open.trace.as_mut().map_or(Ok(()), PerfettoWriter::flush)?;
        self.keep_to_budget(&mut open);
        Ok(())
    }
}

impl StepFiles {
    /// Records something that comes before the next schedule.
    fn log_between_steps(&self, worker: u32, log: impl FnOnce(&mut EngineLog)) {
        if !self.are_wanted() {
            return;
        }
        let mut engine = lock(&self.logs[worker as usize]);
        if engine.scheduled {
            self.write_line(worker, &mut engine, None);
        }
        log(&mut engine.log);
    }
}

impl StepSink for StepFiles {
    fn submitted(&self, worker: u32, tag: u64, name: RequestName<'_>) {
        if !self.are_wanted() {
            return;
        }
        let mut engine = lock(&self.logs[worker as usize]);
        let name = match name {
            RequestName::Number(number) => Id::Number(number),
            RequestName::Text(text) => Id::Name(text.to_owned()),
        };
        engine.log.name(tag, name);
        engine.submitted(tag);
    }

    fn aborted(&self, worker: u32, tag: u64) {
        self.log_between_steps(worker, |log| log.aborted(tag));
    }

    fn compiled(&self, worker: u32, tag: u64, compilation: Compilation) {
        self.log_between_steps(worker, |log| log.compiled(tag, compilation));
    }

    fn failed(&self, worker: u32, tag: u64) {
        self.log_between_steps(worker, |log| log.failed(tag));
    }

    fn scheduled(&self, worker: u32, engine: &dyn ServingEngine) {
        if !self.are_wanted() {
            return;
        }
        let mut steps = lock(&self.logs[worker as usize]);
        if steps.scheduled {
            self.write_line(worker, &mut steps, None);
        }
        steps.log.scheduled(engine);
        steps.scheduled = true;
        if engine.plan().scheduled.is_empty() && !engine.step_in_flight() {
            steps.log.applied(engine);
            self.write_line(worker, &mut steps, None);
        }
    }

    fn started(&self, worker: u32, times_ns: (u64, u64), plan: &StepPlan, engine: &dyn ServingEngine) {
        if !self.are_wanted() {
            return;
        }
        let mut open = lock(&self.open);
        if let Some(trace) = &mut open.trace {
            let outcome = self.trace_step(trace, worker, times_ns, (plan, engine));
            open.keep(outcome);
        }
    }

    fn applied(&self, worker: u32, start_ns: u64, end_ns: u64, engine: &dyn ServingEngine) {
        if !self.are_wanted() {
            return;
        }
        let mut steps = lock(&self.logs[worker as usize]);
        // Steps that only preempted requests have no result, so they are completed first.
        while steps.log.next_is_empty() {
            steps.log.applied(engine);
        }
        steps.log.applied(engine);
        self.write_line(worker, &mut steps, Some((start_ns, end_ns)));
    }

    fn cache_changed(&self, worker: u32, engine: &dyn ServingEngine) {
        if self.are_wanted() {
            lock(&self.logs[worker as usize]).log.cache_changed(engine);
        }
    }

    fn ended(&self, worker: u32) {
        let mut engine = lock(&self.logs[worker as usize]);
        self.write_line(worker, &mut engine, None);
        *engine = EngineSteps::default();
    }

    fn incident(&self, worker: u32, at_ns: u64, incident: Incident) {
        let mut open = lock(&self.open);
        if let Some(trace) = &mut open.trace {
            let outcome = trace.instant(self.process, u64::from(worker) + 1, name_of(incident), at_ns);
            open.keep(outcome);
        }
    }
}
