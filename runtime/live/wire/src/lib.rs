//! vLLM's engine-core protocol, versions 0.27 to 0.33: MessagePack over ZeroMQ, for both ends.
//!
//! A *frontend* (vllm-rs or the Python API server) binds every socket and sends [`Request`]s. An *engine* connects
//! and answers with [`EngineCoreOutputs`]. An [`EngineLink`] is the engine's end, and a [`FrontendLink`] the
//! frontend's. A [`KvEventPublisher`] publishes changes of an engine's cache. A [`Relay`] between both ends
//! observes the messages. Without the feature `sockets` this crate is only a codec. With it, libzmq is built from
//! the sources in its crate, which needs only a C++ compiler (Debian: `g++`).
//!
//! Decoders are tolerant, because one binary must support seven versions. They read arrays by index, use defaults
//! for missing elements at the end, and skip further elements and unknown keys. Encoders write the shortest
//! equivalent array, because frontends accept arrays that are shorter than their own but none that are longer.
//! `compat.toml` lists the differences between versions; see [`ProtocolRules`].
//!
//! Bytes from outside are never trusted: they can neither make a decoder panic nor make it allocate more than a
//! fixed multiple of their length.
//!
//! ```
//! use vcr_wire::{EngineCoreOutputs, Protocol, VllmMinor, StepEncoder, StepEnd};
//!
//! let rules = VllmMinor::V0_33.rules();
//! let mut step = StepEncoder::new(rules);
//! step.tokens("cmpl-1", &[9707], None);
//! let mut frame = Vec::new();
//! step.finish(StepEnd { timestamp: 1.5, ..StepEnd::default() }, &mut frame);
//!
//! let outputs = EngineCoreOutputs::decode(&frame)?;
//! assert_eq!(outputs.outputs[0].new_token_ids, [9707]);
//! # Ok::<(), vcr_wire::DecodeError>(())
//! ```

#![warn(missing_docs)]

mod codec;
mod handshake;
mod kv_events;
#[cfg(feature = "sockets")]
mod link;
mod lora;
mod nixl;
mod output;
mod request;
mod sampling;
mod stats;
mod step_outputs;
mod tensor;
mod versions;

pub use codec::error::{DecodeError, Problem, Step};
pub use codec::json::AsJson;
pub use codec::value::{Integer, Raw, Value};
pub use handshake::{Addresses, Dtype, EngineHandshake, EngineStatus, Init, KvEventsConfig, ReadyResponse};
pub use kv_events::{BlockHash, BlockRemoved, BlockStored, KvEvent, KvEventBatch, KvEventMessage, decode_sequence};
#[cfg(feature = "sockets")]
pub use link::{
    DataAddress, EngineGreeting, EngineInputs, EngineLink, EngineLinkConfig, EngineOutputs, FrontendConfig,
    FrontendLink, FrontendListener, FrontendMessage, KvEventPublisher, KvEventSubscriber, LinkError, LocalEvent,
    LocalLink, LocalLinkError, LocalSink, MessageDamage, MetadataRequest, NoticeBoard, NoticeSender, Passed, Received,
    Relay, RelayConfig, RelayNotice, RelayPath, RelayTap, Reminders, Source, Timer, Transport, WaitHook, Waiter,
    WaitsFor, WakeUp, Waker, check_own_address, check_peer_address, is_same_place, monotonic_ns, unresolved_host,
};
pub use lora::{LoraLayout, LoraRequest};
pub use nixl::{Blob, NixlAgentMetadata, NixlCompatibility, NixlHandshake, NixlQuery};
pub use output::{
    ENGINE_CORE_DEAD, EngineCoreEvent, EngineCoreOutput, EngineCoreOutputs, EngineMessage, EventType, RequestError,
    StepEncoder, StepEnd, StopReason, UtilityOutput, UtilityResult,
};
pub use request::{EngineCoreRequest, MmFeature, PlaceholderRange, Request, StartDpWave, UtilityCall, encode_abort};
pub use sampling::{LogitBias, OutputKind, PoolingParams, RepetitionDetection, SamplingParams, StopStrings};
pub use stats::{
    HitsBySource, IterationDetails, KvCacheEvictionEvent, KvFetchStages, NixlStats, PrefillStats, PrefixCacheStats,
    RequestSpecDecodeMetrics, SchedulerStats, SpecDecodingStats,
};
pub use step_outputs::{StepKeeper, StepOutput, StepOutputs};
pub use tensor::{LogprobRows, Logprobs, Tensor, TensorData};
pub use vcr_base::finish_reason::FinishReason;
pub use vcr_core::{UnknownVersion, VllmMinor};
pub use versions::{Protocol, ProtocolRules, VersionEvidence, WakeUpResult};
