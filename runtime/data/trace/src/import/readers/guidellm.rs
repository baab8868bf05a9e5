//! Reads reports of guidellm 0.6 to 0.8.
//!
//! A report is read as a stream: only one whole request is in memory at a time, and the needed data of all
//! requests. A report contains only the mean gap between tokens.

use std::fmt;
use std::io::BufRead;

use crate::capture::{CaptureMeta, FinishReason, GapSummary, RequestRecord};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use crate::import::error::{Place, Problem, decode};
use crate::import::input::elements::Each;
use crate::import::output::{Out, Span, Tally, Timed, checked, count_concurrent, since_earliest};
use crate::import::time::{duration_ns, started_unix_ns, unix_ns};
use crate::import::{Format, ImportError, OUTPUT_TEXT};

/// The lists of requests, with the finish reason of their requests.
const LISTS: [(&str, Option<FinishReason>); 3] =
    [("successful", None), ("incomplete", Some(FinishReason::Abort)), ("errored", Some(FinishReason::Error))];

pub(crate) fn read(reader: impl BufRead, name: &str, out: &mut Out<'_>) -> Result<(), ImportError> {
    let mut report = Report {
        name,
        tally: &mut out.tally,
        requests: Vec::new(),
        failed: None,
        args: None,
        config: None,
        version: None,
        benchmarks: 0,
    };
    let mut deserializer = serde_json::Deserializer::from_reader(reader);
    let read = Top(&mut report).deserialize(&mut deserializer).and_then(|()| deserializer.end());
    if let Some(error) = report.failed.take() {
        return Err(error);
    }
    if let Err(error) = read {
        return Err(Problem::new("", error.to_string()).at(name, Place::File));
    }
    let Report { mut requests, args, config, version, .. } = report;
    let earliest = since_earliest(&mut requests);
    // Since 0.8 the settings are elsewhere.
    let text = |field: &str, path: &str| {
        let found = args.as_ref().and_then(|args| args.get(field)).or_else(|| config.as_ref()?.pointer(path));
        found.and_then(Value::as_str).map(str::to_owned)
    };
    let mut other = Map::new();
    other.extend(version.map(|version| ("guidellm_version".to_owned(), version)));
    other.extend(text("profile", "/spec/profile/kind").map(|profile| ("profile".to_owned(), json!(profile))));
    let started_unix_ns = started_unix_ns(earliest);
    out.meta(
        Format::Guidellm,
        CaptureMeta { started_unix_ns, model: text("model", "/spec/backend/model"), other, ..CaptureMeta::default() },
    )?;
    requests.into_iter().try_for_each(|timed| out.request(timed.record))
}

struct Report<'a> {
    name: &'a str,
    tally: &'a mut Tally,
    requests: Vec<Timed>,
    /// An error that the deserializer's error type cannot contain.
    failed: Option<ImportError>,
    args: Option<Value>,
    config: Option<Value>,
    version: Option<Value>,
    benchmarks: usize,
}

#[derive(Deserialize)]
struct Stats {
    request_id: Option<String>,
    prompt_tokens: Option<u32>,
    cached_tokens: Option<u32>,
    output_tokens: Option<u32>,
    time_to_first_token_ms: Option<f64>,
    inter_token_latency_ms: Option<f64>,
    request_start_time: Option<f64>,
    request_latency: Option<f64>,
    output: Option<String>,
    #[serde(default)]
    info: Info,
}

#[derive(Default, Deserialize)]
struct Info {
    error: Option<String>,
    conversation_id: Option<String>,
}

impl Stats {
    fn timed(self, ended: Option<FinishReason>) -> Result<Timed, Problem> {
        let needed = |field: &str, value: Option<u32>| {
            value.ok_or_else(|| {
                Problem::new(field, "the count is missing; add it, or read leniently to skip the request")
            })
        };
        let output_tokens = if ended.is_none() {
            needed("output_tokens", self.output_tokens)?
        } else {
            self.output_tokens.unwrap_or(0)
        };
        let ms = |field, value: Option<f64>| value.map(|value| duration_ns(field, value, 1e6)).transpose();
        let mean_ns = ms("inter_token_latency_ms", self.inter_token_latency_ms)?;
        let count = output_tokens.saturating_sub(1);
        let end_ns = self.request_latency.map(|seconds| duration_ns("request_latency", seconds, 1e9)).transpose()?;
        let at_ns = self.request_start_time.map(|seconds| unix_ns("request_start_time", seconds)).transpose()?;
        let record = RequestRecord {
            external_id: self.request_id,
            prompt_tokens: needed("prompt_tokens", self.prompt_tokens)?,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            session: self.info.conversation_id,
            output_tokens,
            ttft_ns: ms("time_to_first_token_ms", self.time_to_first_token_ms)?,
            gap_summary: mean_ns.filter(|_| count > 0).map(|mean_ns| GapSummary { mean_ns, count }),
            finish_reason: ended.map(|reason| reason.name().to_owned()),
            end_ns,
            error: self.info.error,
            other: self.output.map(|text| (OUTPUT_TEXT.to_owned(), json!(text))).into_iter().collect(),
            ..RequestRecord::default()
        };
        Ok(Timed { at_ns, record: checked(record)? })
    }
}

/// The part of a benchmark that states the concurrency.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    strategy: Strategy,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Strategy {
    type_: String,
    streams: Option<u32>,
    max_concurrency: Option<u32>,
}

impl Strategy {
    fn concurrency(&self) -> Option<u32> {
        match self.type_.as_str() {
            "synchronous" => Some(1),
            "concurrent" => self.streams,
            "throughput" => self.max_concurrency,
            _ => None,
        }
    }
}

/// The top level of a report. Its benchmarks are read one by one.
struct Top<'r, 'a>(&'r mut Report<'a>);
struct Benchmarks<'r, 'a>(&'r mut Report<'a>);
struct Benchmark<'r, 'a>(&'r mut Report<'a>);
struct Lists<'r, 'a>(&'r mut Report<'a>);

/// Makes a visitor also a seed, so that visitors can be nested.
macro_rules! as_seed {
    ($name:ident, $method:ident) => {
        impl<'de> DeserializeSeed<'de> for $name<'_, '_> {
            type Value = ();

            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
                deserializer.$method(self)
            }
        }
    };
}
as_seed!(Top, deserialize_map);
as_seed!(Benchmarks, deserialize_seq);
as_seed!(Benchmark, deserialize_map);
as_seed!(Lists, deserialize_map);

impl<'de> Visitor<'de> for Top<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a report of guidellm, which is an object with `benchmarks`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "args" => self.0.args = Some(map.next_value()?),
                "config" => self.0.config = Some(map.next_value()?),
                "metadata" => self.0.version = map.next_value::<Value>()?.get("guidellm_version").cloned(),
                "benchmarks" => map.next_value_seed(Benchmarks(self.0))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for Benchmarks<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of benchmarks")
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
        while array.next_element_seed(Benchmark(self.0))?.is_some() {
            self.0.benchmarks += 1;
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for Benchmark<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a benchmark, which is an object with `config` and `requests`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let first = self.0.requests.len();
        let mut strategy = Strategy::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "config" => strategy = map.next_value::<Config>()?.strategy,
                "requests" => map.next_value_seed(Lists(self.0))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let requests = &mut self.0.requests[first..];
        let concurrency = strategy.concurrency();
        match concurrency {
            Some(_) => requests.iter_mut().for_each(|timed| timed.record.concurrency = concurrency),
            None => count_concurrent(requests, |timed| {
                Some(Span { at_ns: timed.at_ns?, duration_ns: timed.record.duration_ns()? })
            }),
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for Lists<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `successful`, `incomplete` and `errored`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Report { name, tally, requests, failed, benchmarks, .. } = self.0;
        while let Some(key) = map.next_key::<String>()? {
            // `total` repeats the other lists.
            let Some((list, ended)) = LISTS.iter().find(|(list, _)| *list == key) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let mut add = |index: usize, value: Value| {
                let stats = decode::<Stats, _>(value).and_then(|stats| {
                    if ended.is_some() && stats.prompt_tokens.is_none() {
                        tally.note(&format!("{list} requests without the length of their prompts were left out"));
                        return Ok(None);
                    }
                    stats.timed(*ended).map(Some)
                });
                match stats {
                    Ok(timed) => requests.extend(timed),
                    Err(problem) => {
                        let path = format!("benchmarks[{benchmarks}].requests.{list}[{index}]");
                        tally.refuse(problem.at(name, Place::Path(path)))?;
                    }
                }
                Ok(())
            };
            map.next_value_seed(Each { of: &mut add, failed: &mut *failed })?;
        }
        Ok(())
    }
}
