//! Reads results of `vllm bench serve --save-detailed` and of `sglang.bench_serving --output-details`. There is an
//! object for each load, with a list for each property of the load's requests.

use std::io::BufRead;

use crate::capture::{CaptureMeta, FinishReason, RequestRecord};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::import::error::{Place, Problem, decode};
use crate::import::input::read_python_json;
use crate::import::output::{Out, Span, Tally, Timed, checked, count_concurrent, since_earliest};
use crate::import::outputs::Outputs;
use crate::import::time::{clock_ns, duration_ns};
use crate::import::{Format, ImportError, OUTPUT_TEXT};

/// Nanoseconds per second, which is the unit of all times in these files.
const SECOND: u32 = 1_000_000_000;
/// Settings of the load that are kept in the meta line.
const SETTINGS: [&str; 7] =
    ["backend", "tokenizer_id", "request_rate", "burstiness", "max_concurrency", "dataset_name", "label"];

#[derive(Deserialize)]
struct Load {
    model_id: Option<String>,
    request_rate: Option<Value>,
    max_concurrency: Option<u32>,
    #[serde(default)]
    input_lens: Vec<u32>,
    #[serde(default)]
    output_lens: Vec<u32>,
    #[serde(default)]
    ttfts: Vec<f64>,
    #[serde(default)]
    itls: Vec<Vec<f64>>,
    #[serde(default)]
    start_times: Vec<f64>,
    #[serde(default)]
    latencies: Vec<f64>,
    #[serde(default)]
    cached_tokens: Vec<Option<u32>>,
    #[serde(default)]
    errors: Vec<Option<String>>,
    #[serde(default)]
    generated_texts: Vec<Option<String>>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

pub(crate) fn read(reader: impl BufRead, name: &str, format: Format, out: &mut Out<'_>) -> Result<(), ImportError> {
    let read_error = |source| ImportError::Read { name: name.to_owned(), source };
    let bytes = read_python_json(reader).map_err(read_error)?;
    let mut documents = serde_json::Deserializer::from_slice(&bytes).into_iter::<Value>();
    let (mut requests, mut meta) = (Vec::new(), None);
    for number in 1.. {
        let Some(document) = documents.next() else { break };
        let place = Place::Path(format!("load {number}"));
        let document = document.map_err(|error| Problem::new("", error.to_string()).at(name, place.clone()))?;
        let load: Load = decode(document).map_err(|problem| problem.at(name, place.clone()))?;
        load.check().map_err(|problem| problem.at(name, place))?;
        meta.get_or_insert_with(|| load.meta());
        load.add(name, number, &mut requests, &mut out.tally)?;
    }
    since_earliest(&mut requests);
    out.meta(format, meta.unwrap_or_default())?;
    requests.into_iter().try_for_each(|timed| out.request(timed.record))
}

impl Load {
    /// Checks that the lists have equal lengths.
    fn check(&self) -> Result<(), Problem> {
        let count = self.ttfts.len();
        if count == 0 {
            let text = "the file has the totals of a load, not its requests: run `vllm bench serve` with \
                        --save-detailed (`sglang.bench_serving` with --output-details)";
            return Err(Problem::new("ttfts", text));
        }
        let lists = [
            ("input_lens", self.input_lens.len(), true),
            ("output_lens", self.output_lens.len(), true),
            ("itls", self.itls.len(), true),
            ("start_times", self.start_times.len(), false),
            ("latencies", self.latencies.len(), false),
            ("cached_tokens", self.cached_tokens.len(), false),
            ("errors", self.errors.len(), false),
            ("generated_texts", self.generated_texts.len(), false),
        ];
        let is_wrong = |(_, len, is_needed): &&(&str, usize, bool)| *len != count && (*is_needed || *len > 0);
        match lists.iter().find(is_wrong) {
            Some((field, len, _)) => {
                let text = format!("invalid length {len}: expected {count}, one for each of `ttfts`");
                Err(Problem::new(field, text))
            }
            None => Ok(()),
        }
    }

    fn meta(&self) -> CaptureMeta {
        let mut other: Map<String, Value> =
            self.others.iter().filter(|(key, _)| SETTINGS.contains(&key.as_str())).map(clone_of).collect();
        other.extend(self.request_rate.clone().map(|rate| ("request_rate".to_owned(), rate)));
        other.extend(self.max_concurrency.map(|limit| ("max_concurrency".to_owned(), limit.into())));
        CaptureMeta { model: self.model_id.clone(), other, ..CaptureMeta::default() }
    }

    fn add(self, name: &str, number: u64, requests: &mut Vec<Timed>, tally: &mut Tally) -> Result<(), ImportError> {
        let first = requests.len();
        for index in 0..self.ttfts.len() {
            match self.request(index, tally) {
                Ok(timed) => requests.extend(timed),
                Err(problem) => {
                    let place = Place::Path(format!("load {number}, request {}", index + 1));
                    tally.refuse(problem.at(name, place))?;
                }
            }
        }
        let added = &mut requests[first..];
        if self.start_times.is_empty() {
            tally.notes_of("requests without an arrival, which the file does not have", added.len() as u64);
        }
        // Without a rate, a new request is sent whenever a request ends, up to the concurrency limit.
        let is_closed = match &self.request_rate {
            None | Some(Value::Null) => true,
            Some(rate) => rate == "inf",
        };
        match self.max_concurrency.filter(|_| is_closed) {
            Some(limit) => added.iter_mut().for_each(|timed| timed.record.concurrency = Some(limit)),
            None => count_concurrent(added, |timed| {
                Some(Span { at_ns: timed.at_ns?, duration_ns: timed.record.duration_ns()? })
            }),
        }
        Ok(())
    }

    /// Converts a request; None if it failed before it was sent.
    fn request(&self, index: usize, tally: &mut Tally) -> Result<Option<Timed>, Problem> {
        let text = |list: &[Option<String>]| list.get(index).cloned().flatten().filter(|text| !text.is_empty());
        let seconds = |field: &str, value: f64| duration_ns(field, value, f64::from(SECOND));
        let output_tokens = self.output_lens[index];
        let error = text(&self.errors);
        let has_answer = error.is_none() && output_tokens > 0;
        let start = self.start_times.get(index).copied().filter(|start| has_answer || *start != 0.0);
        if start.is_none() && !self.start_times.is_empty() {
            tally.note("requests that failed before they were sent were left out");
            return Ok(None);
        }
        let at_ns = start.map(|start| clock_ns("start_times", start, SECOND)).transpose()?;
        let mut record = RequestRecord {
            id: Some(index.to_string()),
            prompt_tokens: self.input_lens[index],
            cached_tokens: self.cached_tokens.get(index).copied().flatten().unwrap_or(0),
            output_tokens,
            finish_reason: (!has_answer).then(|| FinishReason::Error.name().to_owned()),
            other: text(&self.generated_texts).map(|text| (OUTPUT_TEXT.to_owned(), text.into())).into_iter().collect(),
            ..RequestRecord::default()
        };
        if has_answer {
            let first_ns = seconds("ttfts", self.ttfts[index])?;
            let gaps_ns = self.itls[index].iter().map(|gap| seconds("itls", *gap)).collect::<Result<_, _>>()?;
            Outputs::of_pieces(first_ns, gaps_ns, output_tokens).enter(&mut record, tally);
        } else {
            record.output_tokens = 0;
            record.error = Some(error.unwrap_or_else(|| "no output".to_owned()));
        }
        let latency = self.latencies.get(index).copied().filter(|latency| *latency > 0.0);
        let latency_ns = latency.map(|latency| seconds("latencies", latency)).transpose()?;
        record.end_ns = latency_ns.or_else(|| record.duration_ns().filter(|_| has_answer));
        Ok(Some(Timed { at_ns, record: checked(record)? }))
    }
}

fn clone_of((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}
