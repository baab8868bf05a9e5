//! `--out DIR`: requests, steps and a trace, one file each for all runs.
//!
//! Runs may go on side by side, so each writes parts of its own, and the parts
//! are joined in the order of the runs: the files are the same whatever the
//! thread count.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use vcr_cluster::Report;
use vcr_cluster::observe::{Incident, StepRecord};
use vcr_cluster::record::{RequestRecord, ns_to_ms};
use vcr_core::plan::{ScheduledKind, ScheduledRequest, StepPlan};
use vcr_trace::perfetto::PerfettoWriter;

const PARTS: [&str; 3] = ["requests.jsonl", "steps.jsonl", "trace.json"];

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
    pub(crate) fn open_run(&self, index: usize, name: &str, pools: &[(String, u32)]) -> io::Result<RunFiles> {
        self.runs_opened.fetch_max(index + 1, Ordering::Relaxed);
        let open = |kind| File::create(self.part(index, kind)).map(BufWriter::new);
        let engines = pools.iter().flat_map(|(pool, count)| (0..*count).map(move |engine| (pool.clone(), engine)));
        let engines: Vec<(String, u32)> = engines.collect();
        let mut trace = PerfettoWriter::continued(open(PARTS[2])?);
        let process = index as u64 * 2 + 1;
        trace.process_name(process, &format!("{name}: engines"))?;
        trace.process_name(process + 1, &format!("{name}: requests"))?;
        for (worker, (pool, engine)) in engines.iter().enumerate() {
            trace.thread_name(process, worker as u64 + 1, &format!("{pool} {engine}"))?;
        }
        Ok(RunFiles {
            name: name.to_owned(),
            engines,
            process,
            requests: open(PARTS[0])?,
            steps: open(PARTS[1])?,
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

/// The parts of one run.
pub(crate) struct RunFiles {
    name: String,
    /// Pool and index of each engine.
    engines: Vec<(String, u32)>,
    process: u64,
    requests: BufWriter<File>,
    steps: BufWriter<File>,
    trace: PerfettoWriter<BufWriter<File>>,
    /// The first error of an observation, which has nobody to report it to.
    failure: Option<io::Error>,
}

/// A line of `steps.jsonl`. `sched`, `tot`, `pre`, `run`, `wait` and `free` mean
/// what they mean in recordings of the real scheduler: for each scheduled request
/// its id, its tokens, its computed tokens, its kind (`n`ew, `p`reempted before,
/// `r`unning) and its new blocks; all tokens; preempted ids; the running list;
/// how many wait; how many blocks are free.
#[derive(Serialize)]
struct StepRow<'a> {
    of: &'a str,
    pool: &'a str,
    engine: u32,
    s: u64,
    start_ms: f64,
    duration_ms: f64,
    sched: Vec<(u64, u32, u32, &'static str, &'a [u32])>,
    tot: u32,
    #[serde(skip_serializing_if = "<[u64]>::is_empty")]
    pre: &'a [u64],
    run: Vec<u64>,
    wait: usize,
    free: u32,
}

impl RunFiles {
    pub(crate) fn step(&mut self, step: &StepRecord<'_>) {
        let outcome = self.write_step(step).and_then(|()| self.trace_step(step));
        self.keep(outcome);
    }

    pub(crate) fn incident(&mut self, worker: u32, at_ns: u64, incident: Incident) {
        let name = match incident {
            Incident::Crash => "crash",
            Incident::Restart => "restart",
            Incident::SlowDown => "slow-down",
            Incident::SlowDownEnd => "slow-down ends",
        };
        let outcome = self.trace.instant(self.process, u64::from(worker) + 1, name, at_ns);
        self.keep(outcome);
    }

    fn keep(&mut self, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            self.failure.get_or_insert(error);
        }
    }

    fn write_step(&mut self, step: &StepRecord<'_>) -> io::Result<()> {
        let plan: &StepPlan = step.plan;
        let (pool, engine) = &self.engines[step.worker as usize];
        let row = StepRow {
            of: &self.name,
            pool,
            engine: *engine,
            s: step.step,
            start_ms: ns_to_ms(step.start_ns),
            duration_ms: ns_to_ms(step.end_ns - step.start_ns),
            sched: plan.scheduled.iter().map(|entry| scheduled_row(plan, entry)).collect(),
            tot: plan.total_num_scheduled_tokens,
            pre: &plan.preempted,
            run: step.engine.running_tags().collect(),
            wait: step.engine.num_waiting(),
            free: step.engine.pool().num_free(),
        };
        serde_json::to_writer(&mut self.steps, &row)?;
        self.steps.write_all(b"\n")
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
        let (pool, engine) = &self.engines[step.worker as usize];
        let counters = [
            ("running", step.engine.num_running() as u64),
            ("waiting", step.engine.num_waiting() as u64),
            ("kv_blocks", shape.kv_active_blocks),
        ];
        self.trace.counter(self.process, &format!("{pool} {engine}"), step.start_ns, &counters)
    }

    /// Writes the requests and closes the parts.
    pub(crate) fn finish(mut self, report: &Report) -> io::Result<()> {
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
        self.requests.flush()?;
        self.steps.flush()?;
        self.trace.flush()
    }
}

fn scheduled_row<'a>(plan: &'a StepPlan, entry: &ScheduledRequest) -> (u64, u32, u32, &'static str, &'a [u32]) {
    let kind = match entry.kind {
        ScheduledKind::New => "n",
        ScheduledKind::Resumed => "p",
        ScheduledKind::Running => "r",
    };
    (entry.tag, entry.num_scheduled_tokens, entry.num_computed_tokens, kind, plan.blocks_of(entry))
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
