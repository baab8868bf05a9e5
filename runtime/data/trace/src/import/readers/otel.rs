//! Reads OpenTelemetry spans with GenAI attributes. The input is OTLP JSON, as one document or one per line, or
//! lines with one span or with the spans of a session. The attributes of the latter are plain fields, as in
//! Exgentic's published traces of agents.
//!
//! vLLM puts the latencies of a request on its span, in seconds. For other spans, only arrival and end are known.

use std::io::BufRead;

use crate::capture::{CaptureMeta, FinishReason, GapSummary, RequestRecord};
use crate::formats::azure::time_ns;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::import::error::{Place, Problem, decode};
use crate::import::output::{Out, Timed, checked, since_earliest};
use crate::import::time::{duration_ns, started_unix_ns, whole_unix_ns};
use crate::import::{Format, ImportError, OUTPUT_TEXT};

/// Attributes with the prompt's length, in the names of the GenAI conventions and of vLLM.
const PROMPT_TOKENS: [&str; 2] = ["gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"];
const OUTPUT_TOKENS: [&str; 2] = ["gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"];
/// Attributes with sampling parameters: (attribute, parameter).
const PARAMS: [(&str, &str); 7] = [
    ("gen_ai.request.max_tokens", "max_tokens"),
    ("gen_ai.request.temperature", "temperature"),
    ("gen_ai.request.top_p", "top_p"),
    ("gen_ai.request.top_k", "top_k"),
    ("gen_ai.request.seed", "seed"),
    ("gen_ai.request.frequency_penalty", "frequency_penalty"),
    ("gen_ai.request.presence_penalty", "presence_penalty"),
];
/// The attributes with the answer, if spans contain it: the current name and the previous name.
const OUTPUTS: [&str; 2] = ["gen_ai.output.messages", "gen_ai.completion"];
const STATUS_ERROR: u64 = 2;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans {
    #[serde(default)]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Deserialize)]
struct ScopeSpans {
    #[serde(default)]
    spans: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OtlpSpan {
    span_id: Option<String>,
    start_time_unix_nano: Whole,
    end_time_unix_nano: Option<Whole>,
    #[serde(default)]
    attributes: Vec<Attribute>,
    #[serde(default)]
    status: Status,
}

/// A span with plain fields. Its trace is a session, unless it names a conversation.
#[derive(Deserialize)]
struct PlainSpan {
    trace_id: Option<String>,
    span_id: Option<String>,
    start_time: String,
    end_time: Option<String>,
    attributes: Option<Map<String, Value>>,
    status: Option<Status>,
}

struct Span {
    id: Option<String>,
    session: Option<String>,
    start_unix_ns: i128,
    lasted_ns: Option<u64>,
    attributes: Map<String, Value>,
    status: Status,
}

impl TryFrom<OtlpSpan> for Span {
    type Error = Problem;

    fn try_from(span: OtlpSpan) -> Result<Self, Problem> {
        let (start, end) = (span.start_time_unix_nano.0, span.end_time_unix_nano);
        let attributes = span.attributes.into_iter();
        Ok(Self {
            id: span.span_id,
            session: None,
            start_unix_ns: whole_unix_ns("startTimeUnixNano", start)?,
            lasted_ns: end.map(|end| lasted("endTimeUnixNano", i128::from(start), i128::from(end.0))).transpose()?,
            attributes: attributes.filter_map(|attribute| Some((attribute.key, plain(&attribute.value)?))).collect(),
            status: span.status,
        })
    }
}

impl TryFrom<PlainSpan> for Span {
    type Error = Problem;

    fn try_from(span: PlainSpan) -> Result<Self, Problem> {
        let unix_ns = |field: &str, text: &str| {
            time_ns(text).map(i128::from).map_err(|problem| Problem::new(field, problem.to_string()))
        };
        let start = unix_ns("start_time", &span.start_time)?;
        let end = span.end_time.map(|end| unix_ns("end_time", &end)).transpose()?;
        Ok(Self {
            id: span.span_id,
            session: span.trace_id,
            start_unix_ns: start,
            lasted_ns: end.map(|end| lasted("end_time", start, end)).transpose()?,
            attributes: span.attributes.unwrap_or_default(),
            status: span.status.unwrap_or_default(),
        })
    }
}

fn lasted(field: &str, start_ns: i128, end_ns: i128) -> Result<u64, Problem> {
    u64::try_from(end_ns - start_ns).map_err(|_| Problem::new(field, "the span ends before it starts; correct it"))
}

/// The spans of a document, and the session if the document names one.
type Spans = (Vec<Result<Span, Problem>>, Option<String>);

fn spans_of(document: Value) -> Result<Spans, Problem> {
    let fields = document.as_object();
    let session = fields.and_then(|fields| ["session_id", "conversation_id"].iter().find_map(|key| fields.get(*key)));
    let session = session.and_then(Value::as_str).map(str::to_owned);
    let plain = |span: Value| decode::<PlainSpan, _>(span).and_then(Span::try_from);
    match document {
        Value::Object(mut fields) if fields.get("spans").is_some_and(Value::is_array) => {
            let spans = fields.remove("spans").and_then(|spans| match spans {
                Value::Array(spans) => Some(spans),
                _ => None,
            });
            Ok((spans.into_iter().flatten().map(plain).collect(), session))
        }
        span @ Value::Object(_) if span.get("span_id").is_some() => Ok((vec![plain(span)], session)),
        document => {
            let document = decode::<Document, _>(document)?;
            let scopes = document.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
            let otlp = |span: Value| decode::<OtlpSpan, _>(span).and_then(Span::try_from);
            Ok((scopes.flat_map(|scope| scope.spans).map(otlp).collect(), None))
        }
    }
}

#[derive(Default, Deserialize)]
struct Status {
    code: Option<Value>,
    message: Option<String>,
}

/// A 64-bit number. OTLP JSON writes it as a text; a number is also accepted.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
struct Whole(u64);

impl TryFrom<Value> for Whole {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
        number.map(Self).ok_or_else(|| format!("invalid time {value}: expected a whole number of nanoseconds"))
    }
}

#[derive(Deserialize)]
struct Attribute {
    key: String,
    #[serde(default)]
    value: Map<String, Value>,
}

pub(crate) fn read(reader: impl BufRead, name: &str, out: &mut Out<'_>) -> Result<(), ImportError> {
    let mut requests = Vec::new();
    let mut model = None;
    let documents = serde_json::Deserializer::from_reader(reader).into_iter::<Value>();
    for (number, document) in documents.enumerate() {
        let document = document.map_err(|error| Problem::new("", error.to_string()).at(name, Place::File))?;
        let place = Place::Path(format!("document {}", number + 1));
        let (spans, session) = match spans_of(document) {
            Ok(found) => found,
            Err(problem) => {
                out.tally.refuse(problem.at(name, place))?;
                continue;
            }
        };
        for (index, span) in spans.into_iter().enumerate() {
            match span.and_then(|span| of_span(span, session.as_deref())) {
                Ok(Some((timed, of_model))) => {
                    model = model.or(of_model);
                    requests.push(timed);
                }
                Ok(None) => out.tally.note("spans of something else than requests"),
                Err(problem) => {
                    let path = format!("document {}, span {}", number + 1, index + 1);
                    out.tally.refuse(problem.at(name, Place::Path(path)))?;
                }
            }
        }
    }
    let started_unix_ns = started_unix_ns(since_earliest(&mut requests));
    out.meta(Format::Otel, CaptureMeta { started_unix_ns, model, ..CaptureMeta::default() })?;
    requests.into_iter().try_for_each(|timed| out.request(timed.record))
}

/// Converts a span to a request and its model; None if the span is not a request.
fn of_span(span: Span, session: Option<&str>) -> Result<Option<(Timed, Option<String>)>, Problem> {
    let Span { attributes, lasted_ns, .. } = span;
    if !PROMPT_TOKENS.iter().any(|key| attributes.contains_key(*key)) {
        return Ok(None);
    }
    let text = |key: &str| attributes.get(key).and_then(Value::as_str).map(str::to_owned);
    let prompt_tokens = tokens(&attributes, &PROMPT_TOKENS)?.unwrap_or_default();
    let output_tokens = tokens(&attributes, &OUTPUT_TOKENS)?.ok_or_else(|| {
        Problem::new(OUTPUT_TOKENS[0], "the attribute is missing; add it, or read leniently to skip the span")
    })?;
    let seconds = |key: &str| match attributes.get(key) {
        None => Ok(None),
        Some(value) => {
            let number = value
                .as_f64()
                .ok_or_else(|| Problem::new(key, format!("invalid time {value}: expected a number of seconds")))?;
            duration_ns(key, number, 1e9).map(Some)
        }
    };
    let ttft_ns = seconds("gen_ai.latency.time_to_first_token")?;
    let end_ns = seconds("gen_ai.latency.e2e")?.or(lasted_ns);
    let count = output_tokens.saturating_sub(1);
    let decode_ns = ttft_ns.zip(end_ns).and_then(|(first, end)| end.checked_sub(first));
    let mean_ns = decode_ns.filter(|_| count > 0).map(|ns| (ns + u64::from(count) / 2) / u64::from(count));
    let (finish_reason, stop_reason) = finish(&attributes, &span.status);
    let failed = span.status.failed();
    let params = PARAMS.iter().filter_map(|(key, name)| Some(((*name).to_owned(), attributes.get(*key)?.clone())));
    let record = RequestRecord {
        id: text("gen_ai.request.id").or(span.id),
        external_id: text("gen_ai.response.id"),
        prompt_tokens,
        cached_tokens: tokens(&attributes, &["gen_ai.usage.cache_read.input_tokens"])?.unwrap_or(0),
        output_tokens,
        ttft_ns,
        gap_summary: mean_ns.map(|mean_ns| GapSummary { mean_ns, count }),
        finish_reason,
        stop_reason,
        end_ns,
        queue_ns: seconds("gen_ai.latency.time_in_queue")?,
        params: params.collect(),
        session: text("gen_ai.conversation.id").or(session.map(str::to_owned)).or(span.session),
        error: span.status.message.filter(|message| failed && !message.is_empty()),
        other: OUTPUTS
            .iter()
            .find_map(|key| text(key))
            .map(|text| (OUTPUT_TEXT.to_owned(), json!(text)))
            .into_iter()
            .collect(),
        ..RequestRecord::default()
    };
    let at_ns = Some(span.start_unix_ns);
    let model = text("gen_ai.request.model").or_else(|| text("gen_ai.response.model"));
    Ok(Some((Timed { at_ns, record: checked(record)? }, model)))
}

impl Status {
    /// Whether the span failed. The status code is a number or a name.
    fn failed(&self) -> bool {
        self.code.as_ref().is_some_and(|code| code == STATUS_ERROR || code == "STATUS_CODE_ERROR" || code == "ERROR")
    }
}

fn tokens(attributes: &Map<String, Value>, keys: &[&str]) -> Result<Option<u32>, Problem> {
    let Some((key, value)) = keys.iter().find_map(|key| Some((key, attributes.get(*key)?))) else { return Ok(None) };
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.map(Some).ok_or_else(|| Problem::new(key, format!("invalid count {value}: expected a number of tokens")))
}

/// The finish reason of a request, and the source's own reason if there is no equivalent.
fn finish(attributes: &Map<String, Value>, status: &Status) -> (Option<String>, Option<Value>) {
    let named = |reason: FinishReason| Some(reason.name().to_owned());
    if status.failed() {
        return (named(FinishReason::Error), None);
    }
    let reasons = attributes.get("gen_ai.response.finish_reasons");
    // Plain fields may contain a list as JSON text.
    let listed = reasons.and_then(|reasons| serde_json::from_str::<Vec<String>>(reasons.as_str()?).ok());
    let reason = reasons.and_then(|reasons| reasons.as_str().or_else(|| reasons.as_array()?.first()?.as_str()));
    let reason = listed.as_ref().and_then(|listed| listed.first()).map(String::as_str).or(reason);
    let Some(reason) = reason else { return (None, None) };
    match (reason, FinishReason::parse(reason)) {
        (_, Some(reason)) => (named(reason), None),
        ("max_tokens", None) => (named(FinishReason::Length), None),
        // With tool calls, filters and so on, the model itself ended the answer.
        (other, None) => (named(FinishReason::Stop), Some(json!(other))),
    }
}

/// The value of an attribute without its type; None if the value is not simple.
fn plain(value: &Map<String, Value>) -> Option<Value> {
    let (kind, value) = value.iter().next()?;
    match kind.as_str() {
        "stringValue" | "boolValue" => Some(value.clone()),
        "intValue" => value.as_str().map_or_else(|| Some(value.clone()), |text| Some(json!(text.parse::<i64>().ok()?))),
        "doubleValue" => {
            value.as_str().map_or_else(|| Some(value.clone()), |text| Some(json!(text.parse::<f64>().ok()?)))
        }
        "arrayValue" => {
            let values = value.get("values")?.as_array()?;
            Some(values.iter().filter_map(|value| plain(value.as_object()?)).collect())
        }
        _ => None,
    }
}
