//! Reads `requests.jsonl` of `vcr run --out`.
//!
//! A simulated answer consists only of its length, which serves as its fingerprint. A request's id comes from the
//! trace, or else from workload, session, turn and attempt, so that runs of one workload can be matched.

use std::io::BufRead;
use std::ops::ControlFlow;

use vcr_trace::RequestRow;

use super::{Out, each_line, fields, length};
use crate::error::{GateError, Place, Problem};
use crate::observation::Observation;

pub(super) fn read(reader: impl BufRead, run: Option<&str>, out: &mut Out<'_, '_>) -> Result<(), GateError> {
    let name = out.name.clone();
    let mut chosen: Option<String> = run.map(str::to_owned);
    let mut known: Vec<String> = Vec::new();
    each_line(reader, &name, |line, bytes| {
        let place = Place::Line(line);
        let row: RequestRow<'_> =
            serde_json::from_slice(bytes).map_err(|error| out.problem(Problem::new("", error.to_string()), place))?;
        let of = row.run();
        if known.last().is_none_or(|last| last != of) && !known.iter().any(|name| name == of) {
            known.push(of.to_owned());
        }
        let chosen = chosen.get_or_insert_with(|| of.to_owned());
        if chosen != of {
            if run.is_some() {
                return Ok(ControlFlow::Continue(()));
            }
            let text = format!("the file holds several runs, such as `{chosen}` and `{of}`; name one as PATH#RUN");
            return Err(out.problem(Problem::new("of", text), place));
        }
        match observation(&row) {
            // A request that has not ended gives no observation.
            Ok(None) => Ok(ControlFlow::Continue(())),
            Ok(Some(observation)) => out.add(observation, None, place),
            Err(problem) => Err(out.problem(problem, place)),
        }
    })?;
    match run.filter(|run| known.iter().all(|name| name != run)) {
        Some(run) => {
            let text = format!("unknown run `{run}`: expected {}", known.join(", "));
            Err(out.problem(Problem::new("of", text), Place::File))
        }
        None => Ok(()),
    }
}

fn observation(row: &RequestRow<'_>) -> Result<Option<Observation<'static>>, Problem> {
    let ok = row.status == "completed";
    if row.status == "unfinished" {
        return Ok(None);
    }
    let ms = |field: &str, ms: Option<f64>| ms.map(|ms| fields::ns(field, ms, 1e6)).transpose();
    let lasted_ms = row.end_ms.map(|end| (end - row.arrival_ms).max(0.0));
    let latency_ns = ms("e2e_ms", row.e2e_ms)?.or(ms("end_ms", lasted_ms)?).unwrap_or(0);
    let ttft_ns = ms("ttft_ms", row.ttft_ms)?.filter(|ttft_ns| *ttft_ns <= latency_ns);
    let output_tokens = u64::from(row.output_tokens);
    let gaps = output_tokens.saturating_sub(1);
    let decode_ns = ttft_ns.filter(|_| ok && gaps > 0).map(|ttft_ns| latency_ns - ttft_ns);
    let place = format!("{}/{}/{}", row.workload, row.session, row.turn);
    let id = row.name.as_deref().map_or_else(|| place.clone(), str::to_owned);
    let attempt = row.attempt;
    let replica = row.decode_engine.as_ref().or(row.engine.as_ref());
    Ok(Some(Observation {
        request_id: if attempt == 0 { id.into() } else { format!("{id}#{attempt}").into() },
        ok,
        error: (!ok).then(|| row.status.clone().into_owned().into()),
        latency_ns: Some(latency_ns),
        ttft_ns,
        mean_gap_ns: decode_ns.map(|ns| (ns + gaps / 2) / gaps),
        fingerprint: ok.then(|| length(output_tokens).into()),
        replica: replica.map(|name| name.clone().into_owned().into()),
        ..Observation::default()
    }))
}
