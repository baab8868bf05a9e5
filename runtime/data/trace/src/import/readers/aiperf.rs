//! Reads `profile_export.jsonl` of aiperf: one request per line, with metrics and their units.

use std::io::BufRead;

use crate::capture::{CaptureMeta, FinishReason, GapSummary, RequestRecord};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::import::error::{Place, Problem};
use crate::import::input::{Rows, of_bytes};
use crate::import::output::{Out, Span, Tally, Timed, checked, count_concurrent, since_earliest};
use crate::import::outputs::Outputs;
use crate::import::time::{duration_ns, started_unix_ns, whole_unix_ns};
use crate::import::{Format, ImportError};

/// The phase of requests that are not measured.
const WARMUP: &str = "warmup";

#[derive(Deserialize)]
struct Row {
    metadata: Metadata,
    #[serde(default)]
    metrics: Map<String, Value>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Metadata {
    x_request_id: Option<String>,
    conversation_id: Option<String>,
    session_num: Option<Value>,
    turn_index: Option<Value>,
    worker_id: Option<Value>,
    request_start_ns: Option<u64>,
    request_end_ns: Option<u64>,
    benchmark_phase: Option<String>,
    #[serde(default)]
    was_cancelled: bool,
}

/// A request that aiperf measured.
#[derive(Clone, Debug, PartialEq)]
pub struct AiperfRequest {
    /// The request's id at the server.
    pub id: Option<String>,
    /// Id of the conversation, if it has one.
    pub conversation_id: Option<String>,
    /// Number of the conversation.
    pub session_num: Option<String>,
    /// Index of the request in the conversation.
    pub turn: Option<String>,
    /// The worker of aiperf that sent the request.
    pub worker: Option<String>,
    /// Start of the request, in nanoseconds since 1970.
    pub start_ns: Option<u64>,
    /// Nanoseconds from the start to the end.
    pub latency_ns: Option<u64>,
    /// Nanoseconds from the start to the first token.
    pub ttft_ns: Option<u64>,
    /// The mean gap between tokens, in nanoseconds.
    pub mean_gap_ns: Option<u64>,
    /// The gaps between chunks of the answer, in nanoseconds.
    pub gaps_ns: Option<Vec<u64>>,
    /// Number of prompt tokens.
    pub prompt_tokens: Option<u32>,
    /// Number of prompt tokens that were in the server's cache.
    pub cached_tokens: Option<u32>,
    /// Number of answer tokens.
    pub output_tokens: Option<u32>,
    /// The error in the form that aiperf recorded.
    pub error: Option<Value>,
    /// Whether the client cancelled the request.
    pub was_cancelled: bool,
}

impl AiperfRequest {
    /// Reads a line of the file. `None` for a warm-up request.
    ///
    /// # Errors
    /// If the line is not a record of aiperf.
    pub fn parse(line: &[u8]) -> Result<Option<Self>, Problem> {
        Self::of_row(of_bytes(line)?)
    }

    fn of_row(row: Row) -> Result<Option<Self>, Problem> {
        let Row { metadata, metrics, error } = row;
        if metadata.benchmark_phase.as_deref() == Some(WARMUP) {
            return Ok(None);
        }
        let elapsed_ns = metadata.request_end_ns.zip(metadata.request_start_ns);
        let elapsed_ns = elapsed_ns.and_then(|(end_ns, start_ns)| end_ns.checked_sub(start_ns));
        Ok(Some(Self {
            id: metadata.x_request_id,
            conversation_id: metadata.conversation_id,
            session_num: metadata.session_num.and_then(text),
            turn: metadata.turn_index.and_then(text),
            worker: metadata.worker_id.and_then(text),
            start_ns: metadata.request_start_ns,
            latency_ns: metric_ns(&metrics, "request_latency")?.or(elapsed_ns),
            ttft_ns: metric_ns(&metrics, "time_to_first_token")?,
            mean_gap_ns: metric_ns(&metrics, "inter_token_latency")?,
            gaps_ns: metric_list_ns(&metrics, "inter_chunk_latency")?,
            prompt_tokens: tokens(&metrics, &["input_sequence_length", "usage_prompt_tokens"])?,
            cached_tokens: tokens(&metrics, &["usage_prompt_cache_read_tokens"])?,
            output_tokens: tokens(&metrics, &["output_sequence_length", "usage_completion_tokens"])?,
            error: error.filter(|error| !error.is_null()),
            was_cancelled: metadata.was_cancelled,
        }))
    }

    /// Converts the request to a record of a capture. `None` if that is impossible, which is counted.
    fn timed(self, tally: &mut Tally) -> Result<Option<Timed>, Problem> {
        let has_failed = self.error.is_some() || self.was_cancelled;
        let Some(prompt_tokens) = self.prompt_tokens else {
            if has_failed {
                tally.note("failed requests without the length of their prompts were left out");
                return Ok(None);
            }
            return Err(Problem::new("metrics.input_sequence_length", "the metric is missing; add it"));
        };
        let ended = match (self.was_cancelled, has_failed) {
            (true, _) => Some(FinishReason::Abort),
            (false, true) => Some(FinishReason::Error),
            (false, false) => None,
        };
        let mut record = RequestRecord {
            external_id: self.id,
            session: self.conversation_id,
            prompt_tokens,
            cached_tokens: self.cached_tokens.unwrap_or(0).min(prompt_tokens),
            output_tokens: self.output_tokens.unwrap_or(0),
            end_ns: self.latency_ns,
            finish_reason: ended.map(|reason| reason.name().to_owned()),
            error: self.error.map(|error| {
                error.get("message").and_then(Value::as_str).map_or_else(|| error.to_string(), str::to_owned)
            }),
            ..RequestRecord::default()
        };
        if let Some(ttft_ns) = self.ttft_ns {
            record.ttft_ns = Some(ttft_ns);
            if let Some(gaps_ns) = self.gaps_ns {
                Outputs::of_pieces(ttft_ns, gaps_ns, record.output_tokens).enter(&mut record, tally);
            } else if let Some(mean_ns) = self.mean_gap_ns {
                let count = record.output_tokens.saturating_sub(1);
                record.gap_summary = (count > 0).then_some(GapSummary { mean_ns, count });
            }
        }
        let at_ns = self.start_ns.map(|start_ns| whole_unix_ns("metadata.request_start_ns", start_ns)).transpose()?;
        Ok(Some(Timed { at_ns, record: checked(record)? }))
    }
}

pub(crate) fn read(reader: impl BufRead, name: &str, out: &mut Out<'_>) -> Result<(), ImportError> {
    let mut rows = Rows::new(reader, name);
    let mut requests = Vec::new();
    while let Some((line, row)) = rows.next_as::<Row>(&mut out.tally)? {
        let timed = match AiperfRequest::of_row(row) {
            Ok(Some(request)) => request.timed(&mut out.tally),
            Ok(None) => {
                out.tally.note("requests of the warm-up were left out");
                continue;
            }
            Err(problem) => Err(problem),
        };
        match timed {
            Ok(timed) => requests.extend(timed),
            Err(problem) => out.tally.refuse(problem.at(name, Place::Line(line)))?,
        }
    }
    count_concurrent(&mut requests, |timed| {
        Some(Span { at_ns: timed.at_ns?, duration_ns: timed.record.duration_ns()? })
    });
    let started_unix_ns = started_unix_ns(since_earliest(&mut requests));
    out.meta(Format::Aiperf, CaptureMeta { started_unix_ns, ..CaptureMeta::default() })?;
    requests.into_iter().try_for_each(|timed| out.request(timed.record))
}

/// Reads an id, which some versions write as a number.
fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text).filter(|text| !text.is_empty()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn metric<'m>(metrics: &'m Map<String, Value>, name: &str) -> Option<&'m Value> {
    metrics.get(name).filter(|metric| !metric.is_null())
}

/// The value of the first of these metrics, which must be a number of tokens.
fn tokens(metrics: &Map<String, Value>, names: &[&str]) -> Result<Option<u32>, Problem> {
    let Some((name, metric)) = names.iter().find_map(|name| Some((*name, metric(metrics, name)?))) else {
        return Ok(None);
    };
    let value = metric.get("value").and_then(Value::as_f64);
    match value.filter(|value| value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(value)) {
        Some(value) => Ok(Some(value as u32)),
        None => Err(Problem::new(&format!("metrics.{name}"), "invalid value: expected a whole number of tokens")),
    }
}

fn ns_per_unit(name: &str, metric: &Value) -> Result<f64, Problem> {
    match metric.get("unit").and_then(Value::as_str).unwrap_or_default() {
        "ns" => Ok(1.0),
        "us" => Ok(1e3),
        "ms" => Ok(1e6),
        "s" | "sec" => Ok(1e9),
        unit => {
            let text = format!("invalid unit `{unit}`: expected ns, us, ms or s");
            Err(Problem::new(&format!("metrics.{name}"), text))
        }
    }
}

fn time_ns(name: &str, value: &Value, ns_per_unit: f64) -> Result<u64, Problem> {
    let field = format!("metrics.{name}");
    let number = value.as_f64().ok_or_else(|| Problem::new(&field, "invalid value: expected a number"))?;
    duration_ns(&field, number, ns_per_unit)
}

fn metric_ns(metrics: &Map<String, Value>, name: &str) -> Result<Option<u64>, Problem> {
    let Some(metric) = metric(metrics, name) else { return Ok(None) };
    let value = metric.get("value").unwrap_or(&Value::Null);
    time_ns(name, value, ns_per_unit(name, metric)?).map(Some)
}

fn metric_list_ns(metrics: &Map<String, Value>, name: &str) -> Result<Option<Vec<u64>>, Problem> {
    let Some(metric) = metric(metrics, name) else { return Ok(None) };
    let Some(values) = metric.get("value").and_then(Value::as_array) else { return Ok(None) };
    let ns_per_unit = ns_per_unit(name, metric)?;
    values.iter().map(|value| time_ns(name, value, ns_per_unit)).collect::<Result<_, _>>().map(Some)
}
