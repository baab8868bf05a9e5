//! Quantisation of weights, as described in checkpoints.

use serde_json::{Map, Value};
use vcr_base::suggestion::nearest;
use vcr_roofline::Arithmetic;

use crate::error::ModelError;
use crate::fields::Fields;

/// The storage format of a weight matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// Not quantised, with this many bytes per value.
    Plain(u64),
    /// 8-bit floats, with one scale per matrix or per block of 128 x 128.
    Fp8 {
        /// Whether scales are per block.
        has_blocks: bool,
    },
    /// 8-bit integers.
    Int8,
    /// 4-bit integers, with one scale per group of weights.
    Int4 {
        /// Number of weights per group.
        group: u64,
    },
    /// 4-bit floats with one scale per 32 weights.
    Mxfp4,
    /// 4-bit floats with one scale per 16 weights.
    Nvfp4,
}

impl WeightFormat {
    /// Bytes per weight, including its share of a scale.
    #[must_use]
    pub fn bytes(self) -> f64 {
        match self {
            Self::Plain(bytes) => bytes as f64,
            Self::Fp8 { has_blocks: true } => 1.0 + 4.0 / (128.0 * 128.0),
            Self::Fp8 { has_blocks: false } | Self::Int8 => 1.0,
            Self::Int4 { group } => 0.5 + 2.0 / group as f64,
            Self::Mxfp4 => 0.5 + 1.0 / 32.0,
            Self::Nvfp4 => 0.5 + 1.0 / 16.0,
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain(4) => "float32",
            Self::Plain(_) => "bfloat16",
            Self::Fp8 { .. } => "fp8",
            Self::Int8 => "int8",
            Self::Int4 { .. } => "int4",
            Self::Mxfp4 => "mxfp4",
            Self::Nvfp4 => "nvfp4",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Formats {
    pub(crate) plain: WeightFormat,
    pub(crate) attention: WeightFormat,
    pub(crate) state: WeightFormat,
    pub(crate) dense: WeightFormat,
    pub(crate) experts: WeightFormat,
    pub(crate) shared: WeightFormat,
    /// Arithmetic for quantised weights, on GPUs that support it.
    pub(crate) arithmetic: Arithmetic,
    /// Whether the checkpoint asks for 8-bit KV.
    pub(crate) has_fp8_kv_cache: bool,
}

/// Supported methods, by the names of `--quantization`.
const METHODS: [&str; 10] = [
    "awq",
    "awq_marlin",
    "compressed-tensors",
    "fp8",
    "gptq",
    "gptq_marlin",
    "modelopt",
    "modelopt_fp4",
    "mxfp4",
    "nvfp4",
];

/// Number of weights per group, if a checkpoint does not state it.
const DEFAULT_GROUP: u64 = 128;

pub(crate) fn plain_bytes(name: &str) -> Option<u64> {
    match name {
        "bfloat16" | "float16" | "half" => Some(2),
        "float32" | "float" => Some(4),
        _ => None,
    }
}

impl Formats {
    /// The formats of a checkpoint with this configuration. `separate` is the content of its
    /// `hf_quant_config.json`, if it has that file.
    pub(crate) fn read(
        fields: Fields<'_>,
        config: &Map<String, Value>,
        separate: Option<&Map<String, Value>>,
        plain_bytes: u64,
    ) -> Result<Self, ModelError> {
        let plain = WeightFormat::Plain(plain_bytes);
        let stated = config.get("quantization_config").or_else(|| fields.map.get("quantization_config"));
        let separate = separate.and_then(|file| file.get("quantization"));
        let Some(section) = stated.filter(|value| !value.is_null()).or(separate).and_then(Value::as_object) else {
            return Ok(Self::all(plain, plain));
        };
        let (format, arithmetic) = format_of(fields, section)?;
        let excluded = Excluded::of(section);
        let unless = |is_excluded: bool| if is_excluded { plain } else { format };
        let formats = Self {
            attention: unless(excluded.attention),
            state: unless(excluded.state),
            dense: unless(excluded.dense),
            experts: unless(excluded.experts),
            shared: unless(excluded.shared),
            arithmetic,
            has_fp8_kv_cache: has_fp8_kv_cache(section),
            ..Self::all(plain, format)
        };
        // In gpt-oss, only the experts are quantised.
        if format == WeightFormat::Mxfp4 && section.get("quant_method").is_some_and(|name| name == "mxfp4") {
            return Ok(Self { experts: format, has_fp8_kv_cache: formats.has_fp8_kv_cache, ..Self::all(plain, plain) });
        }
        Ok(formats)
    }

    /// Formats in which every weight counts 1, to count weights instead of bytes.
    pub(crate) fn numbers() -> Self {
        Self::all(WeightFormat::Plain(1), WeightFormat::Plain(1))
    }

    /// Formats in which a quantised weight counts 1 and other weights count 0.
    pub(crate) fn quantised_numbers(self) -> Self {
        let counted = |format: WeightFormat| WeightFormat::Plain(u64::from(format != self.plain));
        Self {
            plain: WeightFormat::Plain(0),
            attention: counted(self.attention),
            state: counted(self.state),
            dense: counted(self.dense),
            experts: counted(self.experts),
            shared: counted(self.shared),
            ..self
        }
    }

    fn all(plain: WeightFormat, format: WeightFormat) -> Self {
        Self {
            plain,
            attention: format,
            state: format,
            dense: format,
            experts: format,
            shared: format,
            arithmetic: Arithmetic::default(),
            has_fp8_kv_cache: false,
        }
    }

    /// The formats after vLLM has quantised an unquantised checkpoint while loading it.
    pub(crate) fn quantised(self, method: &str) -> Result<Self, ModelError> {
        let is_plain = self == Self::all(self.plain, self.plain);
        if method == "fp8" && is_plain {
            let formats = Self::all(self.plain, WeightFormat::Fp8 { has_blocks: false });
            return Ok(Self { arithmetic: Arithmetic::Fp8, ..formats });
        }
        if METHODS.contains(&method) && !is_plain {
            return Ok(self);
        }
        let reason = match (METHODS.contains(&method), nearest(method, METHODS)) {
            (true, _) => format!("the checkpoint is not quantised by `{method}`"),
            (false, Some(near)) => format!("unknown `{method}`: did you mean `{near}`?"),
            (false, None) => format!("unknown `{method}`: expected one of {}", METHODS.join(", ")),
        };
        Err(ModelError::Serving { field: "quantization", reason })
    }
}

/// The main format of a quantised checkpoint, and the arithmetic for it.
fn format_of(fields: Fields<'_>, section: &Map<String, Value>) -> Result<(WeightFormat, Arithmetic), ModelError> {
    let name = |key: &str| section.get(key).and_then(Value::as_str).map(str::to_lowercase);
    let method = name("quant_algo").or_else(|| name("quant_method"));
    let Some(method) = method else { return Err(fields.missing("quantization_config.quant_method")) };
    let unknown = |what: &str| {
        let near = nearest(what, METHODS).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        let expected = format!("one of {}{near}", METHODS.join(", "));
        fields.wrong("quantization_config.quant_method", &what.into(), &expected)
    };
    Ok(match method.as_str() {
        "fp8" => {
            let has_blocks = section.get("weight_block_size").is_some_and(Value::is_array);
            (WeightFormat::Fp8 { has_blocks }, Arithmetic::Fp8)
        }
        "mxfp4" => (WeightFormat::Mxfp4, Arithmetic::Bfloat16),
        "nvfp4" => (WeightFormat::Nvfp4, Arithmetic::Fp4),
        "awq" | "gptq" | "awq_marlin" | "gptq_marlin" => (integers(fields, section)?, Arithmetic::Bfloat16),
        "compressed-tensors" | "modelopt" | "modelopt_fp4" => {
            let groups = section.get("config_groups").and_then(Value::as_object);
            let group = groups.into_iter().flat_map(Map::values).find(|group| group.get("weights").is_some());
            let weights = group.and_then(|group| group.get("weights"));
            let weights = weights.ok_or_else(|| fields.missing("quantization_config.config_groups"))?;
            let bits = weights.get("num_bits").and_then(Value::as_u64);
            let kind = weights.get("type").and_then(Value::as_str).unwrap_or_default();
            let group_size = weights.get("group_size").and_then(Value::as_u64).filter(|group| *group > 0);
            let is_block = weights.get("strategy").is_some_and(|strategy| strategy == "block");
            let format = match (bits, kind, group_size) {
                (Some(8), "float", _) => WeightFormat::Fp8 { has_blocks: is_block },
                (Some(8), "int", _) => WeightFormat::Int8,
                (Some(4), "int", group) => WeightFormat::Int4 { group: group.unwrap_or(DEFAULT_GROUP) },
                (Some(4), "float", Some(16)) => WeightFormat::Nvfp4,
                (Some(4), "float", _) => WeightFormat::Mxfp4,
                _ => return Err(unknown(&format!("{method} with weights {weights}"))),
            };
            (format, arithmetic_of(format, group.and_then(|group| group.get("input_activations"))))
        }
        other => return Err(unknown(other)),
    })
}

/// The integer format of AWQ and GPTQ. The group size is 128 if the checkpoint has no `group_size`.
fn integers(fields: Fields<'_>, section: &Map<String, Value>) -> Result<WeightFormat, ModelError> {
    let number = |keys: [&str; 2]| keys.iter().find_map(|key| section.get(*key)).cloned().unwrap_or(Value::Null);
    let bits = number(["bits", "w_bit"]);
    match bits.as_u64() {
        // A group size of -1 means a whole row.
        Some(4) => Ok(WeightFormat::Int4 {
            group: match number(["group_size", "q_group_size"]) {
                Value::Null => DEFAULT_GROUP,
                size => size.as_u64().filter(|size| *size > 0).unwrap_or(u64::MAX),
            },
        }),
        Some(8) => Ok(WeightFormat::Int8),
        _ => Err(fields.wrong("quantization_config.bits", &bits, "4 or 8")),
    }
}

/// The arithmetic for weights of this format with these activations: 16-bit floats if the activations
/// are not quantised.
fn arithmetic_of(format: WeightFormat, activations: Option<&Value>) -> Arithmetic {
    let Some(activations) = activations.filter(|value| value.is_object()) else { return Arithmetic::Bfloat16 };
    let kind = activations.get("type").and_then(Value::as_str).unwrap_or_default();
    match (activations.get("num_bits").and_then(Value::as_u64), kind, format) {
        (Some(8), "float", _) => Arithmetic::Fp8,
        (Some(8), "int", _) => Arithmetic::Int8,
        (Some(4), "float", WeightFormat::Nvfp4) => Arithmetic::Fp4,
        _ => Arithmetic::Bfloat16,
    }
}

#[derive(Default)]
struct Excluded {
    attention: bool,
    state: bool,
    dense: bool,
    experts: bool,
    shared: bool,
}

impl Excluded {
    fn of(section: &Map<String, Value>) -> Self {
        let mut excluded = Self::default();
        let lists = ["modules_to_not_convert", "ignore", "exclude_modules"];
        let patterns = lists.iter().filter_map(|key| section.get(*key).and_then(Value::as_array)).flatten();
        for pattern in patterns.filter_map(Value::as_str) {
            let part = part(pattern);
            let names = |parts: &[&str]| parts.contains(&part.as_str());
            excluded.attention |= names(&["self_attn", "attn", "self_attn.q_proj", "mixer.q_proj"]);
            excluded.state |= names(&["linear_attn", "mixer.in_proj"]);
            excluded.dense |= names(&["mlp", "mlp.gate_proj"]) || part.starts_with("mlp.(gate|up");
            excluded.shared |= names(&["mlp.shared_experts", "mlp.shared_expert", "shared_experts"]);
            excluded.experts |= names(&["mlp.experts", "experts"]);
        }
        excluded
    }
}

/// The module within a layer that a pattern names: `self_attn` for `model.layers.0.self_attn*`.
fn part(pattern: &str) -> String {
    let plain = pattern.trim_start_matches("re:").replace(".*", ".").replace(['\\', '*'], "");
    let behind = plain.rsplit_once("layers.").map_or(plain.as_str(), |(_, rest)| rest);
    behind.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.').trim_end_matches('.').to_owned()
}

fn has_fp8_kv_cache(section: &Map<String, Value>) -> bool {
    let stated = section.get("kv_cache_quant_algo").or_else(|| section.get("kv_cache_scheme"));
    match stated {
        Some(Value::String(name)) => name.to_lowercase().contains("fp8"),
        Some(Value::Object(scheme)) => {
            scheme.get("type").is_some_and(|kind| kind == "float")
                && scheme.get("num_bits").is_some_and(|bits| bits == 8)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_modules_of_layers() {
        for (pattern, wanted) in [
            ("model.layers.0.self_attn*", "self_attn"),
            ("re:.*self_attn.*", "self_attn"),
            ("language_model.model.layers.10.mlp.shared_experts*", "mlp.shared_experts"),
            ("model.layers.*.mlp.router", "mlp.router"),
            ("lm_head", "lm_head"),
        ] {
            assert_eq!(part(pattern), wanted);
        }
    }
}
