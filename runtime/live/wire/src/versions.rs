//! The protocols of vLLM's versions, and how to distinguish them.

use std::sync::LazyLock;

use serde::Deserialize;
use vcr_core::VllmMinor;

use crate::codec::error::DecodeError;
use crate::codec::read::whole;
use crate::lora::LoraLayout;

/// Result of `wake_up`: frontends of a version refuse the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WakeUpResult {
    /// Nothing.
    Nil,
    /// Whether the engine is awake.
    Bool,
}

/// A row of `compat.toml`: a version's features on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProtocolRules {
    /// The version.
    #[serde(deserialize_with = "version")]
    pub version: VllmMinor,
    /// The release whose own frontend the tests drive, if any.
    pub tested: Option<String>,
    /// Elements of an `EngineCoreRequest`.
    pub request_len: usize,
    /// Elements of an `EngineCoreOutputs` that frontends accept at most.
    pub outputs_len: usize,
    /// Elements of an `EngineCoreOutput` that the version knows.
    pub output_len: usize,
    /// Elements of a LoRA request of vllm-rs.
    lora_len: usize,
    /// The result of `wake_up`.
    pub wake_up_result: WakeUpResult,
    /// Whether an idle engine announces a wave that a request begins. Up to
    /// 0.32 frontends do that.
    pub engine_starts_waves: bool,
    /// Keys of the scheduler's statistics that only some versions have.
    pub scheduler_stats_keys: Vec<String>,
    /// Keys of `BlockStored` that only some versions have.
    pub block_stored_keys: Vec<String>,
    /// Keys of the `kv_transfer_params` of a finished prompt that only some
    /// versions have.
    pub kv_transfer_keys: Vec<String>,
    /// Version of the NIXL connector's own protocol.
    pub nixl_connector_version: u32,
    /// Keys of the NIXL connector's compatibility hash that only some versions have.
    pub nixl_hash_keys: Vec<String>,
}

impl ProtocolRules {
    /// The layout of an adapter in vllm-rs of this version.
    #[must_use]
    pub fn lora_layout(&self) -> LoraLayout {
        if self.lora_len == 7 { LoraLayout::Seven } else { LoraLayout::Six }
    }
}

fn version<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<VllmMinor, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// The protocol of a version.
pub trait Protocol {
    /// Its row of the table of versions.
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

/// The possible versions of a frontend, judging by its messages.
///
/// The handshake does not distinguish them; the first ADD does in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionEvidence {
    /// The oldest version that sends this.
    pub oldest: VllmMinor,
    /// The newest version that sends this.
    pub newest: VllmMinor,
    /// Elements of its ADD: fewer than 20 before 0.27, perhaps more than 22
    /// after 0.33.
    pub request_len: usize,
}

impl VersionEvidence {
    /// Evidence in the payload of an ADD: its length and some keys.
    ///
    /// # Errors
    ///
    /// When the bytes are not an array as of ADD.
    pub fn from_add(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut tell_tales = VersionMarks::default();
        whole("ADD", payload, |reader| {
            tell_tales.len = reader.array()?;
            for index in 0..tell_tales.len {
                match index {
                    // Only maps and arrays; anything else is not evidence.
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

    /// Detects the version from the name of a utility call, if it differs between versions.
    #[must_use]
    pub fn with_utility(self, method: &str) -> Self {
        // The user's `/pause` has this name from 0.33 on.
        if method == "pause_generation" {
            Self { oldest: VllmMinor::V0_33, newest: VllmMinor::V0_33, ..self }
        } else {
            self
        }
    }

    /// Whether the frontend is of a release before all versions, whose requests
    /// mean other things.
    #[must_use]
    pub fn is_too_old(self) -> bool {
        self.request_len < VllmMinor::OLDEST.rules().request_len
    }

    /// Whether the frontend is newer than all known versions, and its requests may have unknown
    /// fields.
    #[must_use]
    pub fn is_newer(self) -> bool {
        self.request_len > VllmMinor::NEWEST.rules().request_len
    }

    /// `default`, if it is one of the versions; otherwise the nearest that is.
    #[must_use]
    pub fn pick(self, default: VllmMinor) -> VllmMinor {
        default.clamp(self.oldest, self.newest)
    }
}

/// The differences of an ADD between versions.
#[derive(Default)]
struct VersionMarks {
    len: usize,
    lora_len: usize,
    /// vllm-rs writes it from 0.30 on, the Python server when it is set.
    watermarking: bool,
    /// vllm-rs writes it from 0.29 on.
    routed_experts: bool,
    /// A key that the Python server has from 0.32 on.
    is_newer_python: bool,
    /// vllm-rs, which writes this from 0.31 on.
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
            // vllm-rs keeps the layout of seven up to 0.32, the Python server
            // up to 0.31.
            _ if self.lora_len == 6 && self.is_rust => (V0_33, V0_33),
            _ if self.lora_len == 7 => (V0_31, V0_32),
            _ if self.is_newer_python || self.lora_len == 6 => (V0_32, V0_33),
            _ => (V0_31, V0_33),
        };
        VersionEvidence { oldest, newest, request_len: self.len }
    }
}
