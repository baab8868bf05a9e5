//! Reduces captures and traces to lengths, hashes and times.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use vcr_base::input::{Lines, Unpacked};
use vcr_trace::MediaItem;
use vcr_trace::capture::{
    Break, CAPTURE_FORMAT, CAPTURE_VERSION, CaptureLine, CaptureMeta, CaptureReader, CaptureWriter, Holds, ReadOptions,
    RequestRecord, StepRecord,
};

use crate::error::PackError;

/// Keys that every row of a Mooncake trace has.
const MOONCAKE: [&str; 3] = ["hash_ids", "input_length", "output_length"];

/// Number of digits of the hash that replaces a name.
const NAME_DIGITS: usize = 16;

/// Writes a redacted copy of a capture to `out`, compressed according to its name.
///
/// Times, lengths, hashes, counts, priorities and finish reasons stay. Names of requests, sessions, adapters and
/// images become hashes. Tokens, parameters, texts, engine settings, KV events and unknown fields are dropped.
fn capture(name: &str, path: &Path, out: &Path) -> Result<(), PackError> {
    let refused = |reason: String| PackError::Redact { name: name.to_owned(), reason };
    let mut reader = CaptureReader::open(path, &ReadOptions::default()).map_err(|error| refused(error.to_string()))?;
    if !vcr_trace::capture::later_parts(path).is_empty() {
        return Err(refused("it has several parts; join them with `vcr inspect convert`".to_owned()));
    }
    let meta = reader.meta();
    let meta = CaptureMeta {
        format: CAPTURE_FORMAT.to_owned(),
        version: CAPTURE_VERSION,
        source: meta.source.clone(),
        block_size_tokens: meta.block_size_tokens,
        hash: meta.hash,
        holds: Holds { output_tokens: false, prompt_tokens: false, kv_events: false, http: false, ..meta.holds },
        ..CaptureMeta::default()
    };
    let mut writer = CaptureWriter::create(out, meta).map_err(PackError::file(name))?;
    while let Some((_, line)) = reader.next_line().map_err(|error| refused(error.to_string()))? {
        let kept = match line {
            CaptureLine::Meta(_) | CaptureLine::Engine(_) | CaptureLine::Http(_) | CaptureLine::Kv(_) => continue,
            CaptureLine::Arrival(mut arrival) => {
                arrival.id = hashed(&arrival.id);
                CaptureLine::Arrival(arrival)
            }
            CaptureLine::Request(request) => CaptureLine::Request(Box::new(without_contents(*request))),
            CaptureLine::Step(step) => CaptureLine::Step(Box::new(StepRecord { scheduler: None, ..*step })),
            CaptureLine::Break(found) => CaptureLine::Break(Break { reason: "redacted".to_owned(), ..found }),
            CaptureLine::End(end) => CaptureLine::End(end),
        };
        writer.write(&kept).map_err(PackError::file(name))?;
    }
    writer.finish().map_err(PackError::file(name))
}

fn without_contents(request: RequestRecord) -> RequestRecord {
    let name = |name: Option<String>| name.map(|name| hashed(&name));
    RequestRecord {
        id: name(request.id),
        external_id: name(request.external_id),
        session: name(request.session),
        lora: name(request.lora),
        mm_hashes: request.mm_hashes.iter().map(|hash| hashed(hash)).collect(),
        mm_items: request.mm_items.into_iter().map(|item| MediaItem { hash: hashed(&item.hash), ..item }).collect(),
        error: request.error.map(|_| "redacted".to_owned()),
        prompt_token_ids: None,
        output_token_ids: None,
        stop_reason: None,
        params: Map::new(),
        other: Map::new(),
        ..request
    }
}

/// Writes a redacted copy of a capture, or of a Mooncake trace, whose texts become hashes.
///
/// # Errors
/// When the file has another format, or cannot be read or written.
pub fn redact(name: &str, path: &Path, out: &Path) -> Result<(), PackError> {
    let refused = |reason: String| PackError::Redact { name: name.to_owned(), reason };
    if path.is_dir() || CaptureReader::open(path, &ReadOptions::default()).is_ok() {
        return capture(name, path, out);
    }
    let stream = Unpacked::open(path).map_err(PackError::file(name))?;
    let mut lines = Lines::new(stream);
    let mut written = BufWriter::new(File::create_new(out).map_err(PackError::file(name))?);
    while let Some((number, row)) = lines.next_row().map_err(|error| refused(error.to_string()))? {
        // In other formats, texts may be prompts or have a meaning.
        let row: BTreeMap<String, Value> = serde_json::from_slice(row)
            .ok()
            .filter(|row: &BTreeMap<String, Value>| MOONCAKE.iter().all(|key| row.contains_key(*key)))
            .ok_or_else(|| {
                refused(format!(
                    "line {number}: only captures and Mooncake traces can be redacted; convert it with `vcr inspect \
                     convert` first"
                ))
            })?;
        // Keys are sorted, whatever their order in the row.
        let row: BTreeMap<String, Value> = row.into_iter().map(|(key, value)| (key, without_texts(value))).collect();
        let line = serde_json::to_vec(&row).map_err(|error| refused(error.to_string()))?;
        written.write_all(&line).and_then(|()| written.write_all(b"\n")).map_err(PackError::file(name))?;
    }
    written.flush().map_err(PackError::file(name))
}

fn without_texts(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(hashed(&text)),
        Value::Array(items) => Value::Array(items.into_iter().map(without_texts).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, value)| (key, without_texts(value))).collect())
        }
        other => other,
    }
}

/// Replaces a name by a hash; equal names stay equal.
fn hashed(name: &str) -> String {
    hex::encode(Sha256::digest(name.as_bytes()))[..NAME_DIGITS].to_owned()
}
