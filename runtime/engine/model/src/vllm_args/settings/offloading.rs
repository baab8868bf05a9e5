//! KV offloading: `--kv-offloading-size` and the connectors of `--kv-transfer-config`.

use serde_json::{Map, Value};
use vcr_core::{EvictionPolicy, HostRules, KvTiersConfig, NamedValue as _};

use super::{invalid, not_simulated, object};
use crate::error::gib;
use crate::kv::KvPlan;
use crate::vllm_args::ArgumentError;
use crate::vllm_args::words::Word;

/// First minor release whose offloading connector is simulated.
const SINCE_MINOR: u8 = 32;

/// Host memory for KV, before the block size is known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KvOffloading {
    /// Bytes for all GPUs of an engine together.
    bytes: u64,
    argument: &'static str,
    eviction_policy: EvictionPolicy,
    store_threshold: u32,
    offload_prompt_only: bool,
}

impl KvOffloading {
    pub(super) fn of_size(word: &Word, minor: u8) -> Result<Self, ArgumentError> {
        let gib: Option<f64> = word.text().parse().ok().filter(|gib: &f64| gib.is_finite() && *gib > 0.0);
        let gib = gib.ok_or_else(|| invalid(word, "a number of GiB above 0".to_owned()))?;
        Self::new(word, minor, (gib * (1_u64 << 30) as f64) as u64)
    }

    fn new(word: &Word, minor: u8, bytes: u64) -> Result<Self, ArgumentError> {
        if minor < SINCE_MINOR {
            return Err(not_simulated(word, "the offloading connector is that of vLLM 0.32 and 0.33"));
        }
        let KvTiersConfig { eviction_policy, store_threshold, offload_prompt_only, .. } = KvTiersConfig::default();
        let argument = word.argument.name;
        Ok(Self { bytes, argument, eviction_policy, store_threshold, offload_prompt_only })
    }

    fn of_connector(word: &Word, minor: u8, extra: &Map<String, Value>) -> Result<Self, ArgumentError> {
        let bytes = extra.get("cpu_bytes_to_use").and_then(Value::as_f64).filter(|bytes| *bytes >= 1.0);
        let bytes =
            bytes.ok_or_else(|| invalid(word, "`cpu_bytes_to_use` in `kv_connector_extra_config`".to_owned()))?;
        let mut offloading = Self::new(word, minor, bytes as u64)?;
        for (key, value) in extra {
            let wrong = |expected: &str| invalid(word, format!("`{key}`: {expected}"));
            match key.as_str() {
                "cpu_bytes_to_use" => {}
                "spec_name" if value == "CPUOffloadingSpec" => {}
                "eviction_policy" => {
                    let text = value.as_str().unwrap_or_default();
                    let named = EvictionPolicy::NAMES.iter().find(|(name, _)| *name == text);
                    offloading.eviction_policy = named.ok_or_else(|| wrong("\"lru\" or \"arc\""))?.1;
                }
                "store_threshold" => {
                    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
                    offloading.store_threshold = number.ok_or_else(|| wrong("a whole number"))?;
                }
                "offload_prompt_only" => {
                    offloading.offload_prompt_only = value.as_bool().ok_or_else(|| wrong("true or false"))?;
                }
                _ => {
                    let known = "of `kv_connector_extra_config` cpu_bytes_to_use, eviction_policy, store_threshold and \
                                 offload_prompt_only are known";
                    return Err(not_simulated(word, known));
                }
            }
        }
        Ok(offloading)
    }

    /// The tiers of an engine with this KV cache, whose layers are split over `tensor_parallel` GPUs.
    ///
    /// # Errors
    /// If the model is unknown, or not even one block fits.
    pub(in crate::vllm_args) fn tiers(
        &self,
        kv: Option<&KvPlan>,
        tensor_parallel: u32,
    ) -> Result<KvTiersConfig, ArgumentError> {
        let refused = |expected: String| {
            let (name, value) = (self.argument.to_owned(), gib(self.bytes as f64));
            ArgumentError::Value { name, value, expected }
        };
        let kv = kv.ok_or_else(|| refused("a model that is known: its KV blocks have a size".to_owned()))?;
        let block_bytes = kv.stage_block_bytes.iter().sum::<u64>().saturating_mul(tensor_parallel.into());
        let host_blocks = self.bytes / block_bytes.max(1);
        if host_blocks == 0 {
            return Err(refused(format!("at least one KV block of {} over all GPUs", gib(block_bytes as f64))));
        }
        Ok(KvTiersConfig {
            rules: HostRules::Vllm,
            host_blocks: u32::try_from(host_blocks).unwrap_or(u32::MAX),
            kv_bytes_per_token: kv.bytes_per_token() as u64,
            eviction_policy: self.eviction_policy,
            store_threshold: self.store_threshold,
            offload_prompt_only: self.offload_prompt_only,
            ..KvTiersConfig::default()
        })
    }
}

/// Reads `--kv-transfer-config`: a link between pools, offloading, or both.
pub(super) fn connectors(word: &Word, minor: u8) -> Result<(String, Option<KvOffloading>), ArgumentError> {
    let map = object(word)?;
    let extra = |map: &Map<String, Value>| match map.get("kv_connector_extra_config") {
        Some(Value::Object(extra)) => extra.clone(),
        _ => Map::new(),
    };
    let all = match map.get("kv_connector").and_then(Value::as_str) {
        Some("MultiConnector") => {
            let connectors = extra(&map).get("connectors").and_then(Value::as_array).cloned().unwrap_or_default();
            let objects: Option<Vec<_>> = connectors.iter().map(|value| value.as_object().cloned()).collect();
            objects.filter(|all| !all.is_empty()).ok_or_else(|| {
                invalid(word, "`connectors` in `kv_connector_extra_config`, an array of objects".to_owned())
            })?
        }
        _ => vec![map],
    };
    let (mut results, mut offloading) = (Vec::new(), None);
    for connector in &all {
        match connector.get("kv_connector").and_then(Value::as_str).unwrap_or_default() {
            "NixlConnector" => results.push("the engine's pool and the link of cluster(#{ prefill, decode, link })"),
            "OffloadingConnector" if offloading.is_none() => {
                offloading = Some(KvOffloading::of_connector(word, minor, &extra(connector))?);
                results.push("kv_tiers: the host");
            }
            _ => {
                let known = "of the connectors NixlConnector (the link of a disaggregated cluster), OffloadingConnector \
                             and MultiConnector with one of each are known";
                return Err(not_simulated(word, known));
            }
        }
    }
    Ok((results.join("; "), offloading))
}
