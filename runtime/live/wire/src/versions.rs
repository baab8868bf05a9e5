//! The protocols of vLLM's versions, and how the versions are distinguished.

use std::sync::LazyLock;

use serde::Deserialize;
use vcr_core::VllmMinor;

use crate::codec::error::DecodeError;
use crate::codec::read::whole;
use crate::lora::LoraLayout;

/// The result of `wake_up`. Frontends of each version refuse the other value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WakeUpResult {
    /// Nil.
    Nil,
    /// Whether the engine is awake.
    Bool,
}

/// A row of `compat.toml`: the protocol features of a version.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProtocolRules {
    /// The version.
    #[serde(deserialize_with = "version")]
    pub version: VllmMinor,
    /// The release whose own frontend is used in tests, if any.
    pub tested: Option<String>,
    /// Number of elements in an `EngineCoreRequest`.
    pub request_len: usize,
    /// Maximum number of elements that frontends accept in an `EngineCoreOutputs`.
    pub outputs_len: usize,
    /// Number of elements that the version knows in an `EngineCoreOutput`.
    pub output_len: usize,
    /// Number of elements in a LoRA request of vllm-rs.
    lora_len: usize,
    /// The result of `wake_up`.
    pub wake_up_result: WakeUpResult,
    /// Whether an idle engine announces the wave that a new request starts. Up to 0.32, frontends announce it.
    pub engine_starts_waves: bool,
    /// Keys of the scheduler's statistics that other versions lack.
    pub scheduler_stats_keys: Vec<String>,
    /// Keys of `BlockStored` that other versions lack.
    pub block_stored_keys: Vec<String>,
    /// Keys of a finished prompt's `kv_transfer_params` that other versions lack.
    pub kv_transfer_keys: Vec<String>,
    /// Version of the NIXL connector's own protocol.
    pub nixl_connector_version: u32,
    /// Keys of the NIXL connector's compatibility hash that other versions lack.
    pub nixl_hash_keys: Vec<String>,
}

impl ProtocolRules {
    /// The layout of an adapter that vllm-rs of this version uses.
    #[must_use]
    pub fn lora_layout(&self) -> LoraLayout {
        if self.lora_len == 7 { LoraLayout::Seven } else { LoraLayout::Six }
    }
}

fn version<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<VllmMinor, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// The protocol of a vLLM version.
pub trait Protocol {
    /// The version's row in the table of versions.
    #[must_use]
    fn rules(self) -> &'static ProtocolRules;
}

impl Protocol for VllmMinor {
    fn rules(self) -> &'static ProtocolRules {
        &TABLE.wire[self.index()]
    }
}

#[derive(Deserialize)]
struct Table {
    wire: Vec<ProtocolRules>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    toml::from_str(include_str!("../compat.toml")).expect("the table is part of this build and checked by a test")
});

/// The versions that a frontend may have, judged by its messages.
///
/// The handshake does not distinguish versions; the first ADD distinguishes some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionEvidence {
    /// The oldest version that sends the messages seen so far.
    pub oldest: VllmMinor,
    /// The newest version that sends the messages seen so far.
    pub newest: VllmMinor,
    /// Number of elements in its ADD: fewer than 20 before 0.27, perhaps more than 22 after 0.33.
    pub request_len: usize,
}

impl VersionEvidence {
    /// The evidence in the payload of an ADD: its length and some keys.
    ///
    /// # Errors
    ///
    /// The payload is not an array as in ADD.
    pub fn from_add(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut tell_tales = VersionMarks::default();
        whole("ADD", payload, |reader| {
            tell_tales.len = reader.array()?;
            for index in 0..tell_tales.len {
                match index {
                    // Only maps and arrays are evidence.
                    3 if reader.clone().map().is_ok() => {
                        for _ in 0..reader.map()? {
                            match reader.key()? {
                                Some("watermarking") => tell_tales.watermarking = true,
                                Some("_watermarking_skipped") => tell_tales.is_newer_python = true,
                                Some("routed_experts_prompt_start") => tell_tales.routed_experts = true,
                                _ => {}
                            }
                            reader.skip()?;
                        }
                    }
                    6 => {
                        tell_tales.lora_len = reader.clone().array().unwrap_or(0);
                        reader.skip()?;
                    }
                    18 if reader.clone().map().is_ok() => {
                        for _ in 0..reader.map()? {
                            tell_tales.is_rust |= reader.key()? == Some("chat_template_kwargs");
                            reader.skip()?;
                        }
                    }
                    _ => reader.skip()?,
                }
            }
            Ok(())
        })?;
        Ok(tell_tales.evidence())
    }

    /// Narrows the versions by the name of a utility call, if it differs between versions.
    #[must_use]
    pub fn with_utility(self, method: &str) -> Self {
        // From 0.33 on, `/pause` calls this method.
        if method == "pause_generation" {
            Self { oldest: VllmMinor::V0_33, newest: VllmMinor::V0_33, ..self }
        } else {
            self
        }
    }

    /// Whether the frontend is older than all known versions, so that its requests have another meaning.
    #[must_use]
    pub fn is_too_old(self) -> bool {
        self.request_len < VllmMinor::OLDEST.rules().request_len
    }

    /// Whether the frontend is newer than all known versions, and its requests may have unknown fields.
    #[must_use]
    pub fn is_newer(self) -> bool {
        self.request_len > VllmMinor::NEWEST.rules().request_len
    }

    /// The version nearest to `default` among the possible ones.
    #[must_use]
    pub fn pick(self, default: VllmMinor) -> VllmMinor {
        default.clamp(self.oldest, self.newest)
    }
}

/// The differences between versions in an ADD.
#[derive(Default)]
struct VersionMarks {
    len: usize,
    lora_len: usize,
    /// Written by vllm-rs from 0.30 on, and by the Python server if it is set.
    watermarking: bool,
    /// Written by vllm-rs from 0.29 on.
    routed_experts: bool,
    /// Written by the Python server from 0.32 on.
    is_newer_python: bool,
    /// Written only by vllm-rs, from 0.31 on.
    is_rust: bool,
}

impl VersionMarks {
    fn evidence(&self) -> VersionEvidence {
        use VllmMinor::{V0_27, V0_28, V0_29, V0_30, V0_31, V0_32, V0_33};
        let (oldest, newest) = match self.len {
            ..=20 => (V0_27, V0_27),
            21 if self.watermarking => (V0_30, V0_30),
            21 if self.routed_experts => (V0_29, V0_30),
            21 => (V0_28, V0_30),
            // vllm-rs has the layout of seven elements up to 0.32, the Python server up to 0.31.
            _ if self.lora_len == 6 && self.is_rust => (V0_33, V0_33),
            _ if self.lora_len == 7 => (V0_31, V0_32),
            _ if self.is_newer_python || self.lora_len == 6 => (V0_32, V0_33),
            _ => (V0_31, V0_33),
        };
        VersionEvidence { oldest, newest, request_len: self.len }
    }
}
