//! `requests.jsonl` of `vcr run --out`.

use std::io::BufRead;

use vcr_trace::RequestRow;
use vcr_trace::capture::{FinishReason, RequestRecord};

use super::{begin, mean_gap, ns_of_ms, since, whole};
use crate::error::{Place, Problem};
use crate::input::{Rows, of_bytes};
use crate::output::{Out, checked};
use crate::{ImportError, ImportOptions};

pub(super) fn read(
    mut rows: Rows<'_, impl BufRead>,
    options: &ImportOptions,
    out: &mut Out<'_>,
) -> Result<(), ImportError> {
    begin(out, false, None)?;
    let mut run: Option<String> = options.run.clone();
    // Engines by the order of their first requests.
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
                continue;
            }
            if chosen != of {
                let text =
                    format!("the file holds several runs, such as `{chosen}` and `{of}`; name one with --of RUN");
                return Err(Problem::new("of", text).at(name, Place::Line(line)));
            }
        }
        match record(row, &mut engines) {
            Ok(record) => out.request(record)?,
            Err(problem) => out.tally.refuse(problem.at(name, Place::Line(line)))?,
        }
    }
    Ok(())
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
