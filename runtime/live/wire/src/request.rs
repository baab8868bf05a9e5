//! Messages from frontends to engines.

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
    /// A request, the payload of ADD.
    EngineCoreRequest, 1 required {
        /// The frontend's internal ID, which outputs and aborts use.
        request_id: String = String::new(),
        /// The tokens of the prompt.
        prompt_token_ids: Option<Vec<u32>> = None,
        /// Images, audio and video in the prompt.
        mm_features: Option<Vec<MmFeature>> = None,
        /// Sampling parameters, if tokens are to be generated.
        sampling_params: Option<SamplingParams> = None,
        /// Parameters of pooling, if no tokens are to be generated.
        pooling_params: Option<PoolingParams> = None,
        /// Wall-clock seconds since 1970.
        arrival_time: f64 = 0.0,
        /// The LoRA adapter that the request uses.
        lora_request: Option<LoraRequest> = None,
        /// Separates the request's blocks from those of requests with another salt.
        cache_salt: Option<String> = None,
        /// Rank of the engine that must run the request.
        data_parallel_rank: Option<u32> = None,
        /// Embeddings of the prompt instead of tokens.
        prompt_embeds: Option<Tensor> = None,
        /// The positions of the prompt that are tokens, if some are embeddings.
        prompt_is_token_ids: Option<Vec<bool>> = None,
        /// Index of the API server that waits for the outputs.
        client_index: u32 = 0,
        /// The wave that the frontend believes the engines are in.
        current_wave: u32 = 0,
        /// A smaller number is more urgent.
        priority: i64 = 0,
        /// Headers of distributed tracing.
        trace_headers: Option<Raw> = None,
        /// Whether more input will follow.
        resumable: bool = false,
        /// The ID that users see.
        external_req_id: Option<String> = None,
        /// Whether reasoning has ended already.
        reasoning_ended: Option<bool> = None,
        /// Arguments of the reasoning parser.
        reasoning_parser_kwargs: Option<Raw> = None,
        /// Whether the request ends at once, because it only releases remote KV blocks.
        abort_immediately: bool = false,
        /// The session that the request belongs to; from 0.28.
        session_id: Option<String> = None,
        /// Hints about the KV cache; from 0.31.
        kv_hints: Option<Value> = None,
    }
}
array_wire!(EngineCoreRequest, full);

map_struct! {
    /// An image, audio or video in a prompt.
    MmFeature, "mm_features" {
        /// Tensors by name; `None` if the engine should have them cached.
        always data: Option<Raw> = None,
        /// `image`, `audio` or `video`.
        always modality: String = String::new(),
        /// Identifier in the prefix cache.
        always identifier: String = String::new(),
        /// Position in the prompt.
        always mm_position: PlaceholderRange = PlaceholderRange::default(),
        /// Key in the cache of processed inputs.
        always mm_hash: Option<String> = None,
    }
}

map_struct! {
    /// The positions in a prompt that are placeholders for an image, audio or video.
    PlaceholderRange, "mm_position" {
        /// The first position.
        always offset: u64 = 0,
        /// The number of positions.
        always length: u64 = 0,
        /// The positions that have an embedding; `None`: all.
        always is_embed: Option<Tensor> = None,
    }
}

/// Starts a wave of requests, in which engines without work must step too.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct StartDpWave {
    /// Number of the wave.
    pub wave: u32,
    /// Rank of the engine that already knows of the wave.
    #[serde(default)]
    pub exclude_engine_index: Option<u32>,
}

/// A call of one of the engine's utility functions.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct UtilityCall {
    /// Index of the API server that waits for the result.
    pub client_index: u32,
    /// ID of the call, which is returned with the result.
    pub call_id: Integer,
    /// Name of the function.
    pub method: String,
    /// Arguments of the function.
    pub args: Vec<Value>,
}

as_array! {
    StartDpWave(wave, exclude_engine_index);
    UtilityCall(client_index, call_id, method, args);
}

/// A message from a frontend or from a coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Run this request.
    Add(Box<EngineCoreRequest>),
    /// Abort these requests, whether the engine knows them or not.
    Abort(Vec<String>),
    /// Start a wave.
    StartDpWave(StartDpWave),
    /// Call a utility function.
    Utility(UtilityCall),
}

impl Request {
    /// Decodes the frames of one message: its type, its payload, and the bytes of large tensors. Of the tensors,
    /// only placeholder masks are put into the request.
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

    /// The message's type byte.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Self::Add(_) => 0,
            Self::Abort(_) => 1,
            Self::StartDpWave(_) => 2,
            Self::Utility(_) => 3,
        }
    }

    /// Appends the payload to `out`, as frontends of the version encode it.
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
    /// The runs of placeholders that embeddings replace; `None` if they replace all, or if the message does not
    /// contain the mask.
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

    /// Appends the payload of an ADD to `out`, with the version's number of elements.
    pub fn encode(&self, out: &mut Vec<u8>, rules: &ProtocolRules) {
        self.write_elements(out, rules.request_len);
    }

    /// Moves placeholder masks from `aux`, the frames after the payload, into the request. Each frame is used for
    /// only one mask, so that a message cannot take more memory than it has bytes.
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

    /// The ID of a request whose other elements may be invalid, so that its frontend can get the error.
    #[must_use]
    pub fn peek_id(payload: &[u8]) -> Option<&str> {
        let mut reader = Reader::new(payload);
        (reader.array().ok()? > 0).then(|| reader.str().ok())?
    }
}

/// Appends the payload of an ABORT for `ids`.
pub fn encode_abort(out: &mut Vec<u8>, ids: &[impl AsRef<str>]) {
    write::array(out, ids.len());
    for id in ids {
        write::str(out, id.as_ref());
    }
}
