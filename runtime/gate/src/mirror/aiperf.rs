//! `profile_export.jsonl` of aiperf: one record a request, metrics with their units.
//!
//! It has no outputs. Request ids are made anew by each run, so that runs are joined by the place
//! of a request in its conversation.

use std::io::BufRead;

use serde_json::{Map, Value};

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
    let observation = Observation {
        request_id: id.into(),
        content: conversation.map(|conversation| format!("{conversation}/{turn}").into()),
        ok: error.is_none(),
        error: error.map(Into::into),
        latency_ns: Some(latency_ns),
        ttft_ns: metric_ns(metrics, "time_to_first_token")?.filter(|ttft| *ttft <= latency_ns),
        mean_gap_ns: metric_ns(metrics, "inter_token_latency")?,
        replica: optional_text(metadata, "worker_id")?.map(Into::into),
        ..Observation::default()
    };
    let length = metrics.get("output_sequence_length").and_then(|metric| metric.get("value")?.as_u64());
    Ok(Some((observation, length)))
}

/// A metric in nanoseconds by its own unit.
fn metric_ns(metrics: &Map<String, Value>, name: &str) -> Result<Option<u64>, Problem> {
    let Some(metric) = metrics.get(name).filter(|metric| !metric.is_null()) else { return Ok(None) };
    let unit = metric.get("unit").and_then(Value::as_str).unwrap_or_default();
    let ns_per_unit = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" | "sec" => 1e9,
        _ => return Err(Problem::new(name, format!("invalid unit `{unit}`: expected ns, us, ms or s"))),
    };
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
