//! Options of KV transfers through NIXL.

use std::ffi::OsString;
#[cfg(feature = "nixl")]
use std::path::Path;

use clap::Args;
use vcr_live::Identity;
use vcr_transfer::PlaneFactory;
#[cfg(feature = "nixl")]
use vcr_wire::{Dtype, NixlCompatibility};

use super::unusable::Unusable;

/// Which peers an engine reads from, by the hash of vLLM's version, the model and data types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Compatibility {
    /// Peers with the hash that vLLM would compute.
    Auto,
    /// All peers.
    Any,
    /// Peers with this hash.
    Hash(String),
}

fn compatibility(text: &str) -> Result<Compatibility, String> {
    match text {
        "auto" => Ok(Compatibility::Auto),
        "any" => Ok(Compatibility::Any),
        hash if hash.len() == 64 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) => {
            Ok(Compatibility::Hash(hash.to_owned()))
        }
        _ => Err("expected `auto`, `any`, or a hash of 64 hexadecimal digits".to_owned()),
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Disaggregated prefill and decode")]
pub(crate) struct NixlArgs {
    /// Library of --kv-transfer nixl, libnixl_capi.so or its folder [default: found in the active
    /// Python environment].
    #[arg(long, value_name = "PATH", env = "NIXL_LIBRARY")]
    nixl_library: Option<OsString>,

    /// Compatibility hash of NIXL peers: `auto` computes vLLM's, `any` accepts every peer.
    #[arg(long, value_name = "auto|any|HASH", default_value = "auto", value_parser = compatibility)]
    nixl_compatibility: Compatibility,

    /// Model name in the compatibility hash, as vLLM's command line has it [default: the name of the served model].
    #[arg(long, value_name = "NAME")]
    nixl_model: Option<String>,

    /// Attention backend in the compatibility hash.
    #[arg(long, value_name = "NAME", default_value = "FLASH_ATTN")]
    nixl_attention_backend: String,
}

/// Engine settings for the transfers.
#[cfg_attr(not(feature = "nixl"), expect(dead_code, reason = "without NIXL only the name of its feature matters"))]
pub(crate) struct NixlEngines<'a> {
    /// Host and first port of the side channel.
    pub(crate) side_channel: (&'a str, u16),
    /// Identity of the engines towards frontends.
    pub(crate) identity: &'a Identity,
    pub(crate) model_name: &'a str,
    /// Layers, KV heads and head size.
    pub(crate) shape: [u32; 3],
    /// Data type of the KV cache, with vLLM's name.
    pub(crate) cache_dtype: String,
    /// Whether prefill engines write the KV.
    pub(crate) is_pushed: bool,
}

#[cfg(feature = "nixl")]
impl NixlArgs {
    pub(crate) fn planes(&self, engines: &NixlEngines<'_>) -> Result<PlaneFactory, Unusable> {
        let library = self.nixl_library.as_deref().filter(|path| !path.is_empty()).map(Path::new);
        vcr_nixl::planes(self.settings(engines), library)
            .map_err(|error| Unusable { message: error.to_string(), hint: error.hint().map(str::to_owned) })
    }

    fn settings(&self, engines: &NixlEngines<'_>) -> vcr_nixl::NixlSettings {
        let Identity { dtype, vllm_version, .. } = engines.identity;
        let version = engines.identity.default_version();
        let [num_hidden_layers, num_kv_heads, head_size] = engines.shape;
        let (side_channel_host, side_channel_port) = engines.side_channel;
        vcr_nixl::NixlSettings {
            side_channel_host: side_channel_host.to_owned(),
            side_channel_port,
            version,
            compatibility: NixlCompatibility {
                vllm_version: vllm_version.clone().unwrap_or_else(|| format!("{version}.0")),
                model: self.nixl_model.clone().unwrap_or_else(|| engines.model_name.to_owned()),
                dtype: match dtype {
                    Dtype::Float16 => "float16",
                    Dtype::Bfloat16 => "bfloat16",
                    Dtype::Float32 => "float32",
                }
                .to_owned(),
                num_kv_heads,
                head_size,
                num_hidden_layers,
                attn_backend_name: self.nixl_attention_backend.clone(),
                cache_dtype: engines.cache_dtype.clone(),
                is_hma_enabled: true,
                transfer_mode: if engines.is_pushed { "push" } else { "pull" }.to_owned(),
            },
            hash: match &self.nixl_compatibility {
                Compatibility::Hash(hash) => Some(hash.clone()),
                Compatibility::Auto | Compatibility::Any => None,
            },
            enforces_compatibility: self.nixl_compatibility != Compatibility::Any,
        }
    }
}

#[cfg(not(feature = "nixl"))]
impl NixlArgs {
    /// Fails with the name of the missing feature.
    pub(crate) fn planes(&self, _engines: &NixlEngines<'_>) -> Result<PlaneFactory, Unusable> {
        let (message, hint) = crate::absent::message("--kv-transfer nixl", "nixl");
        Err(Unusable { message, hint: Some(hint.to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_all_or_those_with_a_hash() {
        assert_eq!(compatibility("auto"), Ok(Compatibility::Auto));
        assert_eq!(compatibility("any"), Ok(Compatibility::Any));
        let hash = "0f".repeat(32);
        assert_eq!(compatibility(&hash), Ok(Compatibility::Hash(hash.clone())));
        for text in ["", "none", &hash[1..], &hash.to_uppercase()] {
            assert!(compatibility(text).is_err(), "{text}");
        }
    }
}
