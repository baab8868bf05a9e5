//! Measured requests: read, checked, and as a workload.
//!
//! Everything that `vcr-import` reads can be fitted to: captures, tables with a row for
//! each request, reports of load generators. What the simulation needs of a request is
//! when it arrived, its lengths and its content; what it is compared with are its times.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use vcr_fitted::ProvenanceInput;
use vcr_import::{Format, ImportOptions};
use vcr_trace::capture::{CaptureLine, FinishReason, RequestRecord};
use vcr_trace::{ItemRange, Trace, TraceRequest};

use crate::aggregates::{self, MadeUp, Point};
use crate::checks;
use crate::emitted::{self, Emitter};
use crate::error::FitError;
use crate::measured::Measured;
use crate::recorded::{self, RecordedSteps};
use crate::steplog;

/// What captures of `vcr record` say they are from.
const RECORDER: &str = "record";
/// Fewer steps than this say less than the times of requests.
const MIN_EMITTED_STEPS: usize = 200;

/// How measurements are read.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// The format; none to detect it.
    pub format: Option<Format>,
    /// Columns by what they hold: `ttft_ms` is in `first_token`.
    pub columns: Vec<(String, String)>,
    /// Tokens of a prompt block that an id or a hash stands for.
    pub block_size_tokens: Option<NonZeroU32>,
    /// Keep think times between the turns of a session, instead of literal arrivals.
    pub sessions: bool,
}

/// The requests of one or several files that were served by one engine, in order of
/// arrival, with their content as a workload.
#[derive(Clone, Debug)]
pub struct Measurements {
    name: String,
    requests: Vec<Measured>,
    trace: Arc<Trace>,
    inputs: Vec<ProvenanceInput>,
    warnings: Vec<String>,
    vllm_version: Option<String>,
    gpu: Option<String>,
    /// Of a capture whose tokens passed in messages of the engine.
    emitters: Arc<Vec<Emitter>>,
    /// Steps that were recorded; empty if none were.
    steps: Arc<RecordedSteps>,
    /// What was reported of the whole load, where nothing is known of single requests.
    point: Option<Arc<Point>>,
}

/// A request and what is only needed for the workload.
struct Row {
    measured: Measured,
    blocks: Vec<u64>,
    session: Option<String>,
    think_ns: Option<u64>,
    priority: i32,
}

impl Measurements {
    /// Reads a file: one load, or as many as a load generator's report is about.
    ///
    /// # Errors
    /// When it cannot be read, or what it says cannot be: see [`FitError`].
    pub fn read_all(path: &Path, options: &ReadOptions) -> Result<Vec<Self>, FitError> {
        let is_open = options.format.is_none_or(|format| format == Format::Guidellm) && options.columns.is_empty();
        let points = if is_open { aggregates::read(path)? } else { None };
        let Some(points) = points else { return Ok(vec![Self::read(path, options)?]) };
        let sha256 = digest(path).map_err(|source| FitError::Read { path: path.to_owned(), source })?;
        points.into_iter().map(|point| Ok(Self::of_point(path, &sha256, point))).collect()
    }

    /// A load like the one that a report is about.
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
            point: Some(Arc::new(point)),
        }
    }

    /// What was reported of the whole load, where that is all.
    pub(crate) fn point(&self) -> Option<&Point> {
        self.point.as_deref()
    }

    /// Whether anything of it is compared with a simulation.
    pub(crate) fn is_compared(&self) -> bool {
        self.point.is_some() || self.requests.iter().any(|request| request.is_whole && request.ttft_ns.is_some())
    }

    /// The same load without what was reported of it.
    pub(crate) fn without_point(&self) -> Self {
        Self { point: None, ..self.clone() }
    }

    /// Reads a file with requests.
    ///
    /// # Errors
    /// When it cannot be read, or what it says cannot be: see [`FitError`].
    pub fn read(path: &Path, options: &ReadOptions) -> Result<Self, FitError> {
        let name = path.display().to_string();
        // Names of columns say that it is a table, which the columns alone may not.
        let is_table = !options.columns.is_empty();
        let import = ImportOptions {
            format: options.format.or(is_table.then_some(Format::Requests)),
            block_size_tokens: options.block_size_tokens,
            columns: options.columns.clone(),
            ..ImportOptions::default()
        };
        let mut rows = Vec::new();
        let mut emitters = Some(Vec::new());
        let mut is_recorded = false;
        let (mut block_size_tokens, mut vllm_version, mut gpu) = (None, None, None);
        let imported = vcr_import::import(path, &import, &mut |line| {
            match line {
                CaptureLine::Meta(meta) => {
                    block_size_tokens = block_size_tokens.or(meta.block_size_tokens);
                    vllm_version = vllm_version.take().or(meta.vllm_version);
                    gpu = gpu.take().or(meta.gpu);
                    is_recorded |= meta.source.as_deref() == Some(RECORDER);
                }
                CaptureLine::Engine(engine) => vllm_version = vllm_version.take().or(engine.vllm_version),
                CaptureLine::Request(record) => {
                    // Steps are seen only if all that was in them is.
                    emitters = emitters.take().and_then(|mut emitters| {
                        emitters.push(emitter(&record)?);
                        Some(emitters)
                    });
                    rows.push(Row::new(*record));
                }
                _ => {}
            }
            Ok(())
        })?;
        let mut rows: Vec<Row> =
            rows.into_iter().collect::<Result<_, _>>().map_err(|what| FitError::data(&name, what))?;
        rows.sort_by_key(|row| row.measured.arrival_ns);
        let measured: Vec<&Measured> = rows.iter().map(|row| &row.measured).collect();
        let mut warnings = checks::rows(&name, &measured)?;
        warnings.extend(imported.notes.iter().map(|note| format!("{name}: {} {} not used", note.count, note.what)));
        let sha256 = digest(path).map_err(|source| FitError::Read { path: path.to_owned(), source })?;
        let input = ProvenanceInput { path: name.clone(), sha256, requests: rows.len() as u64, part: None };
        let block_size_tokens = block_size_tokens.filter(|size| *size > 0).unwrap_or(16);
        let has_blocks = rows.iter().any(|row| !row.blocks.is_empty());
        if !has_blocks {
            share_cached(&mut rows, block_size_tokens, &name, &mut warnings);
        }
        let trace = Arc::new(workload(&rows, block_size_tokens, options.sessions));
        let requests = rows.into_iter().map(|row| row.measured).collect();
        let emitters = Arc::new(emitters.filter(|_| is_recorded).unwrap_or_default());
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
            point: None,
        })
    }

    /// The same with the steps of the engine's log.
    ///
    /// # Errors
    /// When the log cannot be read, or does not say how long steps took.
    pub fn with_steps(mut self, path: &Path) -> Result<Self, FitError> {
        self.steps = Arc::new(steplog::read(path)?);
        let sha256 = digest(path).map_err(|source| FitError::Read { path: path.to_owned(), source })?;
        let path = path.display().to_string();
        self.inputs.push(ProvenanceInput { path, sha256, requests: 0, part: None });
        Ok(self)
    }

    /// The same with the steps that the times of single tokens show, if there are such and
    /// no log was given.
    pub(crate) fn with_emitted_steps(mut self, max_num_batched_tokens: u32, is_async: bool) -> Self {
        if self.steps.is_empty() && !self.emitters.is_empty() {
            let steps = emitted::steps(&self.emitters, u64::from(max_num_batched_tokens), is_async);
            if recorded::compared(&steps).count() >= MIN_EMITTED_STEPS {
                self.steps = Arc::new(steps);
            }
        }
        self
    }

    /// Steps that were recorded, by engine; empty if none were.
    pub(crate) fn steps(&self) -> &RecordedSteps {
        &self.steps
    }

    /// What the file is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The requests, in order of arrival.
    #[must_use]
    pub fn requests(&self) -> &[Measured] {
        &self.requests
    }

    /// The same as a workload; its requests are in the same order.
    #[must_use]
    pub fn trace(&self) -> &Arc<Trace> {
        &self.trace
    }

    /// The file, for provenance.
    #[must_use]
    pub fn inputs(&self) -> &[ProvenanceInput] {
        &self.inputs
    }

    /// What looks odd.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The version of vLLM, if the file says it.
    #[must_use]
    pub fn vllm_version(&self) -> Option<&str> {
        self.vllm_version.as_deref()
    }

    /// The GPU, if the file says it.
    #[must_use]
    pub fn gpu(&self) -> Option<&str> {
        self.gpu.as_deref()
    }

    /// The same, of which only the requests are compared for which `is_compared` holds,
    /// by their index and the number of all; recorded steps likewise. The others load the
    /// engine.
    #[must_use]
    pub fn compared(&self, is_compared: impl Fn(usize, usize) -> bool) -> Self {
        let mut part = self.clone();
        let count = part.requests.len();
        for (index, request) in part.requests.iter_mut().enumerate() {
            request.is_whole &= is_compared(index, count);
        }
        for steps in Arc::make_mut(&mut part.steps) {
            let count = steps.len();
            for (index, step) in steps.iter_mut().enumerate() {
                step.is_compared &= is_compared(index, count);
            }
        }
        part
    }

    /// The same, of which only the requests between two shares of all are compared, in
    /// order of arrival; provenance says so.
    #[must_use]
    pub fn part(&self, from: f64, to: f64) -> Self {
        let mut part = self.compared(|index, count| (from..to).contains(&(index as f64 / count as f64)));
        for input in &mut part.inputs {
            input.part = Some([from, to]);
        }
        part
    }
}

impl Row {
    fn new(record: RequestRecord) -> Result<Self, String> {
        let name = record.id.clone().or_else(|| record.external_id.clone());
        let Some(arrival_ns) = record.arrival_ns else {
            let which = name.map_or_else(String::new, |name| format!(" of request `{name}`"));
            return Err(format!("the arrival{which} is missing: expected a column such as `arrival_ms`"));
        };
        let times = record.output_times();
        // The first of several tokens alone says nothing of the last one.
        let is_last = |times: &[(u64, u32)]| times.len() > 1 || times[0].1 >= record.output_tokens;
        let times = times.filter(|times| !times.is_empty() && is_last(times));
        let last_ns = times.as_ref().and_then(|times| times.last()).map(|(after_ns, _)| *after_ns);
        // The end may come after the last token; gaps tell of tokens.
        let e2e_ns = if record.gap_ns.is_empty() { record.end_ns.or(last_ns) } else { last_ns };
        let ended_badly = matches!(
            record.finish_reason.as_deref().and_then(FinishReason::parse),
            Some(FinishReason::Abort | FinishReason::Error)
        );
        let measured = Measured {
            arrival_ns,
            prompt_tokens: record.prompt_tokens,
            output_tokens: record.output_tokens,
            ttft_ns: record.ttft_ns,
            e2e_ns,
            is_whole: !ended_badly && record.error.is_none() && record.ttft_ns.is_some() && record.output_tokens > 0,
            gaps_ns: if record.gap_tokens.is_none() { record.gap_ns } else { Vec::new() },
            queue_ns: record.queue_ns,
            cached_tokens: record.cached_tokens,
        };
        let blocks = record.block_hashes.iter().map(|hash| hash.0).collect();
        let priority = i32::try_from(record.priority).unwrap_or(0);
        Ok(Self { measured, blocks, session: record.session, think_ns: record.think_ns, priority })
    }
}

/// When a request got its tokens; none unless each came by itself.
fn emitter(record: &RequestRecord) -> Option<Emitter> {
    let arrival_ns = record.arrival_ns?;
    let times = if record.output_tokens == 0 { Vec::new() } else { record.output_times()? };
    if record.gap_summary.is_some() || times.iter().any(|(_, tokens)| *tokens != 1) {
        return None;
    }
    Some(Emitter {
        rank: record.rank,
        prompt_tokens: record.prompt_tokens.max(1),
        cached_tokens: record.cached_tokens,
        admitted_ns: record.queue_ns.map(|queue_ns| arrival_ns.saturating_add(queue_ns)),
        token_ns: times.into_iter().map(|(after_ns, _)| arrival_ns.saturating_add(after_ns)).collect(),
        was_preempted: record.preemptions > 0,
    })
}

/// Where only the number of cached tokens is known, gives prompts a common beginning of
/// that length.
fn share_cached(rows: &mut [Row], block_size_tokens: u32, name: &str, warnings: &mut Vec<String>) {
    let cached = rows.iter().filter(|row| row.measured.cached_tokens > 0).count();
    if cached == 0 {
        return;
    }
    warnings.push(format!(
        "{name}: {cached} requests have cached tokens but no hash ids; their prompts are taken to begin alike"
    ));
    for row in rows {
        let blocks = u64::from(row.measured.cached_tokens / block_size_tokens);
        row.blocks = (1..=blocks).collect();
    }
}

/// Requests as a trace.
fn workload(rows: &[Row], block_size_tokens: u32, with_sessions: bool) -> Trace {
    let mut trace = Trace { block_size_tokens, ..Trace::default() };
    let mut dense: HashMap<u64, u32> = HashMap::new();
    let mut next_id = 0;
    let mut new_id = || {
        next_id += 1;
        next_id - 1
    };
    // The last request of each session so far.
    let mut open: HashMap<&str, usize> = HashMap::new();
    for (index, row) in rows.iter().enumerate() {
        let Measured { arrival_ns, prompt_tokens, output_tokens, .. } = row.measured;
        let start = trace.hash_ids.len() as u32;
        let full = prompt_tokens / block_size_tokens;
        let known = row.blocks.iter().take(full as usize);
        trace.hash_ids.extend(known.map(|hash| *dense.entry(*hash).or_insert_with(&mut new_id)));
        let len = if row.blocks.is_empty() { 0 } else { prompt_tokens.div_ceil(block_size_tokens) };
        while trace.hash_ids.len() < (start + len) as usize {
            trace.hash_ids.push(new_id());
        }
        let before = row.session.as_deref().filter(|_| with_sessions);
        let before = before.and_then(|session| open.insert(session, index));
        let (session, turn, delay_ns) = match before {
            Some(before) => {
                let previous = &rows[before].measured;
                let end_ns = previous.arrival_ns.saturating_add(previous.e2e_ns.unwrap_or(0));
                let think_ns = row.think_ns.unwrap_or_else(|| arrival_ns.saturating_sub(end_ns));
                trace.requests[before].next_turn = Some(index as u32);
                (trace.requests[before].session, trace.requests[before].turn + 1, think_ns)
            }
            None => {
                trace.sessions += 1;
                (trace.sessions - 1, 0, 0)
            }
        };
        trace.requests.push(TraceRequest {
            request_id: None,
            line: index as u32 + 1,
            session,
            turn,
            next_turn: None,
            arrival_ns: (turn == 0).then_some(arrival_ns),
            delay_ns,
            input_tokens: prompt_tokens,
            output_tokens,
            dependencies: ItemRange::default(),
            hash_ids: ItemRange { start, len },
            output_token_ids: ItemRange::default(),
            priority: row.priority,
            strict_priority: 0,
            policy_class: None,
        });
    }
    trace.distinct_hash_ids = next_id;
    trace.session_ids = vec![None; trace.sessions as usize];
    trace
}

fn digest(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    let files: Vec<PathBuf> = if path.is_dir() {
        let mut files: Vec<_> =
            std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
        files.retain(|file| file.is_file());
        files.sort();
        files
    } else {
        vec![path.to_owned()]
    };
    for file in files {
        io::copy(&mut File::open(file)?, &mut HashWriter(&mut hash))?;
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use vcr_trace::capture::BlockHash;

    use super::*;

    fn record(arrival_ns: u64) -> RequestRecord {
        RequestRecord {
            arrival_ns: Some(arrival_ns),
            prompt_tokens: 40,
            output_tokens: 3,
            ttft_ns: Some(30),
            gap_ns: vec![10, 12],
            end_ns: Some(60),
            ..RequestRecord::default()
        }
    }

    fn row(record: RequestRecord) -> Row {
        Row::new(record).expect("it can be used")
    }

    #[test]
    fn the_last_token_ends_a_request_where_tokens_are_known() {
        let measured = row(record(5)).measured;
        assert_eq!((measured.e2e_ns, measured.is_whole, measured.gaps_ns.len()), (Some(52), true, 2));
        let alone = RequestRecord { gap_ns: Vec::new(), ..record(5) };
        assert_eq!(row(alone.clone()).measured.e2e_ns, Some(60), "the end stands in for it");
        let unknown = RequestRecord { end_ns: None, ..alone };
        assert_eq!(row(unknown).measured.e2e_ns, None, "the first of three tokens is not the last");
        let chunks = RequestRecord { gap_ns: vec![10], gap_tokens: Some(vec![2]), ..record(5) };
        assert!(row(chunks).measured.gaps_ns.is_empty(), "gaps of two tokens are no gaps between tokens");
    }

    #[test]
    fn what_did_not_end_well_is_not_compared() {
        let aborted = RequestRecord { finish_reason: Some("abort".to_owned()), ..record(5) };
        let failed = RequestRecord { error: Some("out of memory".to_owned()), ..record(5) };
        let silent = RequestRecord { output_tokens: 0, ttft_ns: None, gap_ns: Vec::new(), ..record(5) };
        for record in [aborted, failed, silent] {
            assert!(!row(record).measured.is_whole);
        }
        let nowhere = RequestRecord { arrival_ns: None, id: Some("r7".to_owned()), ..record(5) };
        let said = Row::new(nowhere).err().expect("it is refused");
        assert!(said.contains("the arrival of request `r7` is missing"), "{said}");
    }

    #[test]
    fn prompts_share_what_their_hashes_share() {
        let with = |hashes: &[u64]| {
            row(RequestRecord { block_hashes: hashes.iter().copied().map(BlockHash).collect(), ..record(5) })
        };
        let trace = workload(&[with(&[70, 80]), with(&[70, 90])], 16, false);
        assert_eq!((trace.sessions, trace.block_size_tokens), (2, 16));
        // Two full blocks of 16 in 40 tokens, and a rest of their own.
        let ids = &trace.hash_ids;
        assert_eq!((ids.len(), ids[0] == ids[3], ids[1] == ids[4], ids[2] == ids[5]), (6, true, false, false));
    }

    #[test]
    fn cached_tokens_alone_make_prompts_begin_alike() {
        let mut rows = vec![row(record(5)), row(RequestRecord { cached_tokens: 33, ..record(9) })];
        let mut warnings = Vec::new();
        share_cached(&mut rows, 16, "file", &mut warnings);
        assert_eq!((rows[0].blocks.as_slice(), rows[1].blocks.as_slice()), (&[][..], &[1, 2][..]));
        assert!(warnings[0].starts_with("file: 1 requests have cached tokens but no hash ids"), "{warnings:?}");
    }

    #[test]
    fn turns_of_a_session_wait_for_each_other() {
        let turn = |arrival_ns| row(RequestRecord { session: Some("s".to_owned()), ..record(arrival_ns) });
        let rows = [turn(0), turn(100)];
        let trace = workload(&rows, 16, true);
        assert_eq!((trace.sessions, trace.requests[0].next_turn, trace.requests[1].turn), (1, Some(1), 1));
        assert_eq!((trace.requests[1].arrival_ns, trace.requests[1].delay_ns), (None, 100 - 52));
        let literal = workload(&rows, 16, false);
        assert_eq!((literal.sessions, literal.requests[1].arrival_ns), (2, Some(100)));
    }
}
