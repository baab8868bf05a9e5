//! Reads workloads of agents: Mooncake rows with dependencies.
//!
//! The trace reader cannot be used here, because it keeps all dependencies, drops the model, and refuses references
//! to missing requests. A capture states a request's session and its wait after the previous turn; it cannot
//! express other dependencies. A row with another dependency is refused; a lenient import drops and counts the
//! dependency.

use std::collections::BTreeMap;
use std::io::BufRead;

use crate::capture::{CaptureMeta, RequestRecord};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::import::error::{Place, Problem, decode};
use crate::import::input::Rows;
use crate::import::output::Out;
use crate::import::readers::workload::as_workload;
use crate::import::time::duration_ns;
use crate::import::{Format, ImportError, ImportOptions, chain};

const MOONCAKE_BLOCK_TOKENS: u32 = 512;

#[derive(Deserialize)]
struct Header {
    version: u32,
    block_size: Option<std::num::NonZeroU32>,
}

/// A row. Version 1 has `wait_for`, version 2 has `dependencies`.
#[derive(Deserialize)]
struct AgenticRow {
    request_id: String,
    session_id: Option<String>,
    #[serde(alias = "input_tokens")]
    input_length: Option<u32>,
    #[serde(alias = "output_tokens")]
    output_length: u32,
    hash_ids: Vec<u64>,
    #[serde(alias = "created_time")]
    timestamp: Option<f64>,
    not_before_ms: Option<f64>,
    #[serde(alias = "delay_ms")]
    delay: Option<f64>,
    tool_wait_ms: Option<f64>,
    #[serde(default)]
    wait_for: Vec<String>,
    #[serde(default)]
    branches: Vec<Value>,
    #[serde(default)]
    dependencies: Vec<Dependency>,
    #[serde(default)]
    priority: i64,
    model: Option<String>,
}

#[derive(Deserialize)]
struct Dependency {
    request_id: String,
    trigger: String,
    delay_ms: Option<f64>,
}

pub(crate) fn read(
    reader: impl BufRead,
    name: &str,
    options: &ImportOptions,
    out: &mut Out<'_>,
) -> Result<(), ImportError> {
    let mut rows = Rows::new(reader, name);
    let mut block_size_tokens = options.block_size_tokens(MOONCAKE_BLOCK_TOKENS);
    let mut has_begun = false;
    // The latest request of each session.
    let mut last_turns = BTreeMap::new();
    while let Some((line, row)) = rows.next_as::<Value>(&mut out.tally)? {
        if row.get("schema").is_some() {
            let header = decode::<Header, _>(row).map_err(|problem| problem.at(name, Place::Line(line)))?;
            if header.version > 2 || has_begun {
                let text = "the header must be the first row, and of version 1 or 2; convert the file";
                return Err(Problem::new("version", text).at(name, Place::Line(line)));
            }
            block_size_tokens = header.block_size.map_or(block_size_tokens, std::num::NonZeroU32::get);
            continue;
        }
        let row = match decode::<AgenticRow, _>(row) {
            Ok(row) => row,
            Err(problem) => {
                out.tally.refuse(problem.at(name, Place::Line(line)))?;
                continue;
            }
        };
        if !has_begun {
            has_begun = true;
            out.meta(
                Format::AgenticMooncake,
                CaptureMeta {
                    block_size_tokens: Some(block_size_tokens),
                    model: row.model.clone(),
                    other: as_workload(),
                    ..CaptureMeta::default()
                },
            )?;
        }
        let previous = row.session_id.as_ref().and_then(|session| last_turns.get(session).cloned());
        let dropped = lost_dependencies(&row, previous.as_deref());
        if let Some((field, other)) = dropped.first()
            && !out.tally.is_lenient()
        {
            let text = format!(
                "`{}` waits for `{other}`, which is not the turn before it in its session; a capture cannot say \
                 that: read leniently to drop such dependencies",
                row.request_id
            );
            return Err(Problem::new(field, text).at(name, Place::Line(line)));
        }
        out.tally.notes_of("dependencies other than on the turn before were dropped", dropped.len() as u64);
        if let Some(session) = &row.session_id {
            last_turns.insert(session.clone(), row.request_id.clone());
        }
        match record(row, previous.as_deref(), block_size_tokens) {
            Ok(record) => out.request(record)?,
            Err(problem) => out.tally.refuse(problem.at(name, Place::Line(line)))?,
        }
    }
    Ok(())
}

/// Dependencies that a capture cannot express: (field, id of the other request).
fn lost_dependencies<'a>(row: &'a AgenticRow, previous: Option<&str>) -> Vec<(&'static str, &'a str)> {
    let lost = |other: &str, is_completion: bool| !is_completion || previous != Some(other);
    let waits = row.wait_for.iter().filter(|other| lost(other, true)).map(|other| ("wait_for", other.as_str()));
    let dependencies = row.dependencies.iter().filter(|other| lost(&other.request_id, other.trigger == "completion"));
    let branches = row.branches.iter().map(|branch| ("branches", branch.as_str().unwrap_or("?")));
    waits.chain(dependencies.map(|other| ("dependencies", other.request_id.as_str()))).chain(branches).collect()
}

fn record(row: AgenticRow, previous: Option<&str>, block_size_tokens: u32) -> Result<RequestRecord, Problem> {
    let covered = row.hash_ids.len() as u64 * u64::from(block_size_tokens);
    let prompt_tokens = row.input_length.map_or(covered, u64::from);
    if prompt_tokens > covered || prompt_tokens == 0 {
        let text = format!(
            "a prompt of {prompt_tokens} tokens, but {} hash ids of {block_size_tokens} tokens cover {covered}; \
             correct the row or the block size",
            row.hash_ids.len()
        );
        return Err(Problem::new("input_length", text));
    }
    let prompt_tokens =
        u32::try_from(prompt_tokens).map_err(|_| Problem::new("input_length", "the prompt is too long"))?;
    let used = prompt_tokens.div_ceil(block_size_tokens) as usize;
    let (block_hashes, prompt_hash) =
        chain::of_ids(row.hash_ids[..used].iter().copied(), prompt_tokens, block_size_tokens);
    let ms = |field, value: Option<f64>| value.map_or(Ok(0), |value| duration_ns(field, value, 1e6));
    let edge = row.dependencies.iter().find(|edge| Some(edge.request_id.as_str()) == previous);
    let waits = edge.is_some() || row.wait_for.iter().any(|other| Some(other.as_str()) == previous);
    let delay_ns = ms("delay", row.delay)? + ms("tool_wait_ms", row.tool_wait_ms)?;
    let edge_ns = ms("dependencies.delay_ms", edge.and_then(|edge| edge.delay_ms))?;
    let arrival = row.timestamp.or(row.not_before_ms);
    Ok(RequestRecord {
        id: Some(row.request_id),
        arrival_ns: if waits { None } else { arrival.map(|at| duration_ns("not_before_ms", at, 1e6)).transpose()? },
        think_ns: waits.then(|| delay_ns.saturating_add(edge_ns)),
        prompt_tokens,
        block_hashes,
        prompt_hash: Some(prompt_hash),
        output_tokens: row.output_length,
        params: Map::from_iter([("max_tokens".to_owned(), json!(row.output_length))]),
        priority: row.priority,
        session: row.session_id,
        ..RequestRecord::default()
    })
}
