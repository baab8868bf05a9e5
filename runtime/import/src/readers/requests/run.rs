//! `requests.jsonl` of `vcr run --out`.

use std::io::BufRead;

use serde::Deserialize;
use vcr_trace::capture::{FinishReason, RequestRecord};

use super::{begin, mean_gap, ns_of_ms, since, whole};
use crate::error::{Place, Problem};
use crate::input::Rows;
use crate::output::{Out, checked};
use crate::{ImportError, ImportOptions};

/// A row. Times are milliseconds since the start of the run.
#[derive(Deserialize)]
struct Row {
    of: Option<String>,
    id: u64,
    workload: String,
    session: u64,
    status: String,
    reason: Option<String>,
    prompt_tokens: u32,
    max_tokens: u32,
    output_tokens: u32,
    #[serde(default)]
    cached_tokens: u32,
    arrival_ms: f64,
    scheduled_ms: Option<f64>,
    first_token_ms: Option<f64>,
    last_token_ms: Option<f64>,
    end_ms: Option<f64>,
    engine: Option<String>,
    decode_engine: Option<String>,
    #[serde(default)]
    preemptions: u32,
}

pub(super) fn read(
    mut rows: Rows<'_, impl BufRead>,
    options: &ImportOptions,
    out: &mut Out<'_>,
) -> Result<(), ImportError> {
    begin(out, false, None)?;
    let mut run: Option<String> = options.run.clone();
    // Engines by the order of their first requests.
    let mut engines: Vec<String> = Vec::new();
    while let Some((line, row)) = rows.next_as::<Row>(&mut out.tally)? {
        if let Some(of) = &row.of {
            let chosen = run.get_or_insert_with(|| of.clone());
            if chosen != of && options.run.is_some() {
                continue;
            }
            if chosen != of {
                let text =
                    format!("the file holds several runs, such as `{chosen}` and `{of}`; name one with --of RUN");
                return Err(Problem::new("of", text).at(rows.name, Place::Line(line)));
            }
        }
        match row.record(&mut engines) {
            Ok(record) => out.request(record)?,
            Err(problem) => out.tally.refuse(problem.at(rows.name, Place::Line(line)))?,
        }
    }
    Ok(())
}

impl Row {
    fn record(self, engines: &mut Vec<String>) -> Result<RequestRecord, Problem> {
        let arrival_ns = ns_of_ms("arrival_ms", Some(self.arrival_ms))?.unwrap_or(0);
        let after = |field, ms| since(arrival_ns, field, ns_of_ms(field, ms)?);
        let ttft_ns = after("first_token_ms", self.first_token_ms)?;
        let last_ns = after("last_token_ms", self.last_token_ms)?;
        let finish_reason = match self.status.as_str() {
            "completed" => Some(whole(self.output_tokens, self.max_tokens)),
            "rejected" | "shed" | "failed" => Some(FinishReason::Error),
            "unfinished" => None,
            other => {
                let known = "completed, rejected, shed, failed or unfinished";
                return Err(Problem::new("status", format!("invalid status `{other}`: expected {known}")));
            }
        };
        let is_lost = matches!(self.status.as_str(), "rejected" | "shed" | "failed");
        let rank = self.decode_engine.or(self.engine).map_or(0, |name| {
            engines.iter().position(|known| *known == name).unwrap_or_else(|| {
                engines.push(name);
                engines.len() - 1
            })
        });
        checked(RequestRecord {
            id: Some(self.id.to_string()),
            rank: rank as u32,
            session: Some(format!("{}/{}", self.workload, self.session)),
            arrival_ns: Some(arrival_ns),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens,
            ttft_ns,
            gap_summary: mean_gap(ttft_ns, last_ns, self.output_tokens),
            end_ns: after("end_ms", self.end_ms)?,
            queue_ns: after("scheduled_ms", self.scheduled_ms)?,
            finish_reason: finish_reason.map(|reason| reason.name().to_owned()),
            error: is_lost.then(|| self.reason.unwrap_or(self.status)),
            preemptions: self.preemptions,
            ..RequestRecord::default()
        })
    }
}
