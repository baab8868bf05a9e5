//! Messages of frontends to engines.

use std::ops::Range;

use serde::Deserialize;

use crate::codec::error::{DecodeError, Problem};
use crate::codec::field::Wire;
use crate::codec::read::{Reader, whole};
use crate::codec::value::{Integer, Raw, Value};
use crate::codec::{Elements, array_struct, array_wire, as_array, derived, map_struct, write};
use crate::lora::LoraRequest;
use crate::sampling::{PoolingParams, SamplingParams};
use crate::tensor::{Tensor, TensorData};
use crate::versions::ProtocolRules;

array_struct! {
    /// A request, as the message ADD carries it.
    EngineCoreRequest, 1 required {
        /// The frontend's internal name, used in outputs and aborts.
        request_id: String = String::new(),
        /// The prompt.
        prompt_token_ids: Option<Vec<u32>> = None,
        /// Images, audio and video in it.
        mm_features: Option<Vec<MmFeature>> = None,
        /// Parameters of generation.
        sampling_params: Option<SamplingParams> = None,
        /// Parameters of pooling, if no text is wanted.
        pooling_params: Option<PoolingParams> = None,
        /// Wall-clock seconds since 1970.
        arrival_time: f64 = 0.0,
        /// The adapter it uses.
        lora_request: Option<LoraRequest> = None,
        /// Keeps its blocks apart from the blocks of requests with another salt.
        cache_salt: Option<String> = None,
        /// The engine it must run on.
        data_parallel_rank: Option<u32> = None,
        /// Embeddings instead of tokens.
        prompt_embeds: Option<Tensor> = None,
        /// The positions that are tokens, if some are embeddings.
        prompt_is_token_ids: Option<Vec<bool>> = None,
        /// The API server that waits for its outputs.
        client_index: u32 = 0,
        /// The engines' wave as the frontend knows it.
        current_wave: u32 = 0,
        /// Smaller is more urgent.
        priority: i64 = 0,
        /// Headers of distributed tracing.
        trace_headers: Option<Raw> = None,
        /// Whether more input will follow.
        resumable: bool = false,
        /// The name that users see.
        external_req_id: Option<String> = None,
        /// Whether reasoning has ended already.
        reasoning_ended: Option<bool> = None,
        /// Arguments of the reasoning parser.
        reasoning_parser_kwargs: Option<Raw> = None,
        /// Whether it is to be finished at once, to release remote KV blocks.
        abort_immediately: bool = false,
        /// The session it belongs to; from 0.28.
        session_id: Option<String> = None,
        /// Hints about the KV cache; from 0.31.
        kv_hints: Option<Value> = None,
    }
}
array_wire!(EngineCoreRequest, full);

map_struct! {
    /// An image, audio or video of a prompt.
    MmFeature, "mm_features" {
        /// Its tensors by name; `None` when the engine should have it cached.
        always data: Option<Raw> = None,
        /// `image`, `audio` or `video`.
        always modality: String = String::new(),
        /// Its name in the prefix cache.
        always identifier: String = String::new(),
        /// Its place in the prompt.
        always mm_position: PlaceholderRange = PlaceholderRange::default(),
        /// Its name in the cache of processed inputs.
        always mm_hash: Option<String> = None,
    }
}

map_struct! {
    /// The positions of a prompt that stand for an image, audio or video.
    PlaceholderRange, "mm_position" {
        /// The first position.
        always offset: u64 = 0,
        /// Their number.
        always length: u64 = 0,
        /// Positions with an embedding; `None`: all.
        always is_embed: Option<Tensor> = None,
    }
}

/// A wave of requests begins: engines without work must step, too.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct StartDpWave {
    /// The wave.
    pub wave: u32,
    /// The engine that knows already.
    #[serde(default)]
    pub exclude_engine_index: Option<u32>,
}

/// A call of one of the engine's own functions.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct UtilityCall {
    /// The API server that waits for the result.
    pub client_index: u32,
    /// Returned with the result.
    pub call_id: Integer,
    /// The function.
    pub method: String,
    /// Its arguments.
    pub args: Vec<Value>,
}

as_array! {
    StartDpWave(wave, exclude_engine_index);
    UtilityCall(client_index, call_id, method, args);
}

/// A message from a frontend, or from a coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Run this request.
    Add(Box<EngineCoreRequest>),
    /// Forget these requests, known or not.
    Abort(Vec<String>),
    /// A wave begins.
    StartDpWave(StartDpWave),
    /// Call a function.
    Utility(UtilityCall),
}

impl Request {
    /// Decodes the frames of one message: its type, then its payload. The bytes of large tensors follow;
    /// masks of placeholders are taken from them.
    pub fn decode(frames: &[impl AsRef<[u8]>]) -> Result<Self, DecodeError> {
        let [kind, payload, ..] = frames else {
            let problem = Problem::Frames { expected: "a type and a payload", found: frames.len() };
            return Err(DecodeError::new(problem, 0).of("request"));
        };
        let payload = payload.as_ref();
        match kind.as_ref() {
            [0] => whole("ADD", payload, EngineCoreRequest::read).map(|mut request| {
                request.take_masks(&frames[2..]);
                Self::Add(Box::new(request))
            }),
            [1] => whole("ABORT", payload, derived::read).map(Self::Abort),
            [2] => whole("START_DP_WAVE", payload, derived::read).map(Self::StartDpWave),
            [3] => whole("UTILITY", payload, derived::read).map(Self::Utility),
            other => {
                let (expected, found) = ("a request type from 0 to 3", other.first().map_or(-1, |byte| (*byte).into()));
                Err(DecodeError::new(Problem::OutOfRange { expected, found }, 0).of("request"))
            }
        }
    }

    /// The byte that announces this message.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Self::Add(_) => 0,
            Self::Abort(_) => 1,
            Self::StartDpWave(_) => 2,
            Self::Utility(_) => 3,
        }
    }

    /// Appends the payload to `out`, as frontends of a version write it.
    pub fn encode(&self, out: &mut Vec<u8>, rules: &ProtocolRules) {
        match self {
            Self::Add(request) => request.encode(out, rules),
            Self::Abort(ids) => encode_abort(out, ids),
            Self::StartDpWave(wave) => derived::write(wave, out),
            Self::Utility(call) => derived::write(call, out),
        }
    }
}

impl PlaceholderRange {
    /// The runs of placeholders that embeddings replace; none if all are, or where the bytes of the
    /// mask are not in the message.
    #[must_use]
    pub fn embed_runs(&self) -> Option<Vec<Range<u32>>> {
        let mask = self.is_embed.as_ref().filter(|mask| mask.dtype == "bool")?;
        let TensorData::Inline(bytes) = &mask.data else { return None };
        let mut runs: Vec<Range<u32>> = Vec::new();
        for (place, _) in (0u32..).zip(bytes).filter(|(_, byte)| **byte != 0) {
            match runs.last_mut().filter(|run| run.end == place) {
                Some(run) => run.end = place + 1,
                None => runs.push(place..place + 1),
            }
        }
        Some(runs)
    }
}

impl EngineCoreRequest {
    /// Decodes the payload of an ADD.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        whole("ADD", payload, Self::read)
    }

    /// Appends the payload of an ADD, as long as frontends of a version make it.
    pub fn encode(&self, out: &mut Vec<u8>, rules: &ProtocolRules) {
        self.write_elements(out, rules.request_len);
    }

    /// Takes in the masks of placeholders that `aux` holds, the frames behind the payload. A frame is the bytes of one
    /// tensor, so that no message makes more bytes than it has.
    fn take_masks(&mut self, aux: &[impl AsRef<[u8]>]) {
        let mut aux: Vec<Option<&[u8]>> = aux.iter().map(|frame| Some(frame.as_ref())).collect();
        let masks = self.mm_features.iter_mut().flatten().filter_map(|feature| feature.mm_position.is_embed.as_mut());
        for mask in masks {
            let TensorData::Aux(index) = mask.data else { continue };
            let place = index.checked_sub(1).and_then(|place| usize::try_from(place).ok());
            if let Some(bytes) = place.and_then(|place| aux.get_mut(place)).and_then(Option::take) {
                mask.data = TensorData::Inline(bytes.to_vec());
            }
        }
    }

    /// The name of a request that may not be decodable otherwise, so that its
    /// frontend can be notified.
    #[must_use]
    pub fn peek_id(payload: &[u8]) -> Option<&str> {
        let mut reader = Reader::new(payload);
        (reader.array().ok()? > 0).then(|| reader.str().ok())?
    }
}

/// Appends the payload of an ABORT of `ids`.
pub fn encode_abort(out: &mut Vec<u8>, ids: &[impl AsRef<str>]) {
    write::array(out, ids.len());
    for id in ids {
        write::str(out, id.as_ref());
    }
}
