use alloc::string::String;

use crate::arithmetic::{Peak, QuantisedPeaks, WEIGHT_DTYPES, WeightDtype, weight_dtype};
use crate::gpus::{GPUS, Gpu};
use crate::{Arithmetic, Deployment, GpuSpec, Roofline, RooflineError, TransformerSpec, presets};

/// A roofline as the user states it: preset names, and numbers that override the presets. A field may be absent if a
/// preset or a default gives it a value.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct RooflineConfig {
    /// Name of a model in [`presets::MODELS`].
    pub model: Option<String>,
    /// Name of a GPU, as [`Gpu::named`] reads it.
    pub gpu: Option<String>,

    /// See [`TransformerSpec::layers`].
    pub layers: Option<u64>,
    /// See [`TransformerSpec::hidden_size`].
    pub hidden_size: Option<u64>,
    /// See [`TransformerSpec::intermediate_size`].
    pub intermediate_size: Option<u64>,
    /// See [`TransformerSpec::attention_heads`].
    pub attention_heads: Option<u64>,
    /// See [`TransformerSpec::kv_heads`].
    pub kv_heads: Option<u64>,
    /// See [`TransformerSpec::head_dim`].
    pub head_dim: Option<u64>,
    /// See [`TransformerSpec::vocab_size`].
    pub vocab_size: Option<u64>,
    /// Name of a data type in [`WEIGHT_DTYPES`](crate::WEIGHT_DTYPES), which determines the bytes of a weight
    /// and the peak of the GPU.
    pub weight_dtype: Option<String>,
    /// See [`TransformerSpec::weight_bytes`]. By default the preset's, or else 2. Without `weight_dtype`, 1 means fp8.
    pub weight_bytes: Option<f64>,
    /// See [`TransformerSpec::kv_bytes`]. By default the preset's, or else 2.
    pub kv_bytes: Option<f64>,

    /// The peak of all arithmetic, for any data type of the weights.
    pub peak_flops: Option<f64>,
    /// See [`GpuSpec::memory_bytes_per_s`].
    pub memory_bytes_per_s: Option<f64>,
    /// See [`GpuSpec::interconnect_bytes_per_s`].
    pub interconnect_bytes_per_s: Option<f64>,

    /// See [`Deployment::tensor_parallel`].
    pub tensor_parallel: Option<u64>,
    /// See [`Deployment::compute_efficiency`].
    pub compute_efficiency: Option<f64>,
    /// See [`Deployment::bandwidth_efficiency`].
    pub bandwidth_efficiency: Option<f64>,
    /// See [`Deployment::step_overhead_ns`].
    pub step_overhead_ns: Option<f64>,
    /// See [`Deployment::all_reduce_latency_ns`].
    pub all_reduce_latency_ns: Option<f64>,
}

impl RooflineConfig {
    /// Creates a config with two presets and no overrides.
    #[must_use]
    pub fn of_presets(model: &str, gpu: &str) -> Self {
        Self { model: Some(model.into()), gpu: Some(gpu.into()), ..Self::default() }
    }

    /// Looks up the presets, applies the overrides and checks the result.
    ///
    /// # Errors
    /// If a preset does not exist, a quantity is missing or out of range, or the heads cannot be split over the GPUs.
    pub fn build(&self) -> Result<Roofline, RooflineError> {
        Roofline::new(&self.transformer()?, &self.gpu()?, &self.deployment())
    }

    pub(crate) fn transformer(&self) -> Result<TransformerSpec, RooflineError> {
        let preset = self
            .model
            .as_deref()
            .map(|name| {
                presets::model(name).ok_or_else(|| RooflineError::UnknownPreset {
                    field: "model",
                    name: name.into(),
                    known: presets::joined(presets::MODELS.iter().map(|(name, _)| *name)),
                })
            })
            .transpose()?;
        let pick = |value: Option<u64>, field, get: fn(&TransformerSpec) -> u64| {
            value.or(preset.as_ref().map(get)).ok_or(RooflineError::Missing { field, preset: "model" })
        };
        let dtype = weight_dtype(self.weight_dtype.as_deref(), self.weight_bytes)?;
        Ok(TransformerSpec {
            layers: pick(self.layers, "layers", |spec| spec.layers)?,
            hidden_size: pick(self.hidden_size, "hidden_size", |spec| spec.hidden_size)?,
            intermediate_size: pick(self.intermediate_size, "intermediate_size", |spec| spec.intermediate_size)?,
            attention_heads: pick(self.attention_heads, "attention_heads", |spec| spec.attention_heads)?,
            kv_heads: pick(self.kv_heads, "kv_heads", |spec| spec.kv_heads)?,
            head_dim: pick(self.head_dim, "head_dim", |spec| spec.head_dim)?,
            vocab_size: pick(self.vocab_size, "vocab_size", |spec| spec.vocab_size)?,
            weight_bytes: dtype.map(|dtype| dtype.bytes).or(preset.map(|spec| spec.weight_bytes)).unwrap_or(2.0),
            arithmetic: dtype.map(|dtype| dtype.arithmetic).unwrap_or_default(),
            kv_bytes: self.kv_bytes.or(preset.map(|spec| spec.kv_bytes)).unwrap_or(2.0),
        })
    }

    /// The peak for the matrices of the layers, if a GPU that supports `wanted` uses it.
    ///
    /// # Errors
    /// If the GPU's preset does not exist, or a quantity is missing.
    pub fn peak(&self, wanted: Arithmetic) -> Result<Peak, RooflineError> {
        Ok(self.gpu()?.peak(wanted))
    }

    /// Name of the data type of the weights, and the peak for it.
    ///
    /// # Errors
    /// If a preset or data type does not exist, or a quantity is missing.
    pub fn weights_and_peak(&self) -> Result<(&'static str, Peak), RooflineError> {
        let model = self.transformer()?;
        let is_same = |dtype: &WeightDtype| dtype.bytes == model.weight_bytes && dtype.arithmetic == model.arithmetic;
        let stated = WEIGHT_DTYPES.iter().find(|(name, _)| Some(*name) == self.weight_dtype.as_deref());
        let found = stated.or_else(|| WEIGHT_DTYPES.iter().find(|(_, dtype)| is_same(dtype)));
        Ok((found.map_or("other", |(name, _)| name), self.peak(model.arithmetic)?))
    }

    /// The GPU, from its preset and the overrides.
    ///
    /// # Errors
    /// If the preset does not exist, or a quantity is missing.
    pub fn gpu(&self) -> Result<GpuSpec, RooflineError> {
        let preset = self
            .gpu
            .as_deref()
            .map(|name| {
                Gpu::named(name).map(|gpu| gpu.spec).ok_or_else(|| RooflineError::UnknownPreset {
                    field: "gpu",
                    name: name.into(),
                    known: presets::joined(GPUS.iter().map(|gpu| gpu.name)),
                })
            })
            .transpose()?;
        let pick = |value: Option<f64>, field, get: fn(&GpuSpec) -> f64| {
            value.or(preset.as_ref().map(get)).ok_or(RooflineError::Missing { field, preset: "gpu" })
        };
        // A single GPU does not use its interconnect, so the bandwidth may be unknown.
        let unused = (self.tensor_parallel.unwrap_or(1) <= 1).then_some(1.0);
        // A stated peak applies to all arithmetic.
        let quantised = match self.peak_flops {
            Some(flops) => QuantisedPeaks::all(flops),
            None => preset.map(|spec| spec.quantised).unwrap_or_default(),
        };
        Ok(GpuSpec {
            quantised,
            peak_flops: pick(self.peak_flops, "peak_flops", |spec| spec.peak_flops)?,
            memory_bytes_per_s: pick(self.memory_bytes_per_s, "memory_bytes_per_s", |spec| spec.memory_bytes_per_s)?,
            interconnect_bytes_per_s: pick(self.interconnect_bytes_per_s, "interconnect_bytes_per_s", |spec| {
                spec.interconnect_bytes_per_s
            })
            .or_else(|error| unused.ok_or(error))?,
        })
    }

    /// The deployment, from defaults and overrides.
    #[must_use]
    pub fn deployment(&self) -> Deployment {
        let default = Deployment::default();
        Deployment {
            tensor_parallel: self.tensor_parallel.unwrap_or(default.tensor_parallel),
            compute_efficiency: self.compute_efficiency.unwrap_or(default.compute_efficiency),
            bandwidth_efficiency: self.bandwidth_efficiency.unwrap_or(default.bandwidth_efficiency),
            step_overhead_ns: self.step_overhead_ns.unwrap_or(default.step_overhead_ns),
            all_reduce_latency_ns: self.all_reduce_latency_ns.unwrap_or(default.all_reduce_latency_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use vcr_policy::latency::StepShape;

    use alloc::string::ToString;

    use super::*;

    #[test]
    fn overrides_replace_preset_numbers() {
        let mut config = RooflineConfig::of_presets("llama-3.1-8b", "h100-sxm");
        config.weight_bytes = Some(1.0);
        let spec = config.transformer().expect("the preset exists");
        assert_eq!(spec.weight_bytes, 1.0);
        assert_eq!(spec.layers, 32);
    }

    #[test]
    fn every_pair_of_presets_builds() {
        for (model, _) in presets::MODELS {
            for gpu in GPUS {
                RooflineConfig::of_presets(model, gpu.name).build().expect("a preset is valid");
            }
        }
    }

    #[test]
    fn problems_name_the_field_and_the_way_out() {
        let unknown = RooflineConfig::of_presets("gpt-9", "h100-sxm").build();
        let text = unknown.expect_err("no such model").to_string();
        assert!(text.starts_with("`model` is \"gpt-9\""), "{text}");
        assert!(text.contains("qwen3-8b"), "{text}");

        let missing = RooflineConfig { gpu: Some("l4".into()), ..Default::default() }.build();
        assert_eq!(
            missing.expect_err("no model").to_string(),
            "`layers` has no value; set it, or name a preset in `model`"
        );

        let mut config = RooflineConfig::of_presets("llama-3.1-8b", "h100-sxm");
        config.compute_efficiency = Some(1.5);
        assert_eq!(
            config.build().expect_err("over 1").to_string(),
            "invalid `compute_efficiency`: expected above 0 and at most 1, got 1.5"
        );

        config.compute_efficiency = None;
        config.tensor_parallel = Some(3);
        assert_eq!(
            config.build().expect_err("32 heads over 3").to_string(),
            "`attention_heads` (32) cannot be split evenly over `tensor_parallel` (3) GPUs"
        );
    }

    #[test]
    fn one_gpu_needs_no_interconnect() {
        let mut config = RooflineConfig::of_presets("llama-3.1-8b", "h100-sxm");
        config.gpu = None;
        config.peak_flops = Some(1e15);
        config.memory_bytes_per_s = Some(1e12);
        config.build().expect("one GPU talks to no other");
        config.tensor_parallel = Some(2);
        let text = config.build().expect_err("two GPUs do").to_string();
        assert!(text.starts_with("`interconnect_bytes_per_s` has no value"), "{text}");
    }

    #[test]
    fn the_data_type_of_weights_decides_their_bytes_and_their_peak() {
        let prompt = StepShape {
            prefill_tokens: 8_000,
            prefill_attention_pairs: 32_004_000,
            sampled_requests: 1,
            ..StepShape::default()
        };
        let decode = StepShape { decode_requests: 1, decode_tokens: 1, ..StepShape::default() };
        let cost = |gpu: &str, change: fn(&mut RooflineConfig), work: &StepShape| {
            let mut config = RooflineConfig::of_presets("qwen3-32b", gpu);
            config.tensor_parallel = Some(2);
            change(&mut config);
            config.build().expect("valid").step_cost(work)
        };
        let fp8: fn(&mut RooflineConfig) = |config| config.weight_dtype = Some("fp8".into());
        let plain: fn(&mut RooflineConfig) = |_| ();
        let (of_h100, of_a100) = (
            cost("h100-sxm", fp8, &prompt).gemm_ns / cost("h100-sxm", plain, &prompt).gemm_ns,
            cost("a100-80gb", fp8, &prompt).gemm_ns / cost("a100-80gb", plain, &prompt).gemm_ns,
        );
        assert!((of_h100 - 0.5).abs() < 1e-3, "twice the peak: {of_h100}");
        assert_eq!(of_a100, 1.0, "no such peak: weights are converted");
        for gpu in ["h100-sxm", "a100-80gb"] {
            assert_eq!(cost(gpu, fp8, &decode).gemm_ns, 0.5 * cost(gpu, plain, &decode).gemm_ns, "half the bytes");
            let head = |set| cost(gpu, set, &prompt).head_ns;
            assert_eq!(head(fp8), head(plain), "the output head is not quantised");
        }
        let of_bytes: fn(&mut RooflineConfig) = |config| config.weight_bytes = Some(1.0);
        assert_eq!(cost("h100-sxm", of_bytes, &prompt), cost("h100-sxm", fp8, &prompt));
        let int4: fn(&mut RooflineConfig) = |config| config.weight_dtype = Some("int4".into());
        assert_eq!(cost("h100-sxm", int4, &prompt).gemm_ns, cost("h100-sxm", plain, &prompt).gemm_ns);
        // A stated peak applies to all arithmetic.
        let stated: fn(&mut RooflineConfig) = |config| {
            config.weight_dtype = Some("fp8".into());
            config.peak_flops = Some(989.4e12);
        };
        assert_eq!(cost("h100-sxm", stated, &prompt).gemm_ns, cost("h100-sxm", plain, &prompt).gemm_ns);

        let mut config = RooflineConfig::of_presets("qwen3-32b", "h100-sxm");
        config.weight_dtype = Some("fp9".into());
        let text = config.build().expect_err("no such type").to_string();
        assert!(text.starts_with("invalid `weight_dtype`: expected one of bfloat16, fp8"), "{text}");
    }
}
