//! `roofline(#{ ... })`: compute and memory limits of a model on GPUs.

use rhai::{Dynamic, ImmutableString};
use vcr_cluster::ComputePeak;
use vcr_core::factory::copies;
use vcr_latency::{LayeredRoofline, Roofline};
use vcr_model::vllm_args::{Gpu, ServedModel};
use vcr_model::{ModelError, WeightFormat};
use vcr_roofline::{LayeredSpec, MemoryNeed, Peak, RooflineConfig, RooflineError, presets};

use crate::script::error::Scripted;
use crate::script::options::{Options, as_text};
use crate::vocabulary::engine::memory::ModelMemory;
use crate::vocabulary::latency::{LatencySpec, finish};
use crate::vocabulary::model::ModelSpec;
use crate::vocabulary::placement::Placement;

/// Options that `model(...)` determines.
const OF_MODEL: [&str; 11] = [
    "layers",
    "hidden_size",
    "intermediate_size",
    "attention_heads",
    "kv_heads",
    "head_dim",
    "vocab_size",
    "weight_dtype",
    "weight_bytes",
    "kv_bytes",
    "tensor_parallel",
];

pub(super) fn make(mut options: Options<'_>) -> Scripted<LatencySpec> {
    if let Some(model) = options.take_if("model", |value| value.is::<ModelSpec>()) {
        return of_model(&model.cast::<ModelSpec>(), options);
    }
    if let Some(name) = options.take_if("model", is_of_table) {
        return of_table(&name.to_string(), options);
    }
    let config = RooflineConfig {
        model: options.string("model"),
        gpu: options.string("gpu"),
        layers: options.u64("layers"),
        hidden_size: options.u64("hidden_size"),
        intermediate_size: options.u64("intermediate_size"),
        attention_heads: options.u64("attention_heads"),
        kv_heads: options.u64("kv_heads"),
        head_dim: options.u64("head_dim"),
        vocab_size: options.u64("vocab_size"),
        weight_dtype: options.string("weight_dtype"),
        weight_bytes: options.f64("weight_bytes"),
        kv_bytes: options.f64("kv_bytes"),
        peak_flops: options.f64("peak_flops"),
        memory_bytes_per_s: options.f64("memory_bytes_per_s"),
        interconnect_bytes_per_s: options.f64("interconnect_bytes_per_s"),
        tensor_parallel: options.u64("tensor_parallel"),
        compute_efficiency: options.f64("compute_efficiency"),
        bandwidth_efficiency: options.f64("bandwidth_efficiency"),
        step_overhead_ns: options.f64("step_overhead_ns"),
        all_reduce_latency_ns: options.f64("all_reduce_latency_ns"),
    };
    let gpu_memory = options.bytes("gpu_memory");
    let names = [config.model.as_deref(), config.gpu.as_deref()];
    // Building the model reports its problems itself.
    let need = config.memory().ok();
    let memory = need.and_then(|need| ModelMemory::of(&mut options, &need, names, gpu_memory));
    let spec = match config.build() {
        Ok(formulas) => {
            let model = Roofline::new(formulas);
            let peak = config.weights_and_peak().ok().map(|found| compute_peak(found, &config));
            let placement = Some(Placement::of_latency("roofline", config.tensor_parallel));
            Some(LatencySpec { memory, peak, placement, ..LatencySpec::new(copies(model)) })
        }
        Err(error) => {
            let hint = match &error {
                RooflineError::UnknownPreset { field: "model", name, .. } => {
                    format!("; other models are `model: model(\"{name}\")`")
                }
                _ => String::new(),
            };
            options.problem("", format!("`roofline`: {error}{hint}"));
            None
        }
    };
    finish(options, spec)
}

/// Whether the value is the name of a model that is in the table of models, but not a preset.
fn is_of_table(value: &Dynamic) -> bool {
    as_text(value).is_some_and(|name| presets::model(&name).is_none() && !vcr_model::names_of(&name).is_empty())
}

/// A model from the table, as `model(...)` describes it on this many GPUs.
fn of_table(name: &str, mut options: Options<'_>) -> Scripted<LatencySpec> {
    let gpus = options.u64("tensor_parallel");
    let gpu_memory = options.bytes("gpu_memory");
    let model = match ModelSpec::of_table(name, gpus.unwrap_or(1)) {
        Ok(model) => model,
        Err(problem) => {
            options.problem("model", problem);
            return finish(options, None);
        }
    };
    let gpu = options.peek::<ImmutableString>("gpu").map(String::from);
    let need = MemoryNeed {
        weight_bytes: model.weight_bytes(),
        kv_bytes_per_token: model.kv_bytes_per_token(),
        gpu_memory_bytes: gpu.as_deref().and_then(Gpu::named).map(Gpu::memory_bytes),
    };
    let memory = ModelMemory::of(&mut options, &need, [Some(name), gpu.as_deref()], gpu_memory);
    // With several KV cache groups, the number of blocks must come from `engine(#{ model: model(...) })`.
    let memory = memory.filter(|_| model.has_one_group());
    let placement = Some(Placement::of_latency("roofline", gpus));
    Ok(LatencySpec { memory, placement, ..of_model(&model, options)? })
}

/// The peak for a report. A stated `peak_flops` is not the peak of a named GPU.
pub(super) fn compute_peak((weights, peak): (&str, Peak), config: &RooflineConfig) -> ComputePeak {
    let of_gpu = config.gpu.as_deref().filter(|_| config.peak_flops.is_none()).and_then(Gpu::named).map(|gpu| gpu.name);
    ComputePeak {
        weights: weights.to_owned(),
        computed_as: peak.arithmetic.name().to_owned(),
        peak_tflops: peak.flops / 1e12,
        gpu: of_gpu.map(str::to_owned),
        is_fitted: false,
    }
}

/// The model of a `model(...)` value, with its serving settings.
fn of_model(model: &ModelSpec, mut options: Options<'_>) -> Scripted<LatencySpec> {
    for name in OF_MODEL {
        options.refuse(name, "the value follows from `model`: state it there");
    }
    let serving = model.serving();
    let config = RooflineConfig {
        gpu: options.string("gpu").or(model.gpu().map(str::to_owned)),
        peak_flops: options.f64("peak_flops"),
        memory_bytes_per_s: options.f64("memory_bytes_per_s"),
        interconnect_bytes_per_s: options.f64("interconnect_bytes_per_s"),
        tensor_parallel: Some(serving.tensor_parallel),
        compute_efficiency: options.f64("compute_efficiency"),
        bandwidth_efficiency: options.f64("bandwidth_efficiency"),
        step_overhead_ns: options.f64("step_overhead_ns"),
        all_reduce_latency_ns: options.f64("all_reduce_latency_ns"),
        ..RooflineConfig::default()
    };
    let made = priced(model.work(), model.weight_format(), &config);
    let placement = Some(Placement::of_model("roofline", model));
    let spec = made.map(|spec| LatencySpec { placement, ..spec }).map_err(|problem| options.problem("", problem)).ok();
    finish(options, spec)
}

pub(crate) fn of_served(served: &ServedModel, gpu: &str) -> Result<LatencySpec, String> {
    let ServedModel { model, serving, .. } = served;
    let tensor_parallel = Some(serving.tensor_parallel);
    let config = RooflineConfig { gpu: Some(gpu.to_owned()), tensor_parallel, ..RooflineConfig::default() };
    priced(model.work(serving), model.weight_format(serving), &config)
}

fn priced(
    work: Result<LayeredSpec, ModelError>,
    format: Result<WeightFormat, ModelError>,
    config: &RooflineConfig,
) -> Result<LatencySpec, String> {
    let of_roofline = |error| format!("`roofline`: {error}");
    let of_model = |error: ModelError| error.to_string();
    let work = work.map_err(of_model)?;
    let arithmetic = work.arithmetic;
    let formulas = layered(work, config).map_err(of_roofline)?;
    let peak = config.peak(arithmetic).map_err(of_roofline)?;
    let peak = compute_peak((format.map_err(of_model)?.name(), peak), config);
    Ok(LatencySpec { peak: Some(peak), ..LatencySpec::new(copies(formulas)) })
}

fn layered(work: LayeredSpec, config: &RooflineConfig) -> Result<LayeredRoofline, RooflineError> {
    let formulas = vcr_roofline::LayeredRoofline::new(work, &config.gpu()?, &config.deployment())?;
    Ok(LayeredRoofline::new(formulas))
}

#[cfg(test)]
mod tests {
    use vcr_core::latency::{LatencyModel, StepBatch, StepShape};
    use vcr_model::{DraftMethod, Model, Serving};

    use super::*;

    /// Models known to `roofline` are also known to `model`, `vllm_args`, `tables` and `fit --shape`.
    #[test]
    fn each_preset_is_in_the_table_of_models() {
        for (name, preset) in presets::MODELS {
            let model = ModelSpec::of_table(name, 1).unwrap_or_else(|problem| panic!("{name}: {problem}"));
            assert_eq!(model.kv_bytes_per_token(), preset.kv_bytes_per_token(), "{name}");
            assert!(vcr_model::names_of(name).iter().all(|name| presets::model(name) == Some(*preset)), "{name}");
        }
    }

    fn step_ns(model: &mut dyn LatencyModel, shape: StepShape) -> u64 {
        let mut durations_ns = Vec::new();
        let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &[shape] };
        model.price(&batch, &mut durations_ns).expect("it has a price");
        durations_ns[0]
    }

    fn of(name: &str, serving: Serving) -> LayeredRoofline {
        of_model(Model::find(name).expect("it is in the table"), serving)
    }

    fn of_model(model: Model, serving: Serving) -> LayeredRoofline {
        let work = model.work(&serving).expect("it can be served");
        let config = RooflineConfig {
            gpu: Some("h100-sxm".to_owned()),
            tensor_parallel: Some(serving.tensor_parallel),
            ..RooflineConfig::default()
        };
        layered(work, &config).expect("it can be served so")
    }

    fn decodes(requests: u64, context: u64) -> StepShape {
        StepShape {
            decode_requests: requests,
            decode_tokens: requests,
            decode_context_tokens: requests * context,
            sampled_requests: requests,
            ..StepShape::default()
        }
    }

    #[test]
    fn dense_models_have_the_prices_of_their_presets() {
        let chunk = StepShape {
            prefill_requests: 1,
            prefill_tokens: 2_000,
            prefill_context_tokens: 6_000,
            prefill_attention_pairs: 14_001_000,
            sampled_requests: 1,
            ..StepShape::default()
        };
        for (name, tensor_parallel) in [("llama-3.1-8b", 1), ("llama-3.1-70b", 8), ("qwen3-32b", 2)] {
            let config = RooflineConfig {
                tensor_parallel: Some(tensor_parallel),
                ..RooflineConfig::of_presets(name, "h100-sxm")
            };
            let mut preset = Roofline::new(config.build().expect("presets are valid"));
            let mut model = of(name, Serving { tensor_parallel, ..Serving::default() });
            for shape in [decodes(1, 100), decodes(200, 3_000), chunk] {
                let (preset_ns, model_ns) = (step_ns(&mut preset, shape), step_ns(&mut model, shape));
                assert!(preset_ns.abs_diff(model_ns) <= 1, "{name}: {preset_ns} ns, {model_ns} ns");
            }
        }
    }

    #[test]
    fn fp8_checkpoints_are_priced_at_the_fp8_peak() {
        let chunk = StepShape {
            prefill_requests: 1,
            prefill_tokens: 8_000,
            prefill_attention_pairs: 32_004_000,
            sampled_requests: 1,
            ..StepShape::default()
        };
        let served = Serving { tensor_parallel: 2, ..Serving::default() };
        let [plain, fp8] = ["Qwen/Qwen3-32B", "Qwen/Qwen3-32B-FP8"]
            .map(|name| step_ns(&mut of(name, served.clone()), chunk) as f64 / 1e6);
        // Two FLOPs for each of 31.2 billion weights and 8,000 tokens on two GPUs, at 60 % of 989.4 and 1978.9
        // TFLOP/s.
        let saved_ms = 2.0 * 31.2e9 * 8_000.0 / 2.0 / 0.6 / 1_978.9e12 * 1e3;
        assert!((plain - fp8 - saved_ms).abs() < 2.0, "{plain} ms, {fp8} ms, {saved_ms} ms");
        let config = RooflineConfig {
            tensor_parallel: Some(2),
            weight_dtype: Some("fp8".to_owned()),
            ..RooflineConfig::of_presets("qwen3-32b", "h100-sxm")
        };
        let preset = step_ns(&mut Roofline::new(config.build().expect("presets are valid")), chunk) as f64 / 1e6;
        assert!((preset - fp8).abs() < 0.1, "{preset} ms, {fp8} ms");
        let quantised = Serving { quantization: Some("fp8".to_owned()), ..served };
        let loaded = step_ns(&mut of("Qwen/Qwen3-32B", quantised), chunk) as f64 / 1e6;
        assert!((loaded - fp8).abs() < 0.1, "quantised while it is loaded: {loaded} ms, {fp8} ms");
    }

    #[test]
    fn passes_of_a_draft_model_are_priced() {
        let find = |name: &str| Model::find(name).expect("it is in the table");
        let serving = Serving { num_speculative_tokens: 3, ..Serving::default() };
        let with = find("Qwen/Qwen3-8B").with_drafter(DraftMethod::DraftModel, Some(find("Qwen/Qwen3-0.6B")));
        let (mut with, mut without) =
            (of_model(with.expect("it is a draft model"), serving.clone()), of("Qwen/Qwen3-8B", serving.clone()));
        let verifies = StepShape { decode_tokens: 4, ..decodes(1, 100) };
        let passes_ns = step_ns(&mut with, verifies) - step_ns(&mut without, verifies);
        // A pass costs a decode step of the draft model alone. The first reads the KV of the drafts, too.
        let alone_ns = step_ns(&mut of("Qwen/Qwen3-0.6B", serving), decodes(1, 101));
        assert!(passes_ns.abs_diff(3 * alone_ns) < 1_000, "{passes_ns} ns, {alone_ns} ns");
    }

    #[test]
    fn experts_quantisation_and_windows_are_priced() {
        let ms = |model: &mut LayeredRoofline, shape| step_ns(model, shape) as f64 / 1e6;
        // A token reads 3.3 of 30.5 billion weights of two bytes, at 80 % of 3.35 TB/s, plus half a millisecond.
        let mut moe = of("Qwen/Qwen3-30B-A3B", Serving::default());
        let (one, many) = (ms(&mut moe, decodes(1, 0)), ms(&mut moe, decodes(512, 0)));
        assert!((2.5..3.5).contains(&one), "{one}");
        assert!((22.0..25.0).contains(&many), "{many}");
        let mut fp8 = of("Qwen/Qwen3-30B-A3B-FP8", Serving::default());
        let halved = ms(&mut fp8, decodes(512, 0));
        assert!((0.48..0.56).contains(&(halved / many)), "{halved}");
        // Half of the layers see only 128 tokens of the context.
        let mut windows = of("openai/gpt-oss-120b", Serving { tensor_parallel: 2, ..Serving::default() });
        let (short, long) = (ms(&mut windows, decodes(64, 128)), ms(&mut windows, decodes(64, 100_128)));
        let full_layers_ms = 64.0 * 100_000.0 * 18.0 * 4.0 * 128.0 * 2.0 / 3.35e12 / 0.8 * 1e3;
        assert!((long - short - full_layers_ms).abs() < 0.1, "{short} {long} {full_layers_ms}");
    }
}
