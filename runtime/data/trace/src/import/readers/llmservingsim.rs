//! Reads runs of LLMServingSim's benchmark on real engines, and its workloads.
//!
//! A run is a folder with `meta.json` and `requests.jsonl`. Arrivals were measured on the sender's clock, all other
//! times on the engine's clock, and nothing links the two clocks. A request therefore counts as arrived when the
//! engine queued it. `timeseries.csv` has samples once a second, which are not steps, so it is not imported.

use std::io::BufRead;
use std::path::{Path, PathBuf};

use crate::capture::{CaptureMeta, EngineRecord, ExtraKeys, GapSummary, Holds, PromptHasher, RequestRecord};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use vcr_base::input::{MAX_CONFIG_BYTES, Unpacked, read_bytes};

use crate::import::error::{Place, Problem, decode};
use crate::import::input::{self, Rows, of_bytes};
use crate::import::output::{Out, Tally, Timed, checked, since_earliest};
use crate::import::readers::workload::as_workload;
use crate::import::time::{clock_ns, started_unix_ns, unix_ns};
use crate::import::{Format, ImportError, ImportOptions};

const VLLM_BLOCK_TOKENS: u32 = 16;
const NS_PER_S: u32 = 1_000_000_000;

/// A request of a run. Times are in seconds: `arrival_time` since 1970, the others on the engine's clock.
#[derive(Deserialize)]
struct RunRow {
    request_id: String,
    input_toks: u32,
    output_toks: u32,
    arrival_time: Option<f64>,
    queued_ts: f64,
    scheduled_ts: Option<f64>,
    first_token_ts: Option<f64>,
    last_token_ts: Option<f64>,
}

#[derive(Deserialize)]
struct WorkloadRow {
    input_toks: u32,
    output_toks: u32,
    arrival_time_ns: Option<u64>,
    input_tok_ids: Option<Vec<u32>>,
    output_tok_ids: Option<Vec<u32>>,
}

#[derive(Default, Deserialize)]
struct RunMeta {
    model: Option<String>,
    vllm_version: Option<String>,
    #[serde(default)]
    engine_kwargs: Map<String, Value>,
    dataset_path: Option<String>,
    dataset_hash: Option<String>,
}

/// The files in the folder of a file of requests.
pub(crate) struct Beside {
    folder: PathBuf,
    meta: RunMeta,
}

struct Prompt {
    tokens: u32,
    ids: Vec<u32>,
}

pub(crate) fn read_run(folder: &Path, options: &ImportOptions, out: &mut Out<'_>) -> Result<(), ImportError> {
    let path = folder.join("requests.jsonl");
    read_file(&path, input::open(&path)?, options, out)
}

/// Reads a file of requests, and `meta.json` in the same folder.
pub(crate) fn read_file(
    path: &Path,
    reader: impl BufRead,
    options: &ImportOptions,
    out: &mut Out<'_>,
) -> Result<(), ImportError> {
    let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
    let meta_path = folder.join("meta.json");
    let beside = match read_bytes(&meta_path, MAX_CONFIG_BYTES) {
        Ok(bytes) => {
            let mut json = serde_json::Deserializer::from_slice(&bytes);
            let meta =
                decode(&mut json).map_err(|problem| problem.at(&meta_path.display().to_string(), Place::File))?;
            Some(Beside { folder, meta })
        }
        Err(_) => None,
    };
    read_rows(reader, &path.display().to_string(), beside, options, out)
}

/// Reads the rows of a run, or of a workload. A workload has no `queued_ts`.
pub(crate) fn read_rows(
    reader: impl BufRead,
    name: &str,
    beside: Option<Beside>,
    options: &ImportOptions,
    out: &mut Out<'_>,
) -> Result<(), ImportError> {
    let (start, reader) = input::peek(Unpacked::plain(reader), name)?;
    let first = start.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty()).unwrap_or_default();
    let is_run = of_bytes::<Map<String, Value>>(first).map_or(true, |row| row.contains_key("queued_ts"));
    let rows = Rows::new(reader, name);
    if is_run { read_run_rows(rows, beside, options, out) } else { read_workload(rows, options, out) }
}

fn read_run_rows(
    mut rows: Rows<'_, impl BufRead>,
    beside: Option<Beside>,
    options: &ImportOptions,
    out: &mut Out<'_>,
) -> Result<(), ImportError> {
    let prompts = prompts(beside.as_ref(), options)?;
    let hasher = hasher(options);
    let mut requests = Vec::new();
    let mut sent = Vec::new();
    while let Some((line, row)) = rows.next_as::<RunRow>(&mut out.tally)? {
        let timed = row.timed().and_then(|(mut timed, sent_ns)| {
            if let Some((workload, prompts)) = &prompts {
                add_prompt(&mut timed.record, prompts, workload, &hasher)?;
            }
            Ok((timed, sent_ns))
        });
        match timed {
            Ok((timed, sent_ns)) => {
                requests.push(timed);
                sent.extend(sent_ns);
            }
            Err(problem) => out.tally.refuse(problem.at(rows.name, Place::Line(line)))?,
        }
    }
    since_earliest(&mut requests);
    let meta = beside.map(|beside| beside.meta).unwrap_or_default();
    let mut other = Map::new();
    other.extend(meta.dataset_hash.map(|hash| ("dataset_hash".to_owned(), json!(hash))));
    out.meta(
        Format::LlmServingSim,
        CaptureMeta {
            started_unix_ns: started_unix_ns(sent.into_iter().min()),
            model: meta.model,
            vllm_version: meta.vllm_version.clone(),
            block_size_tokens: prompts.is_some().then_some(hasher.block_size_tokens),
            other,
            ..CaptureMeta::default()
        },
    )?;
    if !meta.engine_kwargs.is_empty() {
        let settings = meta.engine_kwargs;
        out.engine(EngineRecord { vllm_version: meta.vllm_version, settings, ..EngineRecord::default() })?;
    }
    requests.into_iter().try_for_each(|timed| out.request(timed.record))
}

impl RunRow {
    /// Returns the request on the engine's clock, and the time of sending since 1970.
    fn timed(self) -> Result<(Timed, Option<i128>), Problem> {
        let queued_ns = clock_ns("queued_ts", self.queued_ts, NS_PER_S)?;
        let since = |field: &str, seconds: Option<f64>| {
            let Some(seconds) = seconds else { return Ok(None) };
            let ns = u64::try_from(clock_ns(field, seconds, NS_PER_S)? - queued_ns);
            ns.map(Some).map_err(|_| Problem::new(field, "the time is before `queued_ts`; correct the row"))
        };
        let ttft_ns = since("first_token_ts", self.first_token_ts)?;
        let end_ns = since("last_token_ts", self.last_token_ts)?;
        let count = self.output_toks.saturating_sub(1);
        let decode_ns = match ttft_ns.zip(end_ns) {
            Some((first, last)) => Some(last.checked_sub(first).ok_or_else(|| {
                Problem::new("last_token_ts", "the time is before `first_token_ts`; correct the row")
            })?),
            None => None,
        };
        let mean = decode_ns.filter(|_| count > 0).map(|ns| (ns + u64::from(count) / 2) / u64::from(count));
        let record = RequestRecord {
            id: Some(self.request_id),
            prompt_tokens: self.input_toks,
            output_tokens: self.output_toks,
            ttft_ns,
            gap_summary: mean.map(|mean_ns| GapSummary { mean_ns, count }),
            end_ns,
            queue_ns: since("scheduled_ts", self.scheduled_ts)?,
            ..RequestRecord::default()
        };
        let sent_ns = self.arrival_time.map(|seconds| unix_ns("arrival_time", seconds)).transpose()?;
        Ok((Timed { at_ns: Some(queued_ns), record: checked(record)? }, sent_ns))
    }
}

/// Reads the prompts of the workload that the options name, or else of the one that the run names, if that file is
/// in the run's folder or the folder above. Also returns the name of the file.
fn prompts(beside: Option<&Beside>, options: &ImportOptions) -> Result<Option<(String, Vec<Prompt>)>, ImportError> {
    let path = options.workload.clone().or_else(|| {
        let beside = beside?;
        let file = Path::new(beside.meta.dataset_path.as_deref()?).file_name()?;
        [beside.folder.join(file), beside.folder.join("..").join(file)].into_iter().find(|path| path.is_file())
    });
    let Some(path) = path else { return Ok(None) };
    let name = path.display().to_string();
    let mut rows = Rows::new(input::open(&path)?, &name);
    let mut prompts = Vec::new();
    // No row can be skipped, because the index of a row matters.
    while let Some((_, row)) = rows.next_as::<WorkloadRow>(&mut Tally::new(false))? {
        prompts.push(Prompt { tokens: row.input_toks, ids: row.input_tok_ids.unwrap_or_default() });
    }
    Ok(Some((name, prompts)))
}

/// Finds the prompt of a request by the number at the end of the request's id.
fn add_prompt(
    record: &mut RequestRecord,
    prompts: &[Prompt],
    workload: &str,
    hasher: &PromptHasher,
) -> Result<(), Problem> {
    let id = record.id.as_deref().unwrap_or_default();
    let number: Option<usize> = id.rsplit('-').next().and_then(|number| number.parse().ok());
    let Some(prompt) = number.and_then(|number| prompts.get(number)) else {
        let text = format!("`{id}` does not end with the number of a row of `{workload}`; name the run's own workload");
        return Err(Problem::new("request_id", text));
    };
    if prompt.tokens != record.prompt_tokens {
        let text = format!(
            "{} prompt tokens, but `{workload}` has {}; name the run's own workload",
            record.prompt_tokens, prompt.tokens
        );
        return Err(Problem::new("input_toks", text));
    }
    hash(record, &prompt.ids, hasher);
    Ok(())
}

fn hash(record: &mut RequestRecord, ids: &[u32], hasher: &PromptHasher) {
    if ids.len() == record.prompt_tokens as usize && !ids.is_empty() {
        let chain = hasher.chain(ids, &ExtraKeys::default());
        record.block_hashes = chain.blocks;
        record.prompt_hash = Some(chain.whole);
    }
}

fn hasher(options: &ImportOptions) -> PromptHasher {
    let block_size_tokens = options.block_size_tokens(VLLM_BLOCK_TOKENS);
    PromptHasher::new(block_size_tokens)
}

fn read_workload(
    mut rows: Rows<'_, impl BufRead>,
    options: &ImportOptions,
    out: &mut Out<'_>,
) -> Result<(), ImportError> {
    let hasher = hasher(options);
    out.meta(
        Format::LlmServingSim,
        CaptureMeta {
            block_size_tokens: Some(hasher.block_size_tokens),
            holds: Holds { output_tokens: true, prompt_tokens: true, ..Holds::default() },
            other: as_workload(),
            ..CaptureMeta::default()
        },
    )?;
    while let Some((line, row)) = rows.next_as::<WorkloadRow>(&mut out.tally)? {
        match row.record(&hasher) {
            Ok(record) => out.request(record)?,
            Err(problem) => out.tally.refuse(problem.at(rows.name, Place::Line(line)))?,
        }
    }
    Ok(())
}

impl WorkloadRow {
    fn record(self, hasher: &PromptHasher) -> Result<RequestRecord, Problem> {
        for (field, ids, tokens) in [
            ("input_tok_ids", &self.input_tok_ids, self.input_toks),
            ("output_tok_ids", &self.output_tok_ids, self.output_toks),
        ] {
            if let Some(ids) = ids
                && ids.len() != tokens as usize
            {
                return Err(Problem::new(field, format!("{} ids for {tokens} tokens; they must be equal", ids.len())));
            }
        }
        let mut record = RequestRecord {
            arrival_ns: self.arrival_time_ns,
            prompt_tokens: self.input_toks,
            output_tokens: self.output_toks,
            output_token_ids: self.output_tok_ids,
            params: Map::from_iter([("max_tokens".to_owned(), json!(self.output_toks))]),
            ..RequestRecord::default()
        };
        hash(&mut record, self.input_tok_ids.as_deref().unwrap_or_default(), hasher);
        record.prompt_token_ids = self.input_tok_ids;
        checked(record)
    }
}
