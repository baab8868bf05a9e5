//! Messages from engines to frontends.

use serde::{Deserialize, Serialize};
use vcr_base::finish_reason::FinishReason;

use crate::codec::error::{DecodeError, Problem};
use crate::codec::field::{Wire, write_list};
use crate::codec::read::{Reader, is_str, whole};
use crate::codec::value::{Integer, Raw, Value};
use crate::codec::{Elements, array_struct, array_wire, as_array, serde_wire, write};
use crate::stats::{PrefillStats, RequestSpecDecodeMetrics, SchedulerStats};
use crate::tensor::{Logprobs, Tensor};
use crate::versions::ProtocolRules;

/// The single frame that a dying engine sends to every frontend.
pub const ENGINE_CORE_DEAD: &[u8; 16] = b"ENGINE_CORE_DEAD";

impl Wire for FinishReason {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at = reader.offset();
        let found = reader.integer()?;
        let reason = usize::try_from(found).ok().and_then(Self::of_number);
        let problem = Problem::OutOfRange { expected: "a finish reason from 0 to 4", found };
        reason.ok_or_else(|| DecodeError::new(problem, at))
    }

    fn write(&self, out: &mut Vec<u8>) {
        write::uint(out, *self as u64);
    }
}

/// The reason why a request stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A token other than the end-of-text token.
    Token(u32),
    /// Another reason, such as `repetition_detected`.
    Text(String),
}

impl Wire for StopReason {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if reader.peek().is_some_and(is_str) {
            String::read(reader).map(Self::Text)
        } else {
            reader.u32().map(Self::Token)
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Token(token) => token.write(out),
            Self::Text(text) => write::str(out, text),
        }
    }
}

/// The kind of an event of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum EventType {
    /// The request arrived.
    Queued = 1,
    /// The request was admitted.
    Scheduled = 2,
    /// The request lost its blocks.
    Preempted = 3,
}

impl From<EventType> for u8 {
    fn from(kind: EventType) -> Self {
        kind as Self
    }
}

impl TryFrom<u8> for EventType {
    type Error = String;

    fn try_from(number: u8) -> Result<Self, String> {
        let all = [Self::Queued, Self::Scheduled, Self::Preempted];
        let found = all.into_iter().find(|kind| *kind as u8 == number);
        found.ok_or_else(|| format!("expected an event type from 1 to 3, got {number}"))
    }
}

/// An event of a request since its last output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineCoreEvent {
    /// Kind of the event.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// Time of the event on the engine's monotonic clock, in seconds.
    pub timestamp: f64,
}

/// The failure of a request; from 0.33.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestError {
    /// Code of the error, such as `validation_error` or `engine_paused`.
    pub code: String,
    /// The text for the user.
    pub message: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
}

array_struct! {
    /// The output of a step for one request.
    EngineCoreOutput, 2 required {
        /// The request's internal ID.
        request_id: String = String::new(),
        /// New tokens, including a token that stops the request.
        new_token_ids: Vec<u32> = Vec::new(),
        /// Logprobs of the new tokens.
        new_logprobs: Option<Logprobs> = None,
        /// Logprobs of the prompt.
        new_prompt_logprobs_tensors: Option<Logprobs> = None,
        /// Result of a pooling request.
        pooling_output: Option<Tensor> = None,
        /// The reason why the request ended; set on its last output.
        finish_reason: Option<FinishReason> = None,
        /// The token or text that stopped the request; nil for the end of the text.
        stop_reason: Option<StopReason> = None,
        /// Events of the request.
        events: Option<Vec<EngineCoreEvent>> = None,
        /// Parameters for the decode engine, on the last output.
        kv_transfer_params: Option<Value> = None,
        /// Parameters of an encoder's output, on the last output.
        ec_transfer_params: Option<Value> = None,
        /// Headers of distributed tracing.
        trace_headers: Option<Raw> = None,
        /// The sources of the prompt's tokens, on the first output.
        prefill_stats: Option<PrefillStats> = None,
        /// Experts that computed the request's tokens.
        routed_experts: Option<Tensor> = None,
        /// Number of NaNs in the logits; never nil.
        num_nans_in_logits: u64 = 0,
        /// Multimodal inputs that the frontend must send again with their data; from 0.28.
        mm_cache_miss_hashes: Option<Vec<String>> = None,
        /// Tokens that could be sampled; from 0.28.
        new_sampling_mask: Option<Raw> = None,
        /// Statistics of speculative decoding, on the last output; from 0.29.
        spec_decode_metrics: Option<RequestSpecDecodeMetrics> = None,
        /// Logprobs of chosen tokens at prompt positions; from 0.31.
        prompt_token_id_logprobs: Option<Tensor> = None,
        /// The failure of the request; from 0.33.
        error: Option<RequestError> = None,
    }
}
array_wire!(EngineCoreOutput, shortest);

/// The result of a utility call, or its error.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct UtilityOutput {
    /// The ID that the caller chose.
    pub call_id: Integer,
    /// The reason why the call failed, if it did.
    #[serde(default)]
    pub failure_message: Option<String>,
    /// The result of the call, unless it failed.
    #[serde(default)]
    pub result: Option<UtilityResult>,
}

/// The result of a utility call.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct UtilityResult {
    /// Always nil here. vLLM can send the name of a Python type, which frontends refuse.
    pub type_info: Option<Raw>,
    /// The value; nil if the function returns nothing.
    pub value: Value,
}

as_array! {
    UtilityOutput(call_id, failure_message, result);
    UtilityResult(type_info, value);
}
serde_wire!(UtilityOutput, EngineCoreEvent, RequestError);

impl UtilityOutput {
    /// The result of a call that returned `value`.
    #[must_use]
    pub fn returned(call_id: Integer, value: Value) -> Self {
        Self { call_id, failure_message: None, result: Some(UtilityResult { type_info: None, value }) }
    }

    /// The result of a call of `method` that failed, in vLLM's words.
    #[must_use]
    pub fn failed(call_id: Integer, method: &str, reason: &str) -> Self {
        let message = format!("Call to {method} method failed: {reason}");
        Self { call_id, failure_message: Some(message), result: None }
    }
}

array_struct! {
    /// A message on an output socket.
    ///
    /// vllm-rs accepts only messages of one of four kinds: outputs, statistics and finished requests; a utility
    /// result; the end of a wave; the start of a wave.
    EngineCoreOutputs, 1 required {
        /// The engine's rank.
        engine_index: u32 = 0,
        /// Outputs, one for each request with new output.
        outputs: Vec<EngineCoreOutput> = Vec::new(),
        /// Statistics, which only one of several API servers gets.
        scheduler_stats: Option<SchedulerStats> = None,
        /// The engine's monotonic clock, in seconds; 0 means unset.
        timestamp: f64 = 0.0,
        /// The result of a utility call.
        utility_output: Option<UtilityOutput> = None,
        /// IDs of the requests that ended.
        finished_requests: Option<Vec<String>> = None,
        /// The wave that has ended.
        wave_complete: Option<u32> = None,
        /// The wave that begins.
        start_wave: Option<u32> = None,
        /// The version of the weights; from 0.32.
        weight_version: Option<String> = None,
    }
}

impl EngineCoreOutputs {
    /// Decodes the first frame of a message.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        whole("EngineCoreOutputs", frame, Self::read_elements)
    }

    /// The scheduler's statistics in the first frame of a message, still encoded. They include keys that
    /// [`SchedulerStats`] does not have.
    pub fn raw_scheduler_stats(frame: &[u8]) -> Result<Option<&[u8]>, DecodeError> {
        let mut reader = Reader::new(frame);
        if reader.array()? < 3 {
            return Ok(None);
        }
        reader.skip()?;
        reader.skip()?;
        if reader.take_nil() {
            return Ok(None);
        }
        let start = reader.offset();
        reader.skip()?;
        Ok(Some(reader.since(start)))
    }

    /// Appends the shortest form of the message to `out`, without fields that the version does not know.
    pub fn encode(&self, out: &mut Vec<u8>, rules: &ProtocolRules) {
        let len = self.shortest(rules.outputs_len);
        write::array(out, len);
        self.write_range(out, 0..len.min(1));
        if len > 1 {
            write::array(out, self.outputs.len());
            for output in &self.outputs {
                output.write_elements(out, output.shortest(rules.output_len));
            }
        }
        self.write_range(out, 2..len);
    }
}

/// A message on an output socket, by kind.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineMessage {
    /// Outputs; the frames after the first are the bytes of large tensors.
    Outputs(Box<EngineCoreOutputs>),
    /// The engine has failed.
    Dead,
}

impl EngineMessage {
    /// Decodes the frames of a message.
    pub fn decode(frames: &[impl AsRef<[u8]>]) -> Result<Self, DecodeError> {
        let Some(first) = frames.first() else {
            let problem = Problem::Frames { expected: "at least one frame", found: 0 };
            return Err(DecodeError::new(problem, 0).of("EngineCoreOutputs"));
        };
        if first.as_ref() == ENGINE_CORE_DEAD {
            return Ok(Self::Dead);
        }
        EngineCoreOutputs::decode(first.as_ref()).map(|outputs| Self::Outputs(Box::new(outputs)))
    }
}

/// Encodes the outputs of one step for one API server.
///
/// The buffers are kept between steps, so a step in which every request gets a token allocates nothing.
#[derive(Debug)]
pub struct StepEncoder {
    /// Number of elements that the version knows in an output.
    output_len: usize,
    outputs_len: usize,
    outputs: Vec<u8>,
    num_outputs: usize,
    finished: Vec<u8>,
    num_finished: usize,
}

/// The other parts of a step's message.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepEnd<'a> {
    /// The engine's rank.
    pub engine_index: u32,
    /// Statistics, which only one of several API servers gets.
    pub scheduler_stats: Option<&'a SchedulerStats>,
    /// The engine's monotonic clock, in seconds.
    pub timestamp: f64,
    /// The version of the weights, which is omitted if the protocol version has none.
    pub weight_version: Option<&'a str>,
}

impl StepEncoder {
    /// An encoder for frontends of a version.
    #[must_use]
    pub fn new(rules: &ProtocolRules) -> Self {
        Self {
            output_len: rules.output_len,
            outputs_len: rules.outputs_len,
            outputs: Vec::new(),
            num_outputs: 0,
            finished: Vec::new(),
            num_finished: 0,
        }
    }

    /// Whether nothing was added since the last message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.num_outputs == 0 && self.num_finished == 0
    }

    /// Adds new tokens of a request, and why the request ended if it did.
    pub fn tokens(
        &mut self,
        request_id: &str,
        new_token_ids: &[u32],
        finish: Option<(FinishReason, Option<&StopReason>)>,
    ) {
        let out = &mut self.outputs;
        write::array(out, finish.map_or(2, |(_, stop)| if stop.is_some() { 7 } else { 6 }));
        write::str(out, request_id);
        write_list(out, new_token_ids);
        if let Some((reason, stop)) = finish {
            // Nil for the logprobs, the logprobs of the prompt, and the pooling output.
            out.extend_from_slice(&[rmp::Marker::Null.to_u8(); 3]);
            reason.write(out);
            if let Some(stop) = stop {
                stop.write(out);
            }
        }
        self.num_outputs += 1;
    }

    /// Adds an output that has more than tokens.
    pub fn output(&mut self, output: &EngineCoreOutput) {
        output.write_elements(&mut self.outputs, output.shortest(self.output_len));
        self.num_outputs += 1;
    }

    /// Adds the ID of an ended request, which is listed apart from its output.
    pub fn finished(&mut self, request_id: &str) {
        write::str(&mut self.finished, request_id);
        self.num_finished += 1;
    }

    /// Appends the whole message to `out` and clears the added outputs.
    pub fn finish(&mut self, end: StepEnd<'_>, out: &mut Vec<u8>) {
        let weight_version = end.weight_version.filter(|_| self.outputs_len > 8);
        let len = match (weight_version, self.num_finished) {
            (Some(_), _) => 9,
            (None, 1..) => 6,
            (None, 0) => 4,
        };
        write::array(out, len);
        write::uint(out, end.engine_index.into());
        write::array(out, self.num_outputs);
        out.extend_from_slice(&self.outputs);
        match end.scheduler_stats {
            Some(stats) => stats.encode(out),
            None => write::nil(out),
        }
        write::f64(out, end.timestamp);
        if len > 4 {
            write::nil(out); // no utility output
            if self.num_finished > 0 {
                write::array(out, self.num_finished);
                out.extend_from_slice(&self.finished);
            } else {
                write::nil(out);
            }
        }
        if let Some(version) = weight_version {
            // Nil for the end and the start of a wave.
            write::nil(out);
            write::nil(out);
            write::str(out, version);
        }
        self.outputs.clear();
        self.finished.clear();
        (self.num_outputs, self.num_finished) = (0, 0);
    }
}
