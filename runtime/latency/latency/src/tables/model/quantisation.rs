//! Finds the data types from the quantisation that a checkpoint states.

use std::path::Path;

use serde_json::{Map, Value};

use crate::tables::Dtype;
use crate::tables::error::TablesError;
use crate::tables::model::Dtypes;

#[derive(Default)]
struct Excluded {
    attention: bool,
    shared: bool,
    experts: bool,
}

impl Excluded {
    fn of(patterns: Option<&Value>) -> Self {
        let mut excluded = Self::default();
        for pattern in patterns.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            let pattern = pattern.to_lowercase();
            excluded.attention |= ["self_attn", "q_proj", "kv_", "o_proj"].iter().any(|part| pattern.contains(part));
            let is_shared = pattern.contains("shared_expert");
            excluded.shared |= is_shared;
            excluded.experts |= pattern.contains("expert") && !is_shared;
        }
        excluded
    }
}

/// The data types of a checkpoint. As in vLLM, the KV cache has bfloat16 unless the checkpoint states another type.
///
/// # Errors
/// If the quantisation is unknown.
pub(super) fn dtypes(
    path: &Path,
    config: &Map<String, Value>,
    text: &Map<String, Value>,
    quantised: Option<&Map<String, Value>>,
) -> Result<Dtypes, TablesError> {
    let (own, separate) = sections(config, text, quantised);
    let algorithm = find(separate, &["quant_algo"]).or_else(|| find(own, &["quant_algo", "quant_method"]));
    let excluded =
        Excluded::of(separate.and_then(|section| section.get("exclude_modules")).or_else(|| own?.get("ignore")));
    let (gemm, moe) = match algorithm.as_deref() {
        None => (Dtype::BFLOAT16, Dtype::BFLOAT16),
        Some("fp8") if own.and_then(|own| own.get("weight_block_size")).is_some_and(|size| !size.is_null()) => {
            (Dtype::FP8_BLOCK, Dtype::FP8_BLOCK)
        }
        Some("fp8") if is_dynamic(own) => (Dtype::FP8, Dtype::FP8),
        Some("fp8") => (Dtype::FP8_STATIC, Dtype::FP8),
        Some("fp8_block") => (Dtype::FP8_BLOCK, Dtype::FP8_BLOCK),
        Some("nvfp4") => (Dtype::NVFP4, Dtype::NVFP4),
        Some("mxfp4") => (Dtype::BFLOAT16, Dtype::MXFP4),
        Some("awq" | "gptq") => {
            let bits = own.and_then(|own| own.get("bits").or_else(|| own.get("w_bit"))).and_then(Value::as_u64);
            let dtype = if bits == Some(8) { Dtype::INT8_WEIGHTS } else { Dtype::INT4_WEIGHTS };
            (dtype, dtype)
        }
        Some("compressed-tensors" | "modelopt") => match grouped(own) {
            Some(dtype) => {
                let unless = |is_excluded: bool| if is_excluded { Dtype::BFLOAT16 } else { dtype };
                (unless(excluded.attention), unless(excluded.experts))
            }
            None => (Dtype::BFLOAT16, Dtype::BFLOAT16),
        },
        Some(other) => {
            let reason = format!(
                "quantisation `{other}` is not known: set `gemm_dtype`, `moe_dtype` and `kv_cache_dtype`, or remove \
                 it from a copy of the file"
            );
            return Err(TablesError::file(path, reason));
        }
    };
    let unless = |is_excluded: bool| if is_excluded { Dtype::BFLOAT16 } else { gemm };
    Ok(Dtypes {
        gemm,
        moe,
        kv_cache: if has_fp8_kv_cache(own, separate) { Dtype::FP8 } else { Dtype::BFLOAT16 },
        attention: Dtype::BFLOAT16,
        latent: unless(excluded.attention),
        shared: unless(excluded.shared),
    })
}

/// The quantisation sections of a checkpoint: in the model's file, and in a separate file.
pub(super) fn sections<'a>(
    config: &'a Map<String, Value>,
    text: &'a Map<String, Value>,
    quantised: Option<&'a Map<String, Value>>,
) -> (Option<&'a Value>, Option<&'a Value>) {
    let own = config.get("quantization_config").or_else(|| text.get("quantization_config"));
    (own, quantised.and_then(|file| file.get("quantization")))
}

/// The first of the named texts, in lower case.
fn find(section: Option<&Value>, names: &[&str]) -> Option<String> {
    let found = names.iter().find_map(|name| section?.get(name)?.as_str());
    found.map(str::to_lowercase)
}

pub(super) fn has_fp8_kv_cache(own: Option<&Value>, separate: Option<&Value>) -> bool {
    find(separate, &["kv_cache_quant_algo"])
        .or_else(|| find(own, &["kv_cache_quant_algo", "kv_cache_dtype"]))
        .map_or_else(|| has_fp8_scheme(own), |name| name.contains("fp8") || name.contains("e4m3"))
}

fn is_dynamic(own: Option<&Value>) -> bool {
    let Some(own) = own else { return false };
    if let Some(scheme) = own.get("activation_scheme").and_then(Value::as_str) {
        return scheme.eq_ignore_ascii_case("dynamic");
    }
    groups(own).any(|group| {
        let parts = ["input_activations", "weights"].into_iter().filter_map(|part| group.get(part));
        parts.filter_map(|part| part.get("dynamic")).any(|dynamic| dynamic.as_bool() == Some(true))
    })
}

fn groups(own: &Value) -> impl Iterator<Item = &Value> {
    own.get("config_groups").and_then(Value::as_object).into_iter().flat_map(Map::values)
}

/// The weight type of the first group that states one.
fn grouped(own: Option<&Value>) -> Option<Dtype> {
    groups(own?).find_map(|group| {
        let weights = group.get("weights")?;
        let kind = weights.get("type").and_then(Value::as_str).unwrap_or_default().to_lowercase();
        let is_block = weights.get("strategy").and_then(Value::as_str) == Some("block")
            || weights.get("block_structure").is_some_and(|structure| !structure.is_null());
        let has_activations = group.get("input_activations").is_some_and(Value::is_object);
        let group_size = weights.get("group_size").and_then(Value::as_u64);
        match (weights.get("num_bits").and_then(Value::as_u64)?, kind.as_str()) {
            (4, "int") => Some(Dtype::INT4_WEIGHTS),
            (8, "int") if has_activations => Some(Dtype::INT8),
            (8, "int") => Some(Dtype::INT8_WEIGHTS),
            (8, "float") if is_block => Some(Dtype::FP8_BLOCK),
            (8, "float") => Some(Dtype::FP8),
            (4, "float") if has_activations && group_size == Some(16) => Some(Dtype::NVFP4),
            (4, "float") => Some(Dtype::MXFP4),
            _ => None,
        }
    })
}

/// Whether the scheme of the KV cache uses eight-bit floats.
fn has_fp8_scheme(own: Option<&Value>) -> bool {
    let Some(scheme) = own.and_then(|own| own.get("kv_cache_scheme")).and_then(Value::as_object) else { return false };
    let bits = scheme.get("num_bits").and_then(Value::as_u64);
    scheme.get("type").and_then(Value::as_str) == Some("float") && bits.is_some_and(|bits| bits <= 8)
}
