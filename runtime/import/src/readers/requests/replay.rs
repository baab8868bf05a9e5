//! The lines of `vcr replay --report-jsonl`, whose keys are Dynamo's.

use std::io::BufRead;

use serde::Deserialize;
use vcr_trace::capture::{FinishReason, RequestRecord};

use super::{begin, mean_gap, ns_of_ms, since, whole};
use crate::ImportError;
use crate::error::{Place, Problem};
use crate::input::Rows;
use crate::output::{Out, checked};

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

pub(super) fn read(mut rows: Rows<'_, impl BufRead>, out: &mut Out<'_>) -> Result<(), ImportError> {
    begin(out, false, None)?;
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
