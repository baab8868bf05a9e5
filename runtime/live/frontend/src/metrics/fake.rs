//! Fake metrics: constants or functions of time, as in llm-d-inference-sim.

use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::str::FromStr;
use std::time::Instant;

use prometheus_client::encoding::text;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use vcr_base::units;

use super::buckets::CustomBuckets;
use super::page::{Labels, Metrics, MetricsOptions};
use super::table::{Kind, Name, TABLE};
use crate::server::frontend_kind::FrontendKind;

/// A gauge as a function of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FakeGauge {
    shape: Shape,
    start: f64,
    end: f64,
    period_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Constant,
    Oscillate,
    Ramp,
    RampReset,
    SquareWave,
}

/// The functions by name.
const SHAPES: &[(&str, Shape)] = &[
    ("oscillate", Shape::Oscillate),
    ("ramp", Shape::Ramp),
    ("rampreset", Shape::RampReset),
    ("squarewave", Shape::SquareWave),
];

impl FakeGauge {
    /// The value after this time.
    #[must_use]
    pub fn at(&self, elapsed_s: f64) -> f64 {
        let periods = elapsed_s / self.period_s;
        let share = match self.shape {
            Shape::Constant => 0.0,
            Shape::Oscillate => (1.0 - (TAU * periods).cos()) / 2.0,
            Shape::Ramp => periods.min(1.0),
            Shape::RampReset => periods.fract(),
            Shape::SquareWave => f64::from(u8::from(periods.fract() >= 0.5)),
        };
        self.start + (self.end - self.start) * share
    }
}

impl FromStr for FakeGauge {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            let names: Vec<_> = SHAPES.iter().map(|(name, _)| *name).collect();
            format!(
                "invalid value `{text}`: expected a number, or FUNCTION:START:END:PERIOD such as \
                 `ramp:0:10:5s`, where FUNCTION is one of {}",
                names.join(", ")
            )
        };
        if let Ok(value) = text.parse::<f64>() {
            return Ok(Self { shape: Shape::Constant, start: value, end: value, period_s: 1.0 });
        }
        let parts: Vec<_> = text.split(':').collect();
        let [name, start, end, period] = parts[..] else { return Err(invalid()) };
        let (_, shape) = SHAPES.iter().find(|(known, _)| *known == name).ok_or_else(invalid)?;
        let number = |text: &str| text.parse::<f64>().ok().filter(|value| value.is_finite()).ok_or_else(invalid);
        let period_ns = units::duration_ns(period).map_err(|error| format!("invalid value `{text}`: {error}"))?;
        if period_ns == 0 {
            return Err(format!("invalid value `{text}`: expected a period above 0"));
        }
        Ok(Self { shape: *shape, start: number(start)?, end: number(end)?, period_s: period_ns as f64 / 1e9 })
    }
}

impl<'de> Deserialize<'de> for FakeGauge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Value {
            Number(f64),
            Text(String),
        }
        let text = match Value::deserialize(deserializer)? {
            Value::Number(value) => value.to_string(),
            Value::Text(text) => text,
        };
        text.parse().map_err(D::Error::custom)
    }
}

/// The LoRA adapters of requests at one time.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FakeLoras {
    /// Names, separated by commas.
    #[serde(default)]
    pub running: String,
    /// Names, separated by commas.
    #[serde(default)]
    pub waiting: String,
    /// Seconds since 1970.
    #[serde(default)]
    pub timestamp: f64,
}

/// Fake metrics, with the keys of llm-d-inference-sim's `--fake-metrics`.
///
/// Lists named `...-buckets-values` contain the count of each bucket. Lists named `request-...-tokens` contain
/// values, each observed once.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the fields are named after the metrics")]
pub struct FakeMetrics {
    pub running_requests: Option<FakeGauge>,
    pub waiting_requests: Option<FakeGauge>,
    pub kv_cache_usage: Option<FakeGauge>,
    pub loras: Vec<FakeLoras>,
    pub ttft_buckets_values: Vec<u64>,
    pub tpot_buckets_values: Vec<u64>,
    pub request_tpot_buckets_values: Vec<u64>,
    pub e2erl_buckets_values: Vec<u64>,
    pub queue_time_buckets_values: Vec<u64>,
    pub inf_time_buckets_values: Vec<u64>,
    pub prefill_time_buckets_values: Vec<u64>,
    pub decode_time_buckets_values: Vec<u64>,
    pub request_prompt_tokens: Vec<u64>,
    pub request_generation_tokens: Vec<u64>,
    pub request_max_generation_tokens: Vec<u64>,
    pub request_params_max_tokens: Vec<u64>,
    pub request_success_total: BTreeMap<String, u64>,
    pub total_prompt_tokens: Option<u64>,
    pub total_generation_tokens: Option<u64>,
    pub prefix_cache_hits: Option<u64>,
    pub prefix_cache_queries: Option<u64>,
}

/// Serves fake metrics, with time starting at its creation.
#[derive(Debug)]
pub struct FakePage {
    fake: FakeMetrics,
    metrics: Metrics,
    engine: u32,
    since: Instant,
}

/// Larger counts are refused, because each observation is made separately.
const MAX_OBSERVATIONS: u64 = 1_000_000;

impl FakePage {
    /// Creates a page of these metrics. All others are 0 or absent.
    ///
    /// # Errors
    /// When a list is longer than the buckets of its metric or contains too large counts.
    pub fn new(fake: FakeMetrics, options: &MetricsOptions) -> Result<Self, String> {
        // Only fake values may exist from the start.
        let frontend = FrontendKind::Rust;
        let options = MetricsOptions { buckets: CustomBuckets::default(), frontend, cache: None, ..options.clone() };
        let metrics = Metrics::new(&options);
        let engine = options.engines.first().copied().unwrap_or(0);
        let labels = metrics.engine_labels(engine);
        for (name, counts) in [
            (Name::TimeToFirstTokenSeconds, &fake.ttft_buckets_values),
            (Name::InterTokenLatencySeconds, &fake.tpot_buckets_values),
            (Name::RequestTimePerOutputTokenSeconds, &fake.request_tpot_buckets_values),
            (Name::E2eRequestLatencySeconds, &fake.e2erl_buckets_values),
            (Name::RequestQueueTimeSeconds, &fake.queue_time_buckets_values),
            (Name::RequestInferenceTimeSeconds, &fake.inf_time_buckets_values),
            (Name::RequestPrefillTimeSeconds, &fake.prefill_time_buckets_values),
            (Name::RequestDecodeTimeSeconds, &fake.decode_time_buckets_values),
        ] {
            observe_buckets(&metrics, name, &labels, counts, options.max_model_len_tokens)?;
        }
        for (name, values) in [
            (Name::RequestPromptTokens, &fake.request_prompt_tokens),
            (Name::RequestGenerationTokens, &fake.request_generation_tokens),
            (Name::RequestMaxNumGenerationTokens, &fake.request_max_generation_tokens),
            (Name::RequestParamsMaxTokens, &fake.request_params_max_tokens),
        ] {
            for value in values {
                metrics.histogram(name, &labels).observe(*value as f64);
            }
        }
        let sum = |values: &[u64]| (!values.is_empty()).then(|| values.iter().sum());
        for (name, total) in [
            (Name::PromptTokens, fake.total_prompt_tokens.or_else(|| sum(&fake.request_prompt_tokens))),
            (Name::GenerationTokens, fake.total_generation_tokens.or_else(|| sum(&fake.request_generation_tokens))),
            (Name::PrefixCacheHits, fake.prefix_cache_hits),
            (Name::PrefixCacheQueries, fake.prefix_cache_queries),
        ] {
            if let Some(total) = total {
                metrics.counter(name, &labels).inc_by(total);
            }
        }
        for (reason, total) in &fake.request_success_total {
            let labels = metrics.engine_labels_and(engine, "finished_reason", reason);
            metrics.counter(Name::RequestSuccess, &labels).inc_by(*total);
        }
        for loras in &fake.loras {
            let labels = vec![
                ("running_lora_adapters", loras.running.clone()),
                ("waiting_lora_adapters", loras.waiting.clone()),
            ];
            metrics.ratio(Name::LoraRequestsInfo, &labels).set(loras.timestamp);
        }
        Ok(Self { fake, metrics, engine, since: Instant::now() })
    }

    /// The current exposition of the fake metrics.
    #[must_use]
    pub fn exposition(&self) -> String {
        self.exposition_at(self.since.elapsed().as_secs_f64())
    }

    fn exposition_at(&self, elapsed_s: f64) -> String {
        let labels = self.metrics.engine_labels(self.engine);
        for (name, gauge) in [
            (Name::NumRequestsRunning, &self.fake.running_requests),
            (Name::NumRequestsWaiting, &self.fake.waiting_requests),
        ] {
            if let Some(gauge) = gauge {
                self.metrics.gauge(name, &labels).set(gauge.at(elapsed_s).round() as i64);
            }
        }
        if let Some(gauge) = &self.fake.kv_cache_usage {
            self.metrics.ratio(Name::KvCacheUsagePerc, &labels).set(gauge.at(elapsed_s));
        }
        let mut out = String::new();
        text::encode(&mut out, self.metrics.registry()).expect("a String takes all that is written to it");
        out
    }
}

/// Observes the bound of each bucket as often as its count says.
fn observe_buckets(
    metrics: &Metrics,
    name: Name,
    labels: &Labels,
    counts: &[u64],
    max_model_len_tokens: u64,
) -> Result<(), String> {
    let metric = TABLE[name as usize];
    let Kind::Histogram(buckets) = metric.kind else { unreachable!("{name:?} is a histogram") };
    let mut bounds = buckets.bounds(max_model_len_tokens);
    bounds.push(f64::INFINITY);
    if counts.len() > bounds.len() {
        let (given, most) = (counts.len(), bounds.len());
        return Err(format!("invalid counts of {}: expected at most {most} buckets, got {given}", metric.name));
    }
    if counts.iter().any(|count| *count > MAX_OBSERVATIONS) {
        return Err(format!("invalid counts of {}: expected at most {MAX_OBSERVATIONS} in a bucket", metric.name));
    }
    let last = bounds.iter().rev().find(|bound| bound.is_finite()).copied().unwrap_or(0.0);
    for (bound, count) in bounds.into_iter().zip(counts) {
        // Observe a value above the last bound: infinity would make the sum infinite.
        let value = if bound.is_finite() { bound } else { last * 2.0 };
        let histogram = metrics.histogram(name, labels);
        for _ in 0..*count {
            histogram.observe(value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(json: &str) -> Result<FakePage, String> {
        let fake = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let options = MetricsOptions {
            model_name: "sim".to_owned(),
            engines: vec![0],
            max_model_len_tokens: 1024,
            ..MetricsOptions::default()
        };
        FakePage::new(fake, &options)
    }

    #[test]
    fn functions_have_their_values_at_a_quarter_and_after_a_period() {
        let at = |text: &str, elapsed_s| text.parse::<FakeGauge>().expect(text).at(elapsed_s);
        assert_eq!([at("7", 0.0), at("7", 9.0)], [7.0, 7.0]);
        assert_eq!([at("ramp:0:10:4s", 1.0), at("ramp:0:10:4s", 9.0)], [2.5, 10.0]);
        assert_eq!([at("rampreset:10:0:4s", 1.0), at("rampreset:10:0:4s", 5.0)], [7.5, 7.5]);
        assert_eq!([at("squarewave:1:3:4s", 1.0), at("squarewave:1:3:4s", 3.0)], [1.0, 3.0]);
        assert!((at("oscillate:0:10:4s", 1.0) - 5.0).abs() < 1e-9);
        assert!((at("oscillate:0:10:4s", 2.0) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn made_up_metrics_are_told() {
        let page = page(
            r#"{"running-requests": 10, "waiting-requests": "ramp:0:10:5s", "kv-cache-usage": 0.4,
                "loras": [{"running": "a,b", "waiting": "c", "timestamp": 1257894567}],
                "ttft-buckets-values": [1, 2], "request-prompt-tokens": [10, 20, 30],
                "request-success-total": {"stop": 20}, "prefix-cache-hits": 7}"#,
        )
        .expect("they are valid");
        let text = page.exposition_at(2.5);
        for line in [
            r#"vllm:num_requests_running{model_name="sim",engine="0"} 10"#,
            r#"vllm:num_requests_waiting{model_name="sim",engine="0"} 5"#,
            r#"vllm:kv_cache_usage_perc{model_name="sim",engine="0"} 0.4"#,
            r#"vllm:time_to_first_token_seconds_count{model_name="sim",engine="0"} 3"#,
            r#"vllm:time_to_first_token_seconds_bucket{le="0.001",model_name="sim",engine="0"} 1"#,
            r#"vllm:prompt_tokens_total{model_name="sim",engine="0"} 60"#,
            r#"vllm:request_success_total{model_name="sim",engine="0",finished_reason="stop"} 20"#,
            r#"vllm:prefix_cache_hits_total{model_name="sim",engine="0"} 7"#,
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is not in:\n{text}");
        }
        assert!(text.contains(r#"running_lora_adapters="a,b",waiting_lora_adapters="c"} 1257894567"#), "{text}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (json, wanted) in [
            (r#"{"running": 1}"#, "unknown field `running`"),
            (r#"{"running-requests": "sine:0:1:2s"}"#, "FUNCTION is one of oscillate, ramp, rampreset, squarewave"),
            (r#"{"running-requests": "ramp:0:1:0s"}"#, "expected a period above 0"),
            (r#"{"running-requests": "ramp:0:1:5"}"#, "has no unit"),
            (r#"{"ttft-buckets-values": [2000000]}"#, "at most 1000000 in a bucket"),
            (
                r#"{"ttft-buckets-values": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}"#,
                "invalid counts of vllm:time_to_first_token_seconds: expected at most 23 buckets, got 24",
            ),
        ] {
            let error = page(json).expect_err(json);
            assert!(error.contains(wanted), "{json}: {error}");
        }
    }
}
