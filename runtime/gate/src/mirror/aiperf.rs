//! `profile_export.jsonl` of aiperf: one record a request, metrics with their units.
//!
//! It has no outputs. Request ids are made anew by each run, so that runs are joined by the place
//! of a request in its conversation.

use std::io::BufRead;

use serde_json::{Map, Value};
use vcr_import::Outputs;

use super::fields::{error_class, known, ns, object, of_number, optional_text};
use super::{Out, each_line};
use crate::error::{GateError, Place, Problem};
use crate::observation::Observation;

/// The phase of requests that are not measured.
const WARMUP: &str = "warmup";

pub(super) fn read(reader: impl BufRead, out: &mut Out<'_, '_>) -> Result<(), GateError> {
    let name = out.name.clone();
    each_line(reader, &name, |line, bytes| {
        let place = Place::Line(line);
        let observed = object(bytes).and_then(|row| observation(&row, line));
        match observed.map_err(|problem| out.problem(problem, place))? {
            Some((observation, tokens)) => out.add(observation, tokens, place),
            None => Ok(std::ops::ControlFlow::Continue(())),
        }
    })
}

fn observation(row: &Map<String, Value>, line: u64) -> Result<Option<(Observation<'static>, Option<u64>)>, Problem> {
    let part = |key: &str| {
        let part = row.get(key).and_then(Value::as_object);
        part.ok_or_else(|| Problem::new(key, "the object is missing: expected a record of aiperf"))
    };
    let (metadata, metrics) = (part("metadata")?, part("metrics")?);
    if metadata.get("benchmark_phase").is_some_and(|phase| phase == WARMUP) {
        return Ok(None);
    }
    let conversation = match optional_text(metadata, "conversation_id")? {
        Some(id) => Some(id),
        None => optional_text(metadata, "session_num")?,
    };
    let turn = optional_text(metadata, "turn_index")?.unwrap_or_default();
    let id = optional_text(metadata, "x_request_id")?.unwrap_or_else(|| format!("line {line}"));
    let is_cancelled = metadata.get("was_cancelled").is_some_and(|cancelled| cancelled == true);
    let error = known(row, "error").map(error_class).or_else(|| is_cancelled.then(|| "cancelled".to_owned()));
    let latency_ns = match metric_ns(metrics, "request_latency")? {
        Some(ns) => ns,
        None => elapsed_ns(metadata)?,
    };
    let length = metrics.get("output_sequence_length").and_then(|metric| metric.get("value")?.as_u64());
    let ttft_ns = metric_ns(metrics, "time_to_first_token")?.filter(|ttft| *ttft <= latency_ns);
    let outputs = outputs(metrics, ttft_ns, length.unwrap_or(0))?.filter(|_| error.is_none());
    let event_ns = outputs.as_ref().map(Outputs::after_ns);
    let last_ns = event_ns.as_ref().and_then(|events| events.last().copied());
    let observation = Observation {
        request_id: id.into(),
        content: conversation.map(|conversation| format!("{conversation}/{turn}").into()),
        ok: error.is_none(),
        error: error.map(Into::into),
        latency_ns: Some(latency_ns).max(last_ns),
        ttft_ns: ttft_ns.filter(|_| event_ns.is_none()),
        mean_gap_ns: metric_ns(metrics, "inter_token_latency")?.filter(|_| event_ns.is_none()),
        event_ns,
        event_tokens: outputs.map(|outputs| outputs.tokens).filter(|tokens| !tokens.is_empty()),
        replica: optional_text(metadata, "worker_id")?.map(Into::into),
        ..Observation::default()
    };
    Ok(Some((observation, length)))
}

/// When the outputs of an answer came, if the record says that of each.
fn outputs(metrics: &Map<String, Value>, ttft_ns: Option<u64>, tokens: u64) -> Result<Option<Outputs>, Problem> {
    let Some(metric) = metrics.get("inter_chunk_latency").filter(|metric| !metric.is_null()) else { return Ok(None) };
    let Some((first_ns, gaps)) = ttft_ns.zip(metric.get("value").and_then(Value::as_array)) else { return Ok(None) };
    let unit_ns = ns_per_unit("inter_chunk_latency", metric)?;
    let gap_ns = |gap: &Value| ns("inter_chunk_latency", of_number("inter_chunk_latency", gap)?, unit_ns);
    let gaps_ns = gaps.iter().map(gap_ns).collect::<Result<_, _>>()?;
    let tokens = u32::try_from(tokens).ok().filter(|tokens| *tokens > 0);
    Ok(tokens.map(|tokens| Outputs::of_pieces(first_ns, gaps_ns, tokens)))
}

fn ns_per_unit(name: &str, metric: &Value) -> Result<f64, Problem> {
    match metric.get("unit").and_then(Value::as_str).unwrap_or_default() {
        "ns" => Ok(1.0),
        "us" => Ok(1e3),
        "ms" => Ok(1e6),
        "s" | "sec" => Ok(1e9),
        unit => Err(Problem::new(name, format!("invalid unit `{unit}`: expected ns, us, ms or s"))),
    }
}

/// A metric in nanoseconds by its own unit.
fn metric_ns(metrics: &Map<String, Value>, name: &str) -> Result<Option<u64>, Problem> {
    let Some(metric) = metrics.get(name).filter(|metric| !metric.is_null()) else { return Ok(None) };
    let ns_per_unit = ns_per_unit(name, metric)?;
    let value = of_number(name, metric.get("value").unwrap_or(&Value::Null))?;
    ns(name, value, ns_per_unit).map(Some)
}

/// Failed requests have no latency, but a start and an end.
fn elapsed_ns(metadata: &Map<String, Value>) -> Result<u64, Problem> {
    let at = |key: &str| metadata.get(key).and_then(Value::as_u64);
    let missing = || Problem::new("metrics.request_latency", "the metric is missing, and so are the start and the end");
    let (start, end) = at("request_start_ns").zip(at("request_end_ns")).ok_or_else(missing)?;
    end.checked_sub(start).ok_or_else(|| Problem::new("metadata.request_end_ns", "the request ends before it starts"))
}
