//! Reads steps from logs of vcr and of `live_log.py`, and from tables of steps.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;
use std::path::Path;

use serde::Deserialize;
use vcr_base::input::Unpacked;
use vcr_fitted::{StepWork, UNKNOWN_TOKENS, distinct_tokens};
use vcr_steplog::{Id, StepLog, Steps};

use crate::error::FitError;
use crate::measurements::recorded::{RecordedSteps, in_order};

/// With fewer steps, a file is not the log of a load.
const MIN_STEPS: usize = 20;

#[derive(Deserialize)]
struct TableRow {
    start_ms: f64,
    end_ms: f64,
    prefill_requests: u64,
    prefill_tokens: u64,
    #[serde(default)]
    prefill_context_tokens: u64,
    decode_requests: u64,
    decode_context_tokens: u64,
    free_blocks: Option<u64>,
    /// For each prefill chunk: its tokens, and the tokens computed before it.
    chunks: Option<Vec<(u64, u64)>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct KvCache {
    pub(crate) usable_blocks: u64,
    pub(crate) block_size_tokens: u64,
}

impl KvCache {
    fn distinct_tokens(cache: Option<Self>, free_blocks: Option<u64>) -> u64 {
        let Some((cache, free_blocks)) = cache.zip(free_blocks) else { return UNKNOWN_TOKENS };
        // If more blocks are free than exist, the log is from another engine than stated.
        let active_blocks = cache.usable_blocks.checked_sub(free_blocks);
        active_blocks.map_or(UNKNOWN_TOKENS, |blocks| distinct_tokens(blocks, cache.block_size_tokens))
    }
}

/// Reads the steps of a log, by engine. `cache` determines how many KV blocks were in use.
///
/// # Errors
/// If the log cannot be read, has no durations, or has too few steps.
pub(crate) fn read(path: &Path, cache: Option<KvCache>) -> Result<RecordedSteps, FitError> {
    let name = path.display().to_string();
    let engines = if is_table(path)? { vec![table(path, &name, cache)?] } else { log(path, &name, cache)? };
    let count = engines.iter().map(Vec::len).sum::<usize>();
    if count < MIN_STEPS {
        let what = format!("{count} steps with a duration: expected at least {MIN_STEPS}; give the log of a load");
        return Err(FitError::data(&name, what));
    }
    Ok(engines.into_iter().map(in_order).collect())
}

type Timed = Vec<(u64, u64, StepWork)>;

fn lines(path: &Path) -> Result<impl Iterator<Item = std::io::Result<String>>, FitError> {
    let unreadable = |source| FitError::Read { path: path.to_owned(), source };
    Ok(Unpacked::open(path).map_err(unreadable)?.lines())
}

/// Whether the first line is a row of a table.
fn is_table(path: &Path) -> Result<bool, FitError> {
    if path.is_dir() {
        return Ok(false);
    }
    let first = lines(path)?.next().transpose();
    let first = first.map_err(|source| FitError::Read { path: path.to_owned(), source })?;
    Ok(first.is_some_and(|line| {
        serde_json::from_str::<serde_json::Value>(&line).is_ok_and(|row| row.get("prefill_tokens").is_some())
    }))
}

fn table(path: &Path, name: &str, cache: Option<KvCache>) -> Result<Timed, FitError> {
    let mut steps = Vec::new();
    for (index, line) in lines(path)?.enumerate() {
        let line = line.map_err(|source| FitError::Read { path: path.to_owned(), source })?;
        let wrong = |what: String| FitError::data(name, format!("line {}: {what}", index + 1));
        let row: TableRow = serde_json::from_str(&line).map_err(|error| wrong(error.to_string()))?;
        let (Some(start_ns), Some(end_ns)) = (ns(row.start_ms), ns(row.end_ms)) else {
            return Err(wrong("invalid `start_ms` or `end_ms`: expected milliseconds of at least 0".to_owned()));
        };
        if end_ns < start_ns {
            return Err(wrong("`end_ms` is before `start_ms`: expected the end of the same step".to_owned()));
        }
        let chunks = row.chunks.unwrap_or_else(|| match row.prefill_requests {
            0 => Vec::new(),
            // If single chunks are unknown, all chunks are assumed to be equal.
            n => vec![(row.prefill_tokens / n, row.prefill_context_tokens / n); usize::try_from(n).unwrap_or(1)],
        });
        let work = StepWork {
            prefill_requests: row.prefill_requests,
            prefill_tokens: row.prefill_tokens,
            prefill_context_tokens: chunks.iter().map(|(_, before)| before).sum(),
            prefill_attention_pairs: chunks.iter().map(|(tokens, before)| pairs(*tokens, *before)).sum(),
            decode_tokens: row.decode_requests,
            decode_context_tokens: row.decode_context_tokens,
            kv_distinct_tokens: KvCache::distinct_tokens(cache, row.free_blocks),
            sampled_requests: row.decode_requests.saturating_add(row.prefill_requests),
        };
        steps.push((start_ns, end_ns, work));
    }
    Ok(steps)
}

fn ns(ms: f64) -> Option<u64> {
    (ms.is_finite() && (0.0..1e13).contains(&ms)).then_some((ms * 1e6).round() as u64)
}

/// Query-key pairs of a chunk under causal attention.
pub(crate) fn pairs(tokens: u64, before: u64) -> u64 {
    tokens.saturating_mul(before).saturating_add(tokens.saturating_mul(tokens + 1) / 2)
}

fn log(path: &Path, name: &str, cache: Option<KvCache>) -> Result<Vec<Timed>, FitError> {
    let log = StepLog::read(path).map_err(|error| FitError::data(name, error.to_string()))?;
    let steps = Steps::of(&log);
    let mut engines: Vec<Timed> = vec![Vec::new(); steps.engines.len()];
    // Requests whose next step is a decode: they have their first token and their complete KV.
    let mut decoding: Vec<BTreeSet<&Id>> = vec![BTreeSet::new(); steps.engines.len()];
    let mut epochs: BTreeMap<usize, u32> = BTreeMap::new();
    let mut without_time = 0;
    for step in &steps.steps {
        let decoding = &mut decoding[step.engine];
        if epochs.insert(step.engine, step.epoch).is_some_and(|epoch| epoch != step.epoch) {
            decoding.clear();
        }
        for id in &step.schedule.pre {
            decoding.remove(id);
        }
        let emitted = || step.result.iter().filter_map(|result| result.out.as_ref()).flatten();
        let mut work = StepWork {
            sampled_requests: emitted().count() as u64,
            kv_distinct_tokens: KvCache::distinct_tokens(cache, step.schedule.free.map(u64::from)),
            ..StepWork::default()
        };
        for row in step.schedule.sched.iter().flatten() {
            let (tokens, before) = (u64::from(row.tokens), u64::from(row.computed));
            if row.kind == 'r' && decoding.contains(&row.request) {
                work.decode_tokens += tokens;
                work.decode_context_tokens += before;
            } else {
                decoding.remove(&row.request);
                work.prefill_requests += 1;
                work.prefill_tokens += tokens;
                work.prefill_context_tokens += before;
                work.prefill_attention_pairs += pairs(tokens, before);
            }
        }
        decoding.extend(emitted().map(|(id, _)| id));
        if work.prefill_requests == 0 && work.decode_tokens == 0 {
            continue;
        }
        match (step.start_ms().and_then(ns), step.duration_ms().and_then(ns)) {
            (Some(start_ns), Some(duration_ns)) => engines[step.engine].push((start_ns, start_ns + duration_ns, work)),
            _ => without_time += 1,
        }
    }
    if engines.iter().all(Vec::is_empty) && without_time > 0 {
        let what = format!(
            "none of {without_time} steps has a start and a duration: recordings of a scheduler alone have none"
        );
        return Err(FitError::data(name, what));
    }
    Ok(engines)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("it is written");
        file
    }

    #[test]
    fn logs_tell_prefills_from_decodes() {
        let mut text = String::new();
        for step in 0..25_u64 {
            let row = match step {
                0 => "[7, 100, 0, \"n\", []]".to_owned(),
                1 => "[7, 28, 100, \"r\", []]".to_owned(),
                // The request was preempted and is recomputed with its output so far.
                20 => "[7, 146, 0, \"p\", []]".to_owned(),
                step => format!("[7, 1, {}, \"r\", []]", 126 + step),
            };
            let pre = if step == 20 { ",\"pre\":[7]" } else { "" };
            let out = if step == 0 { "[]" } else { "[[7, 1]]" };
            text += &format!(
                "{{\"s\":{step},\"sched\":[{row}]{pre},\"u\":{step},\"start_ms\":{},\"duration_ms\":10.0,\"out\":{out}}}\n",
                step * 10
            );
        }
        let engines = read(file(&text).path(), None).expect("it is a log");
        let works: Vec<_> = engines[0].iter().map(|step| step.work).collect();
        assert_eq!(works.len(), 25);
        assert_eq!(
            (works[0].prefill_tokens, works[0].prefill_attention_pairs, works[0].sampled_requests),
            (100, 5050, 0)
        );
        assert_eq!((works[1].prefill_tokens, works[1].prefill_context_tokens, works[1].sampled_requests), (28, 100, 1));
        assert_eq!((works[2].prefill_requests, works[2].decode_tokens, works[2].decode_context_tokens), (0, 1, 128));
        assert_eq!((works[20].prefill_tokens, works[20].decode_tokens), (146, 0));
        assert_eq!(works[21].decode_tokens, 1);
        assert!(engines[0].iter().skip(1).all(|step| step.follows && step.end_ns - step.start_ns == 10_000_000));
    }

    #[test]
    fn tables_of_steps_are_checked() {
        let row = |start_ms: u32, end_ms: u32| {
            format!(
                "{{\"start_ms\":{start_ms},\"end_ms\":{end_ms},\"prefill_requests\":2,\"prefill_tokens\":30,\
                 \"decode_requests\":3,\"decode_context_tokens\":600,\"chunks\":[[10,5],[20,0]]}}\n"
            )
        };
        let text: String = (0..20).map(|index| row(index * 10, index * 10 + 9)).collect();
        let engines = read(file(&text).path(), None).expect("it is a table");
        let work = engines[0][3].work;
        assert_eq!((work.prefill_attention_pairs, work.sampled_requests), (10 * 5 + 55 + 210, 5));
        let refused = |text: &str| {
            let file = file(text);
            let said = read(file.path(), None).expect_err("it is refused").to_string();
            said.replace(&file.path().display().to_string(), "FILE")
        };
        assert!(refused(&row(9, 8)).starts_with("FILE: line 1: `end_ms` is before `start_ms`"));
        assert!(refused(&row(0, 8)).contains("1 steps with a duration: expected at least 20"));
        assert!(refused(&row(0, 8).replace("decode_requests", "decodes")).contains("missing field `decode_requests`"));
        let free = text.replace("\"chunks\"", "\"free_blocks\":70,\"chunks\"");
        let distinct = |text: &str, usable_blocks: u64| {
            let cache = KvCache { usable_blocks, block_size_tokens: 16 };
            read(file(text).path(), Some(cache)).expect("it is a table")[0][3].work.kv_distinct_tokens
        };
        assert_eq!((distinct(&free, 100), distinct(&free, 60)), (30 * 16, UNKNOWN_TOKENS));
        assert_eq!(distinct(&text, 100), UNKNOWN_TOKENS, "a table without free blocks");
        let untimed: String =
            (0..30).map(|s| format!("{{\"s\":{s},\"sched\":[[1,1,9,\"r\",[]]],\"u\":{s}}}\n")).collect();
        assert!(refused(&untimed).contains("none of 30 steps has a start and a duration"));
    }
}
