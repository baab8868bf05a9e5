//! Reads `per_request_lifecycle_metrics.json` of inference-perf: an array of requests with the times of their
//! tokens.

use std::io::BufRead;

use crate::capture::{CaptureMeta, FinishReason, RequestRecord};
use serde::Deserialize;
use serde::de::DeserializeSeed;
use serde_json::Value;

use crate::import::error::{Place, Problem, decode};
use crate::import::input::elements::Each;
use crate::import::output::{Out, Span, Tally, Timed, checked, count_concurrent, since_earliest};
use crate::import::outputs::Outputs;
use crate::import::time::clock_ns;
use crate::import::{Format, ImportError};

/// Nanoseconds per second, which is the unit of all times in these files.
const SECOND: u32 = 1_000_000_000;

#[derive(Deserialize)]
struct Request {
    start_time: f64,
    end_time: f64,
    #[serde(default)]
    info: Value,
    #[serde(default)]
    computed_metrics: Value,
    error: Option<Failure>,
}

#[derive(Deserialize)]
struct Failure {
    #[serde(default)]
    error_type: String,
    #[serde(default)]
    error_msg: String,
}

pub(crate) fn read(reader: impl BufRead, name: &str, out: &mut Out<'_>) -> Result<(), ImportError> {
    let (mut requests, mut failed) = (Vec::new(), None);
    let tally = &mut out.tally;
    let mut add = |index: usize, value: Value| {
        match decode::<Request, _>(value).and_then(|request| request.timed(tally)) {
            Ok(timed) => requests.extend(timed),
            Err(problem) => tally.refuse(problem.at(name, Place::Request(index as u64 + 1)))?,
        }
        Ok(())
    };
    let mut deserializer = serde_json::Deserializer::from_reader(reader);
    let read = Each { of: &mut add, failed: &mut failed }.deserialize(&mut deserializer);
    let read = read.and_then(|_| deserializer.end());
    if let Some(error) = failed {
        return Err(error);
    }
    read.map_err(|error| Problem::new("", error.to_string()).at(name, Place::File))?;
    count_concurrent(&mut requests, |timed| Some(Span { at_ns: timed.at_ns?, duration_ns: timed.record.end_ns? }));
    since_earliest(&mut requests);
    out.meta(Format::InferencePerf, CaptureMeta::default())?;
    requests.into_iter().try_for_each(|timed| out.request(timed.record))
}

/// The number of tokens at the first of these paths that leads to a number.
fn tokens(value: &Value, places: &[&str]) -> Option<u32> {
    places.iter().find_map(|place| value.pointer(place)?.as_f64()).filter(|number| *number >= 0.0).map(|n| n as u32)
}

impl Request {
    fn timed(self, tally: &mut Tally) -> Result<Option<Timed>, Problem> {
        let at_ns = clock_ns("start_time", self.start_time, SECOND)?;
        let since = |field: &str, time: f64| {
            let since = clock_ns(field, time, SECOND)? - at_ns;
            u64::try_from(since).map_err(|_| Problem::new(field, "the time is before `start_time`; correct it"))
        };
        let prompt = tokens(
            &self.info,
            &["/request_metrics/text/input_tokens", "/response_metrics/server_usage/prompt_tokens", "/input_tokens"],
        );
        let prompt = prompt.or_else(|| tokens(&self.computed_metrics, &["/input_tokens"])).filter(|tokens| *tokens > 0);
        let Some(prompt_tokens) = prompt else {
            if self.error.is_some() {
                tally.note("failed requests without the length of their prompts were left out");
                return Ok(None);
            }
            return Err(Problem::new("info.request_metrics.text.input_tokens", "the count is missing; keep `info`"));
        };
        let output = tokens(
            &self.info,
            &["/response_metrics/server_usage/completion_tokens", "/response_metrics/output_tokens", "/output_tokens"],
        );
        let output = output.or_else(|| tokens(&self.computed_metrics, &["/output_tokens"]));
        let cached = tokens(&self.info, &["/response_metrics/server_usage/prompt_tokens_details/cached_tokens"]);
        let has_failed = self.error.is_some();
        let mut record = RequestRecord {
            prompt_tokens,
            cached_tokens: cached.unwrap_or(0).min(prompt_tokens),
            output_tokens: output.unwrap_or(0),
            end_ns: Some(since("end_time", self.end_time)?),
            lora: self.info.get("lora_adapter").and_then(Value::as_str).map(str::to_owned),
            finish_reason: has_failed.then(|| FinishReason::Error.name().to_owned()),
            error: self.error.map(|failure| format!("{} {}", failure.error_type, failure.error_msg).trim().to_owned()),
            ..RequestRecord::default()
        };
        let field = "info.response_metrics.output_token_times";
        // Without corrected times of tokens, the times of chunks are used.
        let places = ["/response_metrics/output_token_times", "/output_token_times", "/response_metrics/chunk_times"];
        let list = |place: &&str| self.info.pointer(place)?.as_array().filter(|times| !times.is_empty());
        let times = places.iter().find_map(list);
        let times = times.into_iter().flatten().filter_map(Value::as_f64);
        let times: Vec<u64> = times.map(|time| since(field, time)).collect::<Result<_, _>>()?;
        if let Some(outputs) = outputs(&times, record.output_tokens) {
            outputs.enter(&mut record, tally);
        }
        Ok(Some(Timed { at_ns: Some(at_ns), record: checked(record)? }))
    }
}

/// Computes the outputs of an answer from the times of its tokens. Tokens of one chunk have equal times.
fn outputs(times: &[u64], output_tokens: u32) -> Option<Outputs> {
    let first_ns = *times.first()?;
    let mut chunks: Vec<(u64, u32)> = Vec::new();
    for time in times {
        match chunks.last_mut() {
            Some((at_ns, tokens)) if *time <= *at_ns => *tokens += 1,
            _ => chunks.push((*time, 1)),
        }
    }
    let gaps_ns: Vec<u64> = chunks.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    if times.len() != output_tokens as usize {
        // The client's tokenizer and the server may count differently.
        return Some(Outputs::of_pieces(first_ns, gaps_ns, output_tokens));
    }
    let tokens: Vec<u32> = chunks.iter().map(|(_, tokens)| *tokens).collect();
    let tokens = if tokens.iter().all(|tokens| *tokens == 1) { Vec::new() } else { tokens };
    Some(Outputs { first_ns, gaps_ns, tokens, is_spread: false })
}
