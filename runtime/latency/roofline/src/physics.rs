//! A trained latency model: physical terms with coefficients that were fitted to measurements.
//!
//! The terms, and the units of the coefficients, are from the model "trained-physics" of BLIS
//! (github.com/inference-sim/inference-sim), in its form with prefill and decode split into arithmetic and
//! memory:
//!
//! ```text
//! step = prefill_compute * T_pf_compute + prefill_kv * T_pf_kv
//!      + decode_compute * T_dc_compute + decode_kv * T_dc_kv
//!      + weights * T_weight + all_reduce * T_tp
//!      + layer_us * layers + request_us * requests + step_us + moe_layer_us * moe_layers
//! ```
//!
//! Each `T` is a number of FLOPs or bytes divided by the peak in the GPU's datasheet. The efficiencies that a roofline
//! assumes are in the coefficients here. `T_tp` is the bytes of the all-reduces divided by the *memory* bandwidth, so
//! its coefficient also covers the ratio between interconnect and memory bandwidth. Query-key pairs are counted
//! exactly, whereas BLIS uses the whole prompt as the context of each chunk.
//!
//! Not modelled: data and expert parallelism, shared experts, and what BLIS adds to a request outside its steps.

use alloc::string::String;

use crate::config::RooflineConfig;
use vcr_policy::latency::StepShape;

use crate::cost::{ACTIVATION_BYTES, ALL_REDUCES_PER_LAYER, NS_PER_S, count, decode_pairs};
use crate::error::RooflineError;
use crate::spec::{GpuSpec, TransformerSpec};

const NS_PER_US: f64 = 1e3;

/// The largest absolute value of a coefficient. Fitted values are about 1, or some thousand microseconds.
const COEFFICIENT_MAX: f64 = 1e9;

/// Coefficients of a fit, read from its file or given directly. All are required, except that a dense model needs no
/// `moe_layer_us`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Coefficients {
    /// Factor on the arithmetic of prefill chunks (BLIS: beta 1a).
    pub prefill_compute: f64,
    /// Factor on the KV that prefill chunks write (beta 1b).
    pub prefill_kv: f64,
    /// Factor on the arithmetic of decodes (beta 2a).
    pub decode_compute: f64,
    /// Factor on the KV that decodes read and write (beta 2b).
    pub decode_kv: f64,
    /// Factor on reading the weights, once per step (beta 3).
    pub weights: f64,
    /// Factor on the all-reduces of tensor parallelism (beta 4).
    pub all_reduce: f64,
    /// Microseconds for each layer (beta 5).
    pub layer_us: f64,
    /// Microseconds for each request in the step (beta 6).
    pub request_us: f64,
    /// Microseconds for each step (beta 7).
    pub step_us: f64,
    /// Microseconds for each layer of experts (beta 8).
    #[cfg_attr(feature = "serde", serde(default))]
    pub moe_layer_us: f64,
}

/// A trained model as the user states it: the coefficients, and the model and GPU by preset or by numbers, as in a
/// [`RooflineConfig`].
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct PhysicsConfig {
    /// Fitted coefficients.
    pub coefficients: Coefficients,
    /// Name of a model in [`presets::MODELS`](crate::presets::MODELS).
    pub model: Option<String>,
    /// Name of a GPU in [`GPUS`](crate::gpus::GPUS).
    pub gpu: Option<String>,
    /// See [`TransformerSpec::layers`].
    pub layers: Option<u64>,
    /// See [`TransformerSpec::hidden_size`].
    pub hidden_size: Option<u64>,
    /// See [`TransformerSpec::intermediate_size`]. Applies to the dense layers.
    pub intermediate_size: Option<u64>,
    /// See [`TransformerSpec::attention_heads`].
    pub attention_heads: Option<u64>,
    /// See [`TransformerSpec::kv_heads`].
    pub kv_heads: Option<u64>,
    /// See [`TransformerSpec::head_dim`].
    pub head_dim: Option<u64>,
    /// See [`RooflineConfig::weight_dtype`].
    pub weight_dtype: Option<String>,
    /// See [`TransformerSpec::weight_bytes`]. By default the preset's, or else 2.
    pub weight_bytes: Option<f64>,
    /// See [`TransformerSpec::kv_bytes`]. By default the preset's, or else 2.
    pub kv_bytes: Option<f64>,
    /// See [`GpuSpec::peak_flops`].
    pub peak_flops: Option<f64>,
    /// See [`GpuSpec::memory_bytes_per_s`].
    pub memory_bytes_per_s: Option<f64>,
    /// Number of GPUs that share every layer. By default 1.
    pub tensor_parallel: Option<u64>,
    /// Number of layers with experts instead of one MLP. By default 0.
    pub moe_layers: Option<u64>,
    /// Number of experts in a layer with experts.
    pub experts: Option<u64>,
    /// Number of experts that each token uses.
    pub experts_per_token: Option<u64>,
    /// Width of an expert's MLP.
    pub expert_intermediate_size: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Experts {
    layers: u64,
    experts: u64,
    per_token: u64,
    intermediate_size: u64,
}

/// A trained model, reduced to the coefficients that price a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Physics {
    prefill_ns_per_token: f64,
    prefill_ns_per_pair: f64,
    decode_ns_per_token: f64,
    decode_ns_per_pair: f64,
    decode_ns_per_context_token: f64,
    all_reduce_ns_per_token: f64,
    ns_per_request: f64,
    step_ns: f64,
}

impl PhysicsConfig {
    /// Looks up the presets, applies the overrides and checks the result.
    ///
    /// # Errors
    /// If a preset does not exist, a quantity is missing or out of range, or heads or experts do not fit.
    pub fn build(&self) -> Result<Physics, RooflineError> {
        self.coefficients.check()?;
        let target = self.roofline();
        let model = target.transformer()?;
        let gpu = target.gpu()?;
        let deployment = target.deployment();
        crate::check::check(&model, &gpu, &deployment)?;
        let experts = self.experts(model.layers)?;
        Ok(Physics::new(&self.coefficients, &model, &gpu, deployment.tensor_parallel as f64, &experts))
    }

    /// The same model as a roofline. The other inputs of a roofline (output head, interconnect, efficiencies) are
    /// unused.
    #[must_use]
    pub fn roofline(&self) -> RooflineConfig {
        RooflineConfig {
            model: self.model.clone(),
            gpu: self.gpu.clone(),
            layers: self.layers,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            attention_heads: self.attention_heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            vocab_size: Some(1),
            weight_dtype: self.weight_dtype.clone(),
            weight_bytes: self.weight_bytes,
            kv_bytes: self.kv_bytes,
            peak_flops: self.peak_flops,
            memory_bytes_per_s: self.memory_bytes_per_s,
            interconnect_bytes_per_s: Some(1.0),
            tensor_parallel: self.tensor_parallel,
            ..RooflineConfig::default()
        }
    }

    fn experts(&self, layers: u64) -> Result<Experts, RooflineError> {
        let moe_layers = self.moe_layers.unwrap_or(0);
        let fields = [
            ("experts", self.experts),
            ("experts_per_token", self.experts_per_token),
            ("expert_intermediate_size", self.expert_intermediate_size),
        ];
        if moe_layers == 0 {
            return match fields.iter().find(|(_, value)| value.is_some()) {
                Some(&(field, _)) => Err(RooflineError::NoMoeLayers { field }),
                None => Ok(Experts::default()),
            };
        }
        let mut values = [0; 3];
        for (value, (field, given)) in values.iter_mut().zip(fields) {
            *value = given.ok_or(RooflineError::MissingOfExperts { field })?;
            if !(1..=1_000_000_000).contains(value) {
                return Err(RooflineError::OutOfRange { field, value: *value as f64, expected: "1 to 1e9" });
            }
        }
        let [experts, per_token, intermediate_size] = values;
        if per_token > experts {
            let value = per_token as f64;
            return Err(RooflineError::OutOfRange { field: "experts_per_token", value, expected: "at most `experts`" });
        }
        if moe_layers > layers {
            let value = moe_layers as f64;
            return Err(RooflineError::OutOfRange { field: "moe_layers", value, expected: "at most `layers`" });
        }
        Ok(Experts { layers: moe_layers, experts, per_token, intermediate_size })
    }
}

impl Coefficients {
    fn check(&self) -> Result<(), RooflineError> {
        let all = [
            ("prefill_compute", self.prefill_compute),
            ("prefill_kv", self.prefill_kv),
            ("decode_compute", self.decode_compute),
            ("decode_kv", self.decode_kv),
            ("weights", self.weights),
            ("all_reduce", self.all_reduce),
            ("layer_us", self.layer_us),
            ("request_us", self.request_us),
            ("step_us", self.step_us),
            ("moe_layer_us", self.moe_layer_us),
        ];
        // A fit may make a coefficient negative. Its effect is checked when a step is priced.
        let wrong = all.into_iter().find(|(_, value)| !(-COEFFICIENT_MAX..=COEFFICIENT_MAX).contains(value));
        wrong.map_or(Ok(()), |(field, value)| {
            Err(RooflineError::OutOfRange { field, value, expected: "a number from -1e9 to 1e9" })
        })
    }
}

impl Physics {
    /// The order of every sum affects the result's bits.
    fn new(coefficients: &Coefficients, model: &TransformerSpec, gpu: &GpuSpec, gpus: f64, experts: &Experts) -> Self {
        let ns_per_flop = NS_PER_S / gpu.peak_flops;
        let ns_per_byte = NS_PER_S / gpu.memory_bytes_per_s;
        let layers = model.layers as f64;
        let dense_layers = (model.layers - experts.layers) as f64;
        let moe_layers = experts.layers as f64;

        let hidden = model.hidden_size as f64;
        let mlp = 3.0 * hidden * model.intermediate_size as f64;
        let expert = 3.0 * hidden * experts.intermediate_size as f64;
        let attention = model.layer_weights() - mlp;
        // Weights that a token uses, and all weights.
        let active = layers * attention + dense_layers * mlp + moe_layers * experts.per_token as f64 * expert;
        let all = layers * attention + dense_layers * mlp + moe_layers * experts.experts as f64 * expert;

        let compute_ns_per_token = 2.0 * active / gpus * ns_per_flop * gpu.relative_time(model.arithmetic);
        let query_width = model.attention_heads as f64 * model.head_dim as f64;
        let compute_ns_per_pair = 4.0 * query_width * layers / gpus * ns_per_flop;
        // With more GPUs than key-value heads, each GPU keeps one whole head.
        let kv_heads = (model.kv_heads as f64 / gpus).max(1.0);
        let kv_ns_per_token = 2.0 * layers * kv_heads * model.head_dim as f64 * model.kv_bytes * ns_per_byte;
        let ring = 2.0 * (gpus - 1.0) / gpus * hidden * ACTIVATION_BYTES;

        let weights_ns = all * model.weight_bytes / gpus * ns_per_byte;
        let fixed_us = coefficients.layer_us * layers + coefficients.step_us + coefficients.moe_layer_us * moe_layers;
        Self {
            prefill_ns_per_token: coefficients.prefill_compute * compute_ns_per_token
                + coefficients.prefill_kv * kv_ns_per_token,
            prefill_ns_per_pair: coefficients.prefill_compute * compute_ns_per_pair,
            decode_ns_per_token: coefficients.decode_compute * compute_ns_per_token,
            decode_ns_per_pair: coefficients.decode_compute * compute_ns_per_pair,
            decode_ns_per_context_token: coefficients.decode_kv * kv_ns_per_token,
            all_reduce_ns_per_token: coefficients.all_reduce * ALL_REDUCES_PER_LAYER * layers * ring * ns_per_byte,
            ns_per_request: coefficients.request_us * NS_PER_US,
            step_ns: coefficients.weights * weights_ns + fixed_us * NS_PER_US,
        }
    }

    /// The time of one step in nanoseconds. Finite, but negative coefficients may make it negative: the caller must
    /// reject such times.
    #[must_use]
    #[inline]
    pub fn step_ns(&self, work: &StepShape, requests: u64) -> f64 {
        let prefill_tokens = count(work.prefill_tokens);
        let decode_tokens = count(work.decode_tokens);
        self.prefill_ns_per_token * prefill_tokens
            + self.prefill_ns_per_pair * count(work.prefill_attention_pairs)
            + self.decode_ns_per_token * decode_tokens
            + self.decode_ns_per_pair * decode_pairs(work)
            + self.decode_ns_per_context_token * count(work.decode_context_tokens)
            + self.all_reduce_ns_per_token * (prefill_tokens + decode_tokens)
            + self.ns_per_request * count(requests)
            + self.step_ns
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    /// One coefficient is 1, all others are 0.
    fn only(set: fn(&mut Coefficients)) -> Coefficients {
        let mut coefficients = Coefficients {
            prefill_compute: 0.0,
            prefill_kv: 0.0,
            decode_compute: 0.0,
            decode_kv: 0.0,
            weights: 0.0,
            all_reduce: 0.0,
            layer_us: 0.0,
            request_us: 0.0,
            step_us: 0.0,
            moe_layer_us: 0.0,
        };
        set(&mut coefficients);
        coefficients
    }

    /// 2 layers of 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16 = 576 weights, on a GPU where a FLOP takes 1 ns and a byte 1
    /// ns.
    fn tiny() -> PhysicsConfig {
        PhysicsConfig {
            coefficients: only(|_| ()),
            model: None,
            gpu: None,
            layers: Some(2),
            hidden_size: Some(8),
            intermediate_size: Some(16),
            attention_heads: Some(4),
            kv_heads: Some(2),
            head_dim: Some(2),
            weight_dtype: None,
            weight_bytes: None,
            kv_bytes: None,
            peak_flops: Some(1e9),
            memory_bytes_per_s: Some(1e9),
            tensor_parallel: None,
            moe_layers: None,
            experts: None,
            experts_per_token: None,
            expert_intermediate_size: None,
        }
    }

    fn step_ns(set: fn(&mut Coefficients), on: PhysicsConfig) -> f64 {
        let physics = PhysicsConfig { coefficients: only(set), ..on }.build().expect("the numbers are valid");
        let work = StepShape {
            prefill_tokens: 4,
            prefill_context_tokens: 100,
            prefill_attention_pairs: 410,
            decode_requests: 3,
            decode_tokens: 3,
            decode_context_tokens: 50,
            sampled_requests: 3,
            ..StepShape::default()
        };
        physics.step_ns(&work, 5)
    }

    #[test]
    fn each_coefficient_has_its_term() {
        let is = |set, ns: f64| assert_eq!(step_ns(set, tiny()), ns);
        // 2 FLOPs for each of 1,152 weights and 4 tokens; 4 * 8 * 2 for each pair.
        is(|c| c.prefill_compute = 1.0, 2.0 * 1_152.0 * 4.0 + 64.0 * 410.0);
        // 2 layers * (key and value) * 2 heads * 2 channels * 2 bytes = 32 bytes a token.
        is(|c| c.prefill_kv = 1.0, 32.0 * 4.0);
        is(|c| c.decode_compute = 1.0, 2.0 * 1_152.0 * 3.0 + 64.0 * 50.0);
        is(|c| c.decode_kv = 1.0, 32.0 * 50.0);
        is(|c| c.weights = 1.0, 2.0 * 1_152.0);
        // One GPU needs no all-reduce.
        is(|c| c.all_reduce = 1.0, 0.0);
        is(|c| c.layer_us = 1.0, 2_000.0);
        is(|c| c.request_us = 1.0, 5_000.0);
        is(|c| c.step_us = 1.0, 1_000.0);
        is(|c| c.moe_layer_us = 1.0, 0.0);
        is(|c| c.step_us = -1.0, -1_000.0);
    }

    #[test]
    fn tensor_parallelism_splits_work_and_adds_rings() {
        let on = PhysicsConfig { tensor_parallel: Some(2), ..tiny() };
        assert_eq!(step_ns(|c| c.weights = 1.0, on.clone()), 1_152.0);
        // 4 all-reduces of 7 tokens; 2 * 1/2 * 8 * 2 = 16 bytes a token.
        assert_eq!(step_ns(|c| c.all_reduce = 1.0, on), 4.0 * 16.0 * 7.0);
    }

    #[test]
    fn tokens_go_through_some_experts_and_all_are_read() {
        let on = PhysicsConfig {
            moe_layers: Some(1),
            experts: Some(8),
            experts_per_token: Some(2),
            expert_intermediate_size: Some(4),
            ..tiny()
        };
        // Attention 192, MLP 384, an expert 96.
        let (active, all) = (2.0 * 192.0 + 384.0 + 2.0 * 96.0, 2.0 * 192.0 + 384.0 + 8.0 * 96.0);
        let attention_ns = 64.0 * 410.0;
        assert_eq!(step_ns(|c| c.prefill_compute = 1.0, on.clone()), 2.0 * active * 4.0 + attention_ns);
        assert_eq!(step_ns(|c| c.weights = 1.0, on.clone()), 2.0 * all);
        assert_eq!(step_ns(|c| c.moe_layer_us = 1.0, on), 1_000.0);
    }

    #[test]
    fn problems_name_the_field() {
        let error_text = |coefficients, on: PhysicsConfig| {
            PhysicsConfig { coefficients, ..on }.build().expect_err("something is wrong").to_string()
        };
        assert_eq!(
            error_text(only(|c| c.weights = f64::NAN), tiny()),
            "invalid `weights`: expected a number from -1e9 to 1e9, got NaN"
        );
        let error = error_text(only(|_| ()), PhysicsConfig { layers: None, ..tiny() });
        assert_eq!(error, "`layers` has no value; set it, or name a preset in `model`");
        let error = error_text(only(|_| ()), PhysicsConfig { moe_layers: Some(1), ..tiny() });
        assert_eq!(error, "`experts` has no value, but `moe_layers` needs experts");
        let error = error_text(only(|_| ()), PhysicsConfig { experts: Some(8), ..tiny() });
        assert_eq!(error, "`experts` is set, but no layer has experts: set `moe_layers`");
    }
}
