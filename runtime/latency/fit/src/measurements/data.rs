//! Measured requests: reading them, checking them, and turning them into a workload.
//!
//! A fit accepts everything that `vcr-trace` reads: captures, tables with a row per request, and reports of
//! load generators. The simulation uses a request's arrival, lengths and content. The request's times are compared
//! with the simulation.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use vcr_fitted::ProvenanceInput;
use vcr_trace::capture::CaptureLine;
use vcr_trace::import::{Format, ImportError, ImportOptions, QUEUE_FROM_ARRIVAL};
use vcr_trace::{FormatError, FormatOption, Trace};

use crate::error::FitError;
use crate::measurements::aggregates::{self, MadeUp, Point};
use crate::measurements::checks;
use crate::measurements::digest::digest;
use crate::measurements::emitted::{self, Emitter, MessageTime};
use crate::measurements::measured::Measured;
use crate::measurements::recorded::{self, RecordedSteps};
use crate::measurements::row::{Row, emitter};
use crate::measurements::steplog::{self, KvCache};
use crate::measurements::workload::{share_cached, workload};

/// The source name in captures of `vcr record`.
const RECORDER: &str = "record";
/// The source name in captures of `vcr run`.
const RUN: &str = "run";
/// Fewer steps contain less information than the times of requests.
const MIN_EMITTED_STEPS: usize = 200;

/// Options for reading measurements.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// The file format. None means that it is detected.
    pub format: Option<Format>,
    /// Pairs of a standard column name and its name in the table, such as `ttft_ms` and `first_token`.
    pub columns: Vec<(String, String)>,
    /// Number of prompt tokens per block id or hash.
    pub block_size_tokens: Option<NonZeroU32>,
    /// Whether think times between the turns of a session are kept, instead of recorded arrivals.
    pub sessions: bool,
}

/// Requests from one or several files that one engine served, in order of arrival. Their content is kept as a
/// workload.
#[derive(Clone, Debug)]
pub struct Measurements {
    name: String,
    requests: Vec<Measured>,
    trace: Arc<Trace>,
    inputs: Vec<ProvenanceInput>,
    warnings: Vec<String>,
    vllm_version: Option<String>,
    gpu: Option<String>,
    /// The requests of a capture that has the times of engine messages.
    emitters: Arc<Vec<Emitter>>,
    steps: Arc<RecordedSteps>,
    most_at_once: Option<u32>,
    /// Whether queue times count from the arrival, and not from the end of the step under way.
    has_queue_from_arrival: bool,
    /// The report of the whole load, if single requests are unknown.
    point: Option<Arc<Point>>,
}

impl Measurements {
    /// Reads a file: one load, or all loads of a load generator's report.
    ///
    /// # Errors
    /// If the file cannot be read or its contents are impossible; see [`FitError`].
    pub fn read_all(path: &Path, options: &ReadOptions) -> Result<Vec<Self>, FitError> {
        const WITH_TOTALS: [Format; 5] =
            [Format::Guidellm, Format::VllmBench, Format::SglangBench, Format::Aiperf, Format::InferencePerf];
        let is_open = options.format.is_none_or(|format| WITH_TOTALS.contains(&format)) && options.columns.is_empty();
        let points = if is_open { aggregates::read(path)? } else { None };
        let Some(points) = points else { return Ok(vec![Self::read(path, options)?]) };
        let sha256 = digest(path).map_err(|source| FitError::Read { path: path.to_owned(), source })?;
        points.into_iter().map(|point| Ok(Self::of_point(path, &sha256, point))).collect()
    }

    /// Generates a load with the properties of a report.
    fn of_point(path: &Path, sha256: &str, point: Point) -> Self {
        let row = |made: MadeUp| Row {
            measured: Measured {
                arrival_ns: made.arrival_ns,
                prompt_tokens: made.prompt_tokens,
                output_tokens: made.output_tokens,
                is_whole: true,
                ..Measured::default()
            },
            blocks: Vec::new(),
            items: Vec::new(),
            session: made.sender.map(|sender| sender.to_string()),
            think_ns: Some(0),
            priority: 0,
        };
        let rows: Vec<Row> = point.requests().into_iter().map(row).collect();
        let trace = Arc::new(workload(&rows, 16, true));
        let path = path.display().to_string();
        let name = format!("{path} ({})", point.name);
        let input =
            ProvenanceInput { path, sha256: sha256.to_owned(), requests: u64::from(point.requests), part: None };
        Self {
            name,
            requests: rows.into_iter().map(|row| row.measured).collect(),
            trace,
            inputs: vec![input],
            warnings: Vec::new(),
            vllm_version: None,
            gpu: None,
            emitters: Arc::default(),
            steps: Arc::default(),
            most_at_once: point.most_at_once(),
            has_queue_from_arrival: false,
            point: Some(Arc::new(point)),
        }
    }

    /// A generated load without measurements.
    pub(crate) fn made_up(point: Point) -> Self {
        Self::of_point(Path::new(""), "", point)
    }

    pub(crate) fn point(&self) -> Option<&Point> {
        self.point.as_deref()
    }

    /// Maximum number of requests that the load generator had in progress. Others waited for one to end.
    pub(crate) fn most_at_once(&self) -> Option<u32> {
        self.most_at_once
    }

    /// Whether queue times count from the arrival, as in the files of `vcr run`. Other sources count from the end of
    /// the step under way, as vLLM does.
    pub(crate) fn has_queue_from_arrival(&self) -> bool {
        self.has_queue_from_arrival
    }

    /// Whether any of its times can be compared with a simulation.
    pub(crate) fn is_compared(&self) -> bool {
        self.point.is_some() || self.requests.iter().any(|request| request.is_whole && request.ttft_ns.is_some())
    }

    /// The same load without its report.
    pub(crate) fn without_point(&self) -> Self {
        Self { point: None, ..self.clone() }
    }

    /// Reads a file with requests.
    ///
    /// # Errors
    /// If the file cannot be read or has impossible values; see [`FitError`].
    pub fn read(path: &Path, options: &ReadOptions) -> Result<Self, FitError> {
        let name = path.display().to_string();
        // If columns are named, the file is a table, even if its header does not show this.
        let is_table = !options.columns.is_empty();
        let import = ImportOptions {
            format: options.format.or(is_table.then_some(Format::Requests)),
            format_option: Some(FormatOption { format: "--from", timestamp_unit: None }),
            block_size_tokens: options.block_size_tokens,
            columns: options.columns.clone(),
            ..ImportOptions::default()
        };
        let mut rows = Vec::new();
        let (mut emitters, mut messages) = (Some(Vec::new()), Vec::new());
        let (mut is_recorded, mut has_queue_from_arrival) = (false, false);
        let (mut block_size_tokens, mut vllm_version, mut gpu, mut most_at_once) = (None, None, None, None);
        let imported = vcr_trace::import::import(path, &import, &mut |line| {
            match line {
                CaptureLine::Meta(meta) => {
                    block_size_tokens = block_size_tokens.or(meta.block_size_tokens);
                    vllm_version = vllm_version.take().or(meta.vllm_version);
                    gpu = gpu.take().or(meta.gpu);
                    let limit = meta.other.get("max_concurrency").and_then(Value::as_u64);
                    most_at_once = most_at_once.or(limit.and_then(|limit| u32::try_from(limit).ok()));
                    is_recorded |= meta.source.as_deref() == Some(RECORDER);
                    let is_from_arrival = meta.other.get(QUEUE_FROM_ARRIVAL).is_some_and(|is_so| is_so == true);
                    has_queue_from_arrival |= is_from_arrival || meta.source.as_deref() == Some(RUN);
                }
                // The chunks of an answer over HTTP do not show steps.
                CaptureLine::Http(_) => emitters = None,
                CaptureLine::Engine(engine) => vllm_version = vllm_version.take().or(engine.vllm_version),
                CaptureLine::Step(step) => messages.push(MessageTime {
                    rank: step.rank,
                    at_ns: step.at_ns,
                    engine_ns: step.engine_ns.unwrap_or(step.at_ns),
                }),
                CaptureLine::Request(record) if rows.len() <= checks::MAX_REQUESTS => {
                    // Steps are known only if all of their requests are known.
                    emitters = emitters.take().and_then(|mut emitters| {
                        emitters.push(emitter(&record)?);
                        Some(emitters)
                    });
                    rows.push(Row::new(*record));
                }
                _ => {}
            }
            Ok(())
        })
        .map_err(|error| unknown_columns(&name, error))?;
        let mut rows: Vec<Row> =
            rows.into_iter().collect::<Result<_, _>>().map_err(|what| FitError::data(&name, what))?;
        rows.sort_by_key(|row| row.measured.arrival_ns);
        let measured: Vec<&Measured> = rows.iter().map(|row| &row.measured).collect();
        let unused: Vec<&str> = imported.notes.iter().filter_map(|note| column_of(&note.what)).collect();
        let most_at_once = most_at_once.filter(|most| most_in_flight(&measured) <= *most);
        let mut warnings = checks::rows(&name, &measured, &unused)?;
        warnings.extend(unused_columns(&unused).map(|text| format!("{name}: {text}")));
        let others = imported.notes.iter().filter(|note| column_of(&note.what).is_none());
        warnings.extend(others.map(|note| format!("{name}: {}", note.sentence())));
        let sha256 = digest(path).map_err(|source| FitError::Read { path: path.to_owned(), source })?;
        let input = ProvenanceInput { path: name.clone(), sha256, requests: rows.len() as u64, part: None };
        let block_size_tokens = block_size_tokens.filter(|size| *size > 0).unwrap_or(16);
        let has_blocks = rows.iter().any(|row| !row.blocks.is_empty());
        if !has_blocks {
            share_cached(&mut rows, block_size_tokens, &name, &mut warnings);
        }
        let trace = Arc::new(workload(&rows, block_size_tokens, options.sessions));
        let requests = rows.into_iter().map(|row| row.measured).collect();
        let emitters = emitters.filter(|_| is_recorded);
        let emitters = Arc::new(emitters.and_then(|all| emitted::at_messages(all, &messages)).unwrap_or_default());
        let inputs = vec![input];
        Ok(Self {
            name,
            requests,
            trace,
            inputs,
            warnings,
            vllm_version,
            gpu,
            emitters,
            steps: Arc::default(),
            most_at_once,
            has_queue_from_arrival,
            point: None,
        })
    }

    /// Adds the steps of the engine's log, and with `cache` the use of the engine's KV cache.
    ///
    /// # Errors
    /// If the log cannot be read or has no step durations.
    pub(crate) fn with_steps(mut self, path: &Path, cache: Option<KvCache>) -> Result<Self, FitError> {
        self.steps = Arc::new(steplog::read(path, cache)?);
        let sha256 = digest(path).map_err(|source| FitError::Read { path: path.to_owned(), source })?;
        let path = path.display().to_string();
        self.inputs.push(ProvenanceInput { path, sha256, requests: 0, part: None });
        Ok(self)
    }

    /// Adds the steps that follow from the times of single tokens, if these times are known
    /// and no log was given.
    pub(crate) fn with_emitted_steps(mut self, max_num_batched_tokens: u32, is_async: bool) -> Self {
        if self.steps.is_empty() && !self.emitters.is_empty() {
            let steps = emitted::steps(&self.emitters, u64::from(max_num_batched_tokens), is_async);
            if recorded::compared(&steps).count() >= MIN_EMITTED_STEPS {
                self.steps = Arc::new(steps);
            }
        }
        self
    }

    /// The recorded steps, by engine. Empty if there are none.
    pub(crate) fn steps(&self) -> &RecordedSteps {
        &self.steps
    }

    /// Name of the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The requests, in order of arrival.
    #[must_use]
    pub fn requests(&self) -> &[Measured] {
        &self.requests
    }

    /// The requests as a workload, in the same order.
    #[must_use]
    pub fn trace(&self) -> &Arc<Trace> {
        &self.trace
    }

    /// The files, for provenance.
    #[must_use]
    pub fn inputs(&self) -> &[ProvenanceInput] {
        &self.inputs
    }

    /// Warnings about the data.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The version of vLLM, if the file states it.
    #[must_use]
    pub fn vllm_version(&self) -> Option<&str> {
        self.vllm_version.as_deref()
    }

    /// The GPU, if the file states it.
    #[must_use]
    pub fn gpu(&self) -> Option<&str> {
        self.gpu.as_deref()
    }

    /// Keeps only the requests and recorded steps for which `is_compared` holds; the others only load the engine. The
    /// arguments of `is_compared` are the index among the requests that were compared before, and their number.
    #[must_use]
    pub fn compared(&self, is_compared: impl Fn(usize, usize) -> bool) -> Self {
        let mut part = self.clone();
        keep(part.requests.iter_mut().map(|request| &mut request.is_whole), &is_compared);
        for steps in Arc::make_mut(&mut part.steps) {
            keep(steps.iter_mut().map(|step| &mut step.is_compared), &is_compared);
        }
        part
    }

    /// Compares only requests that arrived more than `lasts_ns` after the first request, and only steps that began more
    /// than `lasts_ns` after the first step.
    #[must_use]
    pub(crate) fn after(&self, lasts_ns: u64) -> Self {
        let mut rest = self.clone();
        let first_ns = rest.requests.first().map_or(0, |request| request.arrival_ns);
        for request in &mut rest.requests {
            request.is_whole &= request.arrival_ns - first_ns > lasts_ns;
        }
        for steps in Arc::make_mut(&mut rest.steps) {
            let first_ns = steps.first().map_or(0, |step| step.start_ns);
            for step in steps {
                step.is_compared &= step.start_ns.saturating_sub(first_ns) > lasts_ns;
            }
        }
        rest
    }

    /// The same data, of which only the requests between two fractions of all requests, in order of arrival, are
    /// compared. The provenance states this part.
    #[must_use]
    pub fn part(&self, from: f64, to: f64) -> Self {
        let mut part = self.compared(|index, count| (from..to).contains(&(index as f64 / count as f64)));
        for input in &mut part.inputs {
            input.part = Some([from, to]);
        }
        part
    }
}

/// Clears the flags for which `is_kept` does not hold. Its arguments are the index among the flags that are set, and
/// their number.
fn keep<'f>(flags: impl Iterator<Item = &'f mut bool>, is_kept: impl Fn(usize, usize) -> bool) {
    let set: Vec<&mut bool> = flags.filter(|flag| **flag).collect();
    let count = set.len();
    for (index, flag) in set.into_iter().enumerate() {
        *flag = is_kept(index, count);
    }
}

/// Maximum number of requests in progress at once. A request that ends when another begins does not overlap it.
fn most_in_flight(requests: &[&Measured]) -> u32 {
    let spans = requests.iter().filter_map(|request| Some((request.arrival_ns, request.e2e_ns?)));
    let mut changes: Vec<(u64, i32)> =
        spans.flat_map(|(from, e2e_ns)| [(from, 1), (from.saturating_add(e2e_ns), -1)]).collect();
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    most.unsigned_abs()
}

/// The error for a table with unknown columns, with a hint what to do.
fn unknown_columns(name: &str, error: ImportError) -> FitError {
    match error {
        ImportError::Format(FormatError::UnknownColumns { columns, .. }) => FitError::data(
            name,
            format!(
                "the columns are {columns}: expected arrival_ms, prompt_tokens, output_tokens, ttft_ms and e2e_ms; say \
                 which column is which with `--map prompt_tokens=COLUMN --map ttft_ms=COLUMN`"
            ),
        ),
        ImportError::Item { name, place, field, problem } if problem.starts_with("invalid column") => {
            let problem = format!("{problem}, or name it with its unit: `--map {field}_ms={field}`");
            ImportError::Item { name, place, field, problem }.into()
        }
        ImportError::Item { name, place, field, problem } if problem.starts_with("the row has none") => {
            let problem = format!("{problem}, or say which column it is: `--map {field}=COLUMN`");
            ImportError::Item { name, place, field, problem }.into()
        }
        error => error.into(),
    }
}

fn unused_columns(names: &[&str]) -> Option<String> {
    let listed = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => None,
        1 => Some(format!("values of the column {listed} were not used")),
        _ => Some(format!("values of the columns {listed} were not used")),
    }
}

fn column_of(note: &str) -> Option<&str> {
    note.strip_prefix("values of the column `")?.strip_suffix('`')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Measurements {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        Measurements::read(file.path(), &ReadOptions::default()).expect("measurements")
    }

    #[test]
    fn queue_times_of_runs_count_from_the_arrival() {
        let row = |id: u32| {
            let (arrival_ms, prompt_tokens) = (f64::from(id) * 100.0, 20 + id);
            let [scheduled_ms, first_ms, last_ms] =
                [4.0, 20.0 + f64::from(id), 50.0 + 3.0 * f64::from(id)].map(|after_ms| arrival_ms + after_ms);
            format!(
                r#"{{"of":"a","id":{id},"workload":"w","session":{id},"turn":0,"status":"completed","prompt_tokens":{prompt_tokens},"max_tokens":5,"output_tokens":5,"cached_tokens":0,"arrival_ms":{arrival_ms},"scheduled_ms":{scheduled_ms},"prefill_end_ms":{first_ms},"first_token_ms":{first_ms},"last_token_ms":{last_ms},"end_ms":{last_ms},"engine":"engines 0","preemptions":0,"retries":0}}"#
            )
        };
        let run = read(&(0..25).map(row).collect::<Vec<_>>().join("\n"));
        assert_eq!((run.requests()[3].queue_ns, run.has_queue_from_arrival()), (Some(4_000_000), true));
        let row = |id: u32| format!("{},20,5,{},{},4\n", id * 100, 20 + id, 50 + 3 * id);
        let header = "arrival_ms,prompt_tokens,output_tokens,ttft_ms,e2e_ms,queue_ms\n";
        assert!(run.warnings().is_empty(), "{:?}", run.warnings());
        let table = read(&format!("{header}{}", (0..25).map(row).collect::<String>()));
        assert_eq!((table.requests()[3].queue_ns, table.has_queue_from_arrival()), (Some(4_000_000), false));
    }

    #[test]
    fn unused_columns_share_one_warning() {
        let row = |id: u32| format!("{},{},5,{},{},x,y\n", id * 100, 20 + id, 20 + id, 50 + 3 * id);
        let rows = (0..25).map(row).collect::<String>();
        let table = read(&format!("arrival_ms,prompt_tokens,output_tokens,ttft_ms,e2e_ms,status,note\n{rows}"));
        let [warning] = table.warnings() else { panic!("{:?}", table.warnings()) };
        assert!(warning.ends_with(": values of the columns `note`, `status` were not used"), "{warning}");
    }

    /// A mean over all gaps would hide the steps with prefills.
    #[test]
    fn results_of_vllm_bench_are_read_request_by_request() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let starts: Vec<f64> = (0..20).map(|index| 100.0 + 1.5 * f64::from(index)).collect();
        let (prompts, ttfts, gaps) =
            ([10, 20].repeat(10), [0.5, 0.25].repeat(10), [[0.01, 0.02], [0.03, 0.01]].repeat(10));
        let result = serde_json::json!({"date": "x", "endpoint_type": "vllm", "backend": "vllm", "model_id": "m",
            "request_rate": "inf", "max_concurrency": 2, "completed": 20, "input_lens": prompts,
            "output_lens": vec![3; 20], "ttfts": ttfts, "itls": gaps, "start_times": starts, "errors": vec![""; 20],
            "mean_ttft_ms": 375});
        std::fs::write(file.path(), result.to_string()).expect("written");
        let read = Measurements::read_all(file.path(), &ReadOptions::default()).expect("measurements");
        let [load] = &read[..] else { panic!("one load") };
        assert!(load.point().is_none());
        let requests: Vec<_> = load.requests().iter().map(|r| (r.arrival_ns, r.ttft_ns, r.gaps_ns.clone())).collect();
        assert_eq!(requests[0], (0, Some(500_000_000), vec![10_000_000, 20_000_000]));
        assert_eq!(requests[1], (1_500_000_000, Some(250_000_000), vec![30_000_000, 10_000_000]));
    }
}
