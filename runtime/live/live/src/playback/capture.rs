//! Recorded answers in the form that an engine needs.

use std::sync::Arc;

use serde_json::{Map, Value};
use vcr_record::playback::{Lookup, Playback};
use vcr_trace::capture::{ExtraKeys, MediaKey, PromptChain, RequestRecord};
use vcr_wire::{EngineCoreRequest, FinishReason, SamplingParams, StopReason};

use crate::counters::Counters;
use crate::error::LiveError;

/// A capture for playback.
#[derive(Clone)]
pub struct PlaybackSettings {
    /// The capture, shared by all engines.
    pub playback: Arc<Playback>,
    /// Answer with the recorded tokens, if the capture has them.
    pub tokens: bool,
    /// Answer at the recorded times instead of the latency model's times.
    pub times: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedEnd {
    /// Number of tokens before the end.
    pub(crate) after_tokens: u32,
    pub(crate) reason: FinishReason,
    pub(crate) stop_reason: Option<StopReason>,
}

impl RecordedEnd {
    /// Whether the end came with the last tokens. Otherwise an abort or an error ended the request some time after
    /// them.
    pub(crate) fn comes_with_tokens(&self) -> bool {
        self.after_tokens > 0 && self.reason != FinishReason::Abort
    }
}

/// One recorded output: its time since the arrival, and its number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedOutput {
    pub(crate) after_ns: u64,
    pub(crate) num_tokens: u32,
}

/// The times of a recorded answer, since the arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedTimes {
    pub(crate) outputs: Vec<RecordedOutput>,
    /// End of the answer, not before its last output.
    pub(crate) end_ns: u64,
    pub(crate) queue_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// The recorded tokens; empty if there are none.
    pub(crate) tokens: Vec<u32>,
    pub(crate) end: RecordedEnd,
    /// `None`: the latency model determines the times.
    pub(crate) times: Option<RecordedTimes>,
    pub(crate) cached_tokens: u32,
    pub(crate) external_cached_tokens: u32,
}

/// A request's answer in the capture.
pub(crate) enum Found {
    Nothing,
    Script(Box<Script>),
    /// The request must fail, and all engines too if the playback is strict.
    Refused {
        reason: String,
        ends_run: bool,
    },
}

impl Script {
    /// The answer of a record, cut to `max_tokens`. If times are wanted and known, it has times divided by
    /// `time_scale`.
    pub(crate) fn of(record: RequestRecord, settings: &PlaybackSettings, max_tokens: u32, time_scale: f64) -> Self {
        let is_cut = record.output_tokens > max_tokens;
        let after_tokens = record.output_tokens.min(max_tokens);
        let times = settings.times.then(|| RecordedTimes::of(&record, after_tokens, time_scale)).flatten();
        let reason = if is_cut { FinishReason::Length } else { finish_reason(record.finish_reason.as_deref()) };
        let stop_reason = record.stop_reason.filter(|_| !is_cut).and_then(|reason| match reason {
            serde_json::Value::Number(token) => {
                token.as_u64().and_then(|token| u32::try_from(token).ok()).map(StopReason::Token)
            }
            serde_json::Value::String(text) => Some(StopReason::Text(text)),
            _ => None,
        });
        let mut tokens = record.output_token_ids.filter(|_| settings.tokens).unwrap_or_default();
        tokens.truncate(after_tokens as usize);
        Self {
            tokens,
            end: RecordedEnd { after_tokens, reason, stop_reason },
            times,
            cached_tokens: record.cached_tokens,
            external_cached_tokens: record.external_cached_tokens,
        }
    }
}

impl RecordedTimes {
    /// `None` if the record has no times.
    fn of(record: &RequestRecord, num_tokens: u32, time_scale: f64) -> Option<Self> {
        let scaled = |ns: u64| (ns as f64 / time_scale) as u64;
        let mut left_tokens = num_tokens;
        let mut outputs: Vec<_> = record
            .output_times()?
            .into_iter()
            .map(|(after_ns, tokens)| {
                let num_tokens = tokens.min(left_tokens);
                left_tokens -= num_tokens;
                RecordedOutput { after_ns: scaled(after_ns), num_tokens }
            })
            .collect();
        outputs.retain(|output| output.num_tokens > 0);
        let is_cut = record.output_tokens > num_tokens;
        let last_ns = outputs.last().map_or(0, |output| output.after_ns);
        let end_ns = record.end_ns.filter(|_| !is_cut).map_or(last_ns, |end_ns| scaled(end_ns).max(last_ns));
        Some(Self { outputs, end_ns, queue_ns: scaled(record.queue_ns.unwrap_or(0)) })
    }
}

/// The parameters that determine an answer, as `vcr record` writes them.
fn deciding_params(params: &SamplingParams) -> Map<String, Value> {
    let logit_bias = params.logit_bias.as_ref().map(|bias| {
        let pairs = bias.0.iter().map(|(token, bias)| (token.to_string(), Value::from(*bias)));
        pairs.collect::<Map<_, _>>()
    });
    let stop = params.stop.as_ref().map(|stop| stop.0.clone());
    let all = [
        ("allowed_token_ids", params.allowed_token_ids.clone().into()),
        ("bad_words", params.bad_words.clone().into()),
        ("frequency_penalty", params.frequency_penalty.into()),
        ("ignore_eos", params.ignore_eos.into()),
        ("logit_bias", logit_bias.into()),
        ("max_tokens", params.max_tokens.into()),
        ("min_p", params.min_p.into()),
        ("min_tokens", params.min_tokens.into()),
        ("presence_penalty", params.presence_penalty.into()),
        ("repetition_penalty", params.repetition_penalty.into()),
        ("seed", params.seed.map_or(Value::Null, |seed| seed.as_u64().map_or(seed.as_i64().into(), Value::from))),
        ("stop", stop.into()),
        ("stop_token_ids", params.stop_token_ids.clone().into()),
        ("structured_outputs", serde_json::to_value(params.structured_outputs.as_deref()).unwrap_or_default()),
        ("temperature", params.temperature.into()),
        ("thinking_token_budget", params.thinking_token_budget.into()),
        ("top_k", params.top_k.into()),
        ("top_p", params.top_p.into()),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A request that was still in progress when the capture ended counts as aborted.
fn finish_reason(name: Option<&str>) -> FinishReason {
    name.and_then(FinishReason::parse).unwrap_or(FinishReason::Abort)
}

#[derive(Default)]
pub(crate) struct CaptureLookup {
    /// The hashes of the latest prompt, kept to reuse their allocation.
    prompt_chain: PromptChain,
}

impl CaptureLookup {
    /// The recorded answer of a request. All durations are divided by `time_scale`.
    pub(crate) fn find(
        &mut self,
        settings: &PlaybackSettings,
        request: &EngineCoreRequest,
        time_scale: f64,
        rank: u16,
        counters: &mut Counters,
    ) -> Result<Found, LiveError> {
        let Some(sampling) = &request.sampling_params else { return Ok(Found::Nothing) };
        let prompt = request.prompt_token_ids.as_deref().unwrap_or_default();
        let features = request.mm_features.iter().flatten();
        let media: Vec<MediaKey<'_>> = features
            .map(|feature| MediaKey { identifier: &feature.identifier, offset: feature.mm_position.offset })
            .collect();
        let keys = ExtraKeys {
            lora: request.lora_request.as_ref().map(|lora| lora.name.as_str()),
            cache_salt: request.cache_salt.as_deref().filter(|salt| !salt.is_empty()),
            media: &media,
        };
        let chain = &mut self.prompt_chain;
        settings.playback.captures().hasher().chain_into(prompt, &keys, chain);
        let params = settings.playback.captures().knows_params().then(|| deciding_params(sampling));
        let answer = settings.playback.answer(&Lookup {
            params: params.as_ref(),
            chain,
            prompt_tokens: prompt.len() as u32,
            id: &request.request_id,
            external_id: request.external_req_id.as_deref(),
            session: request.session_id.as_deref(),
        })?;
        let id = request.request_id.as_str();
        match &answer.record {
            Some(_) => counters.played_back += 1,
            None => counters.unmatched += 1,
        }
        for sentence in answer.divergence.iter().chain(&answer.other_params) {
            tracing::warn!(rank, request = id, "{sentence}");
        }
        if answer.ends_run {
            tracing::error!(rank, request = id, "the playback is strict: this ends it");
        }
        if answer.is_refused {
            let reason = answer.divergence.unwrap_or_default();
            return Ok(Found::Refused { reason, ends_run: answer.ends_run });
        }
        let max_tokens = sampling.max_tokens.unwrap_or(u32::MAX);
        let script = |record: Box<RequestRecord>| Script::of(*record, settings, max_tokens, time_scale);
        Ok(answer.record.map_or(Found::Nothing, |record| Found::Script(Box::new(script(record)))))
    }
}

#[cfg(test)]
mod tests {
    use vcr_record::playback::{CaptureIndex, MatchBy, Unmatched};
    use vcr_trace::capture::{CaptureMeta, GapSummary};

    use super::*;

    fn settings() -> PlaybackSettings {
        let captures = CaptureIndex::of_records(CaptureMeta::default(), Vec::new());
        let playback = Playback::new(captures, MatchBy::Index, Unmatched::Random).expect("by index");
        PlaybackSettings { playback: Arc::new(playback), tokens: true, times: true }
    }

    fn record() -> RequestRecord {
        RequestRecord {
            output_tokens: 6,
            output_token_ids: Some(vec![1, 2, 3, 4, 5, 6]),
            ttft_ns: Some(100),
            first_tokens: Some(2),
            gap_ns: vec![10, 20],
            gap_tokens: Some(vec![3, 1]),
            end_ns: Some(150),
            finish_reason: Some("stop".to_owned()),
            stop_reason: Some(7.into()),
            ..RequestRecord::default()
        }
    }

    fn outputs(script: &Script) -> Vec<(u64, u32)> {
        let times = script.times.as_ref().expect("it has times");
        times.outputs.iter().map(|output| (output.after_ns, output.num_tokens)).collect()
    }

    #[test]
    fn bursts_come_back_as_recorded() {
        let script = Script::of(record(), &settings(), u32::MAX, 1.0);
        assert_eq!(outputs(&script), [(100, 2), (110, 3), (130, 1)]);
        let end = RecordedEnd { after_tokens: 6, reason: FinishReason::Stop, stop_reason: Some(StopReason::Token(7)) };
        assert_eq!(script.end, end);
        assert_eq!(script.times.expect("times").end_ns, 150);
    }

    #[test]
    fn a_smaller_limit_of_tokens_cuts_the_answer() {
        let script = Script::of(record(), &settings(), 4, 2.0);
        assert_eq!(outputs(&script), [(50, 2), (55, 2)]);
        assert_eq!(script.tokens, [1, 2, 3, 4]);
        assert_eq!(script.end.reason, FinishReason::Length);
        assert_eq!(script.end.stop_reason, None);
        assert_eq!(script.times.expect("times").end_ns, 55);
    }

    #[test]
    fn a_mean_stands_for_gaps_that_are_not_known() {
        let summary = Some(GapSummary { mean_ns: 5, count: 2 });
        let record =
            RequestRecord { output_tokens: 3, ttft_ns: Some(10), gap_summary: summary, ..RequestRecord::default() };
        let script = Script::of(record, &settings(), u32::MAX, 1.0);
        assert_eq!(outputs(&script), [(10, 1), (15, 1), (20, 1)]);
        assert_eq!(script.end.reason, FinishReason::Abort, "it never ended");
    }

    #[test]
    fn what_was_aborted_before_its_first_token_has_an_end_only() {
        let record =
            RequestRecord { finish_reason: Some("abort".to_owned()), end_ns: Some(30), ..RequestRecord::default() };
        let script = Script::of(record, &settings(), u32::MAX, 1.0);
        assert_eq!(outputs(&script), []);
        assert_eq!(script.times.as_ref().expect("times").end_ns, 30);
        assert!(!script.end.comes_with_tokens());
    }

    #[test]
    fn a_record_without_times_leaves_them_to_the_model() {
        let record = RequestRecord { output_tokens: 3, ..RequestRecord::default() };
        assert_eq!(Script::of(record, &settings(), u32::MAX, 1.0).times, None);
    }
}
