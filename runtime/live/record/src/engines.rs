//! Engines and their settings.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use vcr_trace::capture::EngineRecord;

use crate::request::Load;

/// Settings that cannot affect results: names, addresses and ranks.
const NOT_IN_FINGERPRINT: [&str; 8] = [
    "coord_store_port",
    "coordinator_input_address",
    "coordinator_output_address",
    "data_parallel_rank",
    "dp_stats_address",
    "instance_id",
    "kv_events_config",
    "vllm_version",
];

#[derive(Debug, Default)]
pub(crate) struct Engine {
    /// The settings, once the engine has registered.
    pub(crate) record: Option<EngineRecord>,
    pub(crate) steps: u64,
    pub(crate) load: Option<Load>,
    pub(crate) is_dead: bool,
}

/// Builds the record of an engine that registers with these settings.
pub(crate) fn engine_record(rank: u32, at_ns: u64, model: &str, mut settings: Map<String, Value>) -> EngineRecord {
    let fingerprint = Some(fingerprint(model, &settings));
    let vllm_version = settings.remove("vllm_version").and_then(|version| Some(version.as_str()?.to_owned()));
    EngineRecord { rank, at_ns, vllm_version, settings, fingerprint }
}

/// SHA-256 of the model's name, the vLLM version and the settings that affect results. Each is preceded by its
/// length.
fn fingerprint(model: &str, settings: &Map<String, Value>) -> String {
    let mut hasher = Sha256::new();
    let mut add = |text: &str| {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    };
    add(model);
    add(settings.get("vllm_version").and_then(Value::as_str).unwrap_or_default());
    let counted = settings.iter().filter(|(name, _)| !NOT_IN_FINGERPRINT.contains(&name.as_str()));
    for (name, value) in counted.collect::<BTreeMap<_, _>>() {
        add(name);
        add(&value.to_string());
    }
    hex::encode(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(model: &str, settings: &Value) -> Option<String> {
        engine_record(0, 0, model, settings.as_object().expect("a map").clone()).fingerprint
    }

    #[test]
    fn a_fingerprint_is_of_what_results_depend_on() {
        let settings = json!({"vllm_version": "0.33.0", "max_num_seqs": 64, "instance_id": "a"});
        let same = json!({"instance_id": "b", "data_parallel_rank": 1, "max_num_seqs": 64, "vllm_version": "0.33.0"});
        assert_eq!(of("m", &settings), of("m", &same));
        assert_ne!(of("m", &settings), of("n", &settings));
        for (name, value) in [("vllm_version", json!("0.32.0")), ("max_num_seqs", json!(65)), ("new", json!(null))] {
            let mut other = settings.clone();
            other[name] = value;
            assert_ne!(of("m", &settings), of("m", &other), "{name}");
        }
    }
}
