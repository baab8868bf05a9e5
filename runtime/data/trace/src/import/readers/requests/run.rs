//! Reads `requests.jsonl` of `vcr run --out`.

use std::io::BufRead;

use crate::RequestRow;
use crate::capture::{CaptureMeta, FinishReason, RequestRecord};
use serde::Deserialize;
use serde_json::{Map, json};

use super::{mean_gap, ns_of_ms, since, whole};
use crate::import::error::{Place, Problem};
use crate::import::input::{Rows, of_bytes};
use crate::import::output::{Out, checked};
use crate::import::{Format, ImportError, ImportOptions, QUEUE_FROM_ARRIVAL};

pub(super) fn read(
    mut rows: Rows<'_, impl BufRead>,
    options: &ImportOptions,
    out: &mut Out<'_>,
) -> Result<(), ImportError> {
    begin(out)?;
    let mut run: Option<String> = options.run.clone();
    let (mut is_found, mut others) = (false, Vec::<String>::new());
    // Engines in the order of their first requests.
    let mut engines: Vec<String> = Vec::new();
    let name = rows.name;
    while let Some((line, bytes)) = rows.next_row()? {
        let row: RequestRow<'_> = match of_bytes(bytes) {
            Ok(row) => row,
            Err(problem) => {
                out.tally.refuse(problem.at(name, Place::Line(line)))?;
                continue;
            }
        };
        if let Some(of) = &row.of {
            let chosen = run.get_or_insert_with(|| of.clone().into_owned());
            if chosen != of && options.run.is_some() {
                if !others.iter().any(|other| other == of) {
                    others.push(of.clone().into_owned());
                }
                continue;
            }
            if chosen != of {
                let text =
                    format!("the file holds several runs, such as `{chosen}` and `{of}`; name one with --of RUN");
                return Err(Problem::new("of", text).at(name, Place::Line(line)));
            }
            is_found = true;
        }
        match record(row, &mut engines) {
            Ok(record) => out.request(record)?,
            Err(problem) => out.tally.refuse(problem.at(name, Place::Line(line)))?,
        }
    }
    match run.filter(|_| !is_found && !others.is_empty()) {
        Some(run) => {
            let text = format!("unknown run `{run}`: expected {}", others.join(", "));
            Err(Problem::new("of", text).at(name, Place::File))
        }
        None => Ok(()),
    }
}

/// Writes the meta line of the capture.
fn begin(out: &mut Out<'_>) -> Result<(), ImportError> {
    let other = Map::from_iter([(QUEUE_FROM_ARRIVAL.to_owned(), json!(true))]);
    out.meta(Format::Requests, CaptureMeta { other, ..CaptureMeta::default() })
}

fn record(row: RequestRow<'_>, engines: &mut Vec<String>) -> Result<RequestRecord, Problem> {
    let arrival_ns = ns_of_ms("arrival_ms", Some(row.arrival_ms))?.unwrap_or(0);
    let after = |field, ms| since(arrival_ns, field, ns_of_ms(field, ms)?);
    let ttft_ns = after("first_token_ms", row.first_token_ms)?;
    let last_ns = after("last_token_ms", row.last_token_ms)?;
    let finish_reason = match row.status.as_ref() {
        "completed" => Some(whole(row.output_tokens, row.max_tokens)),
        "rejected" | "shed" | "failed" => Some(FinishReason::Error),
        "unfinished" => None,
        other => {
            let known = "completed, rejected, shed, failed or unfinished";
            return Err(Problem::new("status", format!("invalid status `{other}`: expected {known}")));
        }
    };
    let is_lost = matches!(row.status.as_ref(), "rejected" | "shed" | "failed");
    let rank = row.decode_engine.or(row.engine).map_or(0, |name| {
        engines.iter().position(|known| *known == name).unwrap_or_else(|| {
            engines.push(name.into_owned());
            engines.len() - 1
        })
    });
    checked(RequestRecord {
        id: Some(row.id.to_string()),
        rank: rank as u32,
        session: Some(format!("{}/{}", row.workload, row.session)),
        arrival_ns: Some(arrival_ns),
        prompt_tokens: row.prompt_tokens,
        cached_tokens: row.cached_tokens,
        output_tokens: row.output_tokens,
        ttft_ns,
        gap_summary: mean_gap(ttft_ns, last_ns, row.output_tokens),
        end_ns: after("end_ms", row.end_ms)?,
        queue_ns: after("scheduled_ms", row.scheduled_ms)?,
        finish_reason: finish_reason.map(|reason| reason.name().to_owned()),
        error: is_lost.then(|| row.reason.unwrap_or(row.status).into_owned()),
        preemptions: row.preemptions,
        ..RequestRecord::default()
    })
}

/// A line. Times are milliseconds since the start of the replay.
#[derive(Deserialize)]
struct Row {
    uuid: String,
    session_id: Option<String>,
    arrival_time_ms: f64,
    first_admit_ms: Option<f64>,
    terminal_time_ms: Option<f64>,
    first_token_ms: Option<f64>,
    last_token_ms: Option<f64>,
    input_length: u32,
    requested_output_length: u32,
    output_length: u32,
    #[serde(default)]
    reused_input_tokens: u32,
    decode_worker_idx: Option<u32>,
    terminal_status: String,
    reason: Option<String>,
}

pub(super) fn read_replay(mut rows: Rows<'_, impl BufRead>, out: &mut Out<'_>) -> Result<(), ImportError> {
    begin(out)?;
    while let Some((line, row)) = rows.next_as::<Row>(&mut out.tally)? {
        match row.record() {
            Ok(record) => out.request(record)?,
            Err(problem) => out.tally.refuse(problem.at(rows.name, Place::Line(line)))?,
        }
    }
    Ok(())
}

impl Row {
    fn record(self) -> Result<RequestRecord, Problem> {
        let arrival_ns = ns_of_ms("arrival_time_ms", Some(self.arrival_time_ms))?.unwrap_or(0);
        let after = |field, ms| since(arrival_ns, field, ns_of_ms(field, ms)?);
        let ttft_ns = after("first_token_ms", self.first_token_ms)?;
        let last_ns = after("last_token_ms", self.last_token_ms)?;
        let (finish_reason, error) = match self.terminal_status.as_str() {
            "completed" => (whole(self.output_length, self.requested_output_length), None),
            "canceled" => (FinishReason::Abort, None),
            "rejected" | "failed" => (FinishReason::Error, Some(self.reason.unwrap_or(self.terminal_status))),
            other => {
                let known = "completed, canceled, rejected or failed";
                return Err(Problem::new("terminal_status", format!("invalid status `{other}`: expected {known}")));
            }
        };
        checked(RequestRecord {
            id: Some(self.uuid),
            rank: self.decode_worker_idx.unwrap_or(0),
            session: self.session_id,
            arrival_ns: Some(arrival_ns),
            prompt_tokens: self.input_length,
            cached_tokens: self.reused_input_tokens,
            output_tokens: self.output_length,
            ttft_ns,
            gap_summary: mean_gap(ttft_ns, last_ns, self.output_length),
            end_ns: after("terminal_time_ms", self.terminal_time_ms)?,
            queue_ns: after("first_admit_ms", self.first_admit_ms)?,
            finish_reason: Some(finish_reason.name().to_owned()),
            error,
            ..RequestRecord::default()
        })
    }
}
