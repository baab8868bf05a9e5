//! Observations: the response and the times of one request each.
//!
//! The schema is `docs/schemas/observation.schema.json`. Times are whole nanoseconds since the request was sent.
//! Absent values are computed: the time to the first token and the token gaps from stream events, fingerprints from
//! outputs. A [checked](Observation::check) observation is consistent, and has output material if the request
//! succeeded.

mod read;
mod text;

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::error::Problem;
pub use read::ObservationReader;
pub use text::Text;

/// Version of the schema that is read and written.
pub const OBSERVATION_VERSION: u32 = 1;

const MAX_ID_BYTES: usize = 1024;
const UNKNOWN_ERROR: &str = "unknown";

/// The observation of one request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Observation<'a> {
    /// Version of the schema: [`OBSERVATION_VERSION`].
    #[serde(rename = "observation")]
    pub version: u32,
    /// The request's id, the same on both sides.
    #[serde(borrow)]
    pub request_id: Text<'a>,
    /// A key that identifies the request if ids differ, such as the hash of its prompt.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub content: Option<Text<'a>>,
    /// Whether the request was answered.
    pub ok: bool,
    /// The class of the request's failure.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub error: Option<Text<'a>>,
    /// Time to the end of the answer; absent if the source has no times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<u64>,
    /// Time to the first token, if it differs from the time of the first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ns: Option<u64>,
    /// Arrival times of chunks with tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_ns: Option<Vec<u64>>,
    /// Number of tokens of each event; 1 each if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_tokens: Option<Vec<u32>>,
    /// Gaps between tokens, if there are no events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_ns: Option<Vec<u64>>,
    /// Mean gap between tokens, if single gaps are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_gap_ns: Option<u64>,
    /// Token ids of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// Text of the answer.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub text: Option<Text<'a>>,
    /// Fingerprint of the answer, made by its source.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Text<'a>>,
    /// Numeric output: an embedding, or log probabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vector: Option<Vec<f64>>,
    /// The model.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub model: Option<Text<'a>>,
    /// Version of the model.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub model_version: Option<Text<'a>>,
    /// The engine: `vllm`, `sglang`.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Text<'a>>,
    /// Version of the engine.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub backend_version: Option<Text<'a>>,
    /// The accelerator.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Text<'a>>,
    /// The tenant.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Text<'a>>,
    /// The route that a router chose.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub route: Option<Text<'a>>,
    /// The replica that answered.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub replica: Option<Text<'a>>,
    /// The scheduling policy.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Text<'a>>,
    /// Number of waiting requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u32>,
    /// Share of KV blocks in use, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_usage: Option<f64>,
    /// The origin of the observation.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Text<'a>>,
}

/// The token gap that stands for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gap {
    /// The 95th percentile of single gaps.
    P95(u64),
    /// The mean of the gaps, if only the mean is known.
    Mean(u64),
}

impl Observation<'_> {
    pub(crate) fn check(&self) -> Result<(), Problem> {
        let refused = |field: &str, text: String| Err(Problem::new(field, text));
        if self.version != OBSERVATION_VERSION {
            return refused(
                "observation",
                format!(
                    "unknown schema version {}: expected {OBSERVATION_VERSION}; mirror the source again",
                    self.version
                ),
            );
        }
        if self.request_id.is_empty() || self.request_id.len() > MAX_ID_BYTES {
            let text = format!("invalid id of {} bytes: expected 1 to {MAX_ID_BYTES}", self.request_id.len());
            return refused("request_id", text);
        }
        if self.ok && self.error.is_some() {
            return refused(
                "error",
                "a successful request has no error; set `ok` to false, or drop the error".to_owned(),
            );
        }
        self.check_times()?;
        if let Some(usage) = self.kv_usage.filter(|usage| !(0.0..=1.0).contains(usage)) {
            return refused("kv_usage", format!("invalid share {usage}: expected 0 to 1"));
        }
        if let Some(at) = self.vector.iter().flatten().position(|value| !value.is_finite()) {
            return refused("vector", format!("component {at} is not a finite number"));
        }
        let has_output = self.token_ids.is_some() || self.text.is_some() || self.fingerprint.is_some();
        if self.ok && !has_output && self.vector.is_none() {
            let text =
                "a successful observation needs output material: expected token_ids, text, fingerprint or vector";
            return refused("", text.to_owned());
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), Problem> {
        let refused = |field: &str, text: String| Err(Problem::new(field, text));
        let latency = self.latency_ns.unwrap_or(u64::MAX);
        if let Some(ttft) = self.ttft_ns.filter(|ttft| *ttft > latency) {
            return refused("ttft_ns", format!("the first token at {ttft} ns is after the end at {latency} ns"));
        }
        let Some(events) = &self.event_ns else {
            return match self.event_tokens {
                Some(_) => refused("event_tokens", "there is no `event_ns` that they belong to".to_owned()),
                None => Ok(()),
            };
        };
        if self.gap_ns.is_some() || self.mean_gap_ns.is_some() {
            return refused("gap_ns", "gaps are those of `event_ns`; give one of the two".to_owned());
        }
        if let Some(at) = events.windows(2).position(|pair| pair[1] < pair[0]) {
            let (before, after) = (events[at], events[at + 1]);
            return refused("event_ns", format!("event {} goes back: from {before} ns to {after} ns", at + 1));
        }
        if let Some(last) = events.last().filter(|last| **last > latency) {
            return refused("event_ns", format!("the last event at {last} ns is after the end at {latency} ns"));
        }
        if let Some((first, ttft)) = events.first().zip(self.ttft_ns).filter(|(first, ttft)| *first != ttft) {
            return refused("ttft_ns", format!("{ttft} ns contradicts the first event at {first} ns"));
        }
        match &self.event_tokens {
            Some(tokens) if tokens.len() != events.len() => {
                let text = format!("{} numbers of tokens for {} events", tokens.len(), events.len());
                refused("event_tokens", text)
            }
            Some(tokens) if tokens.contains(&0) => {
                refused("event_tokens", "an event without tokens is none; leave it out".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Time to the first token: the given time, or the time of the first event.
    pub(crate) fn first_token_ns(&self) -> Option<u64> {
        self.ttft_ns.or_else(|| self.event_ns.as_ref()?.first().copied())
    }

    /// The gap that stands for the request. A gap before a chunk of several tokens is divided by their number.
    pub(crate) fn gap(&self) -> Option<Gap> {
        let mut gaps: Vec<u64> = match (&self.event_ns, &self.gap_ns) {
            (Some(events), _) => {
                let gap = |pair: &[u64]| pair[1].saturating_sub(pair[0]);
                events.windows(2).enumerate().map(|(at, pair)| gap(pair) / u64::from(self.tokens_of(at + 1))).collect()
            }
            (None, Some(gaps)) => gaps.clone(),
            (None, None) => return self.mean_gap_ns.map(Gap::Mean),
        };
        let rank = (gaps.len().checked_sub(1)? as f64 * 0.95).round() as usize;
        Some(Gap::P95(*gaps.select_nth_unstable(rank).1))
    }

    /// Number of tokens of an event; at least 1.
    fn tokens_of(&self, event: usize) -> u32 {
        self.event_tokens.as_ref().and_then(|tokens| tokens.get(event).copied()).unwrap_or(1).max(1)
    }

    /// Whether the observation has stream events or token gaps.
    pub(crate) fn is_streamed(&self) -> bool {
        self.event_ns.as_ref().is_some_and(|events| !events.is_empty()) || self.gap_ns.is_some()
    }

    pub(crate) fn error_class(&self) -> Option<&str> {
        (!self.ok).then(|| self.error.as_deref().unwrap_or(UNKNOWN_ERROR))
    }

    pub(crate) fn stream_fingerprint(&self) -> Option<u64> {
        let events = self.event_ns.as_ref()?;
        Some(crate::of_events(events.iter().enumerate().map(|(at, ns)| (*ns, self.tokens_of(at)))))
    }

    /// Writes the observation as a line.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        out.write_all(b"\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed(event_ns: &[u64], event_tokens: Option<&[u32]>) -> Observation<'static> {
        Observation {
            version: OBSERVATION_VERSION,
            request_id: "a".into(),
            ok: true,
            latency_ns: Some(1000),
            event_ns: Some(event_ns.to_vec()),
            event_tokens: event_tokens.map(<[u32]>::to_vec),
            text: Some("x".into()),
            ..Observation::default()
        }
    }

    #[test]
    fn times_are_derived_from_events() {
        let observation = streamed(&[100, 110, 150], Some(&[1, 1, 4]));
        assert_eq!(observation.check(), Ok(()));
        assert_eq!(observation.first_token_ns(), Some(100));
        // The first gap is 10. The last event has four tokens, so each of its gaps is 40 / 4.
        assert_eq!(observation.gap(), Some(Gap::P95(10)));
        assert_eq!(streamed(&[5], None).gap(), None);
        let mean = Observation { event_ns: None, mean_gap_ns: Some(7), ..streamed(&[], None) };
        assert_eq!((mean.gap(), mean.is_streamed()), (Some(Gap::Mean(7)), false));
    }

    #[test]
    fn contradictions_are_refused_by_field() {
        let field = |observation: Observation<'_>| observation.check().expect_err("it is refused").field;
        assert_eq!(field(streamed(&[5, 4], None)), "event_ns");
        assert_eq!(field(streamed(&[5, 1001], None)), "event_ns");
        assert_eq!(field(streamed(&[5], Some(&[1, 1]))), "event_tokens");
        assert_eq!(field(streamed(&[5], Some(&[0]))), "event_tokens");
        assert_eq!(field(Observation { ttft_ns: Some(6), ..streamed(&[5], None) }), "ttft_ns");
        assert_eq!(field(Observation { ttft_ns: Some(1001), event_ns: None, ..streamed(&[], None) }), "ttft_ns");
        assert_eq!(field(Observation { gap_ns: Some(vec![1]), ..streamed(&[5], None) }), "gap_ns");
        assert_eq!(field(Observation { kv_usage: Some(1.5), ..streamed(&[5], None) }), "kv_usage");
        assert_eq!(field(Observation { kv_usage: Some(f64::NAN), ..streamed(&[5], None) }), "kv_usage");
        assert_eq!(field(Observation { vector: Some(vec![0.0, f64::NAN]), ..streamed(&[5], None) }), "vector");
        assert_eq!(field(Observation { error: Some("x".into()), ..streamed(&[5], None) }), "error");
        assert_eq!(field(Observation { version: 2, ..streamed(&[5], None) }), "observation");
        assert_eq!(field(Observation { request_id: "".into(), ..streamed(&[5], None) }), "request_id");
        assert_eq!(field(Observation { text: None, ..streamed(&[5], None) }), "");
    }
}
