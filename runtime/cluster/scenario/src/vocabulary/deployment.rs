//! `deployment("vllm serve ...", #{ gpu: ... })`: one value with an engine, a latency model and GPUs that agree.

use std::path::Path;
use std::sync::Arc;

use rhai::{Dynamic, Engine, ImmutableString, Map, NativeCallContext, Position};
use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_cluster::GpuDeployment;
use vcr_core::EngineConfig;
use vcr_latency::tables::TablesInput;
use vcr_model::vllm_args::{GPUS, Gpu, ServedModel, VllmArgs};
use vcr_model::{FeedForward, Model, Serving};

use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::script::options::{Options, as_text};
use crate::vocabulary::engine::{EngineSpec, served};
use crate::vocabulary::latency::{LatencySpec, fitted, roofline, tables};
use crate::vocabulary::placement::Placement;

const FUNCTION: &str = "deployment";

/// Options of `engine(...)` that the command line determines, and how.
const OF_COMMAND: [(&str, &str); 5] = [
    ("model", "the command line states it (`vllm serve MODEL`)"),
    ("pipeline_parallel_size", "only the command line sets it (`--pipeline-parallel-size`)"),
    ("decode_context_parallel_size", "only the command line sets it (`--decode-context-parallel-size`)"),
    ("block_size", "it follows from the model and `--block-size`"),
    ("kv_cache_groups", "it follows from the model"),
];

const NAMES: [&str; 2] = ["tables", "roofline"];

/// An engine with its latency model and its GPUs.
#[derive(Clone)]
pub(crate) struct DeploymentSpec {
    pub(crate) engine: EngineSpec,
    pub(crate) latency: LatencySpec,
    pub(crate) gpus: GpuDeployment,
    /// Whether the ranks of an engine share experts and therefore wait for each other.
    pub(crate) has_barrier: bool,
    args: Arc<VllmArgs>,
    weight_bytes: f64,
}

impl DeploymentSpec {
    fn served(&self) -> &ServedModel {
        self.args.served.as_ref().expect("a deployment has a model")
    }

    fn num_gpu_blocks(&self) -> u32 {
        self.engine.kind.as_vllm().map_or(0, EngineConfig::num_gpu_blocks)
    }

    /// Number of tokens that the KV blocks of a rank hold if every KV cache group keeps every token.
    fn kv_tokens(&self) -> u64 {
        let kv = &self.served().kv;
        u64::from(self.num_gpu_blocks()) / kv.groups.len().max(1) as u64 * kv.block_size * kv.context_ranks
    }
}

/// A latency model with its name, and the reason for choosing it unless the script names it.
struct Chosen {
    latency: LatencySpec,
    name: &'static str,
    reason: Option<String>,
}

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let shared = Arc::clone(context);
    engine.register_fn(FUNCTION, move |call: NativeCallContext<'_>, command: ImmutableString, options: Map| {
        let options = Options::new(FUNCTION, &shared.source, &call, options);
        shared.meter.outside(|| make(&shared, &command, options))
    });
    let shared = Arc::clone(context);
    engine.register_fn(FUNCTION, move |call: NativeCallContext<'_>, command: ImmutableString| {
        make(&shared, &command, Options::new(FUNCTION, &shared.source, &call, Map::new()))
    });
    let optional = |value: Option<f64>| value.map_or(Dynamic::UNIT, Into::into);
    engine.register_get("model", |spec: &mut DeploymentSpec| spec.args.model.clone().unwrap_or_default());
    engine.register_get("gpu", |spec: &mut DeploymentSpec| spec.gpus.gpu.clone());
    engine.register_get("gpus", |spec: &mut DeploymentSpec| i64::from(spec.gpus.gpus_per_engine));
    engine.register_get("latency", |spec: &mut DeploymentSpec| spec.gpus.latency.clone());
    engine.register_get("weight_bytes", |spec: &mut DeploymentSpec| spec.weight_bytes as i64);
    engine.register_get("num_gpu_blocks", |spec: &mut DeploymentSpec| i64::from(spec.num_gpu_blocks()));
    engine.register_get("kv_tokens", |spec: &mut DeploymentSpec| spec.kv_tokens() as i64);
    engine.register_get("kv_bytes_per_token", |spec: &mut DeploymentSpec| spec.served().kv.bytes_per_token() as i64);
    engine.register_get("price_per_hour", move |spec: &mut DeploymentSpec| optional(spec.gpus.price_per_gpu_hour_usd));
    engine.register_get("cost_per_hour", move |spec: &mut DeploymentSpec| optional(spec.gpus.engine_usd_per_hour()));
}

/// Makes the deployment of a command line. Options that are not its own are passed to `engine(...)`.
fn make(context: &Context, command: &str, mut options: Options<'_>) -> Scripted<DeploymentSpec> {
    let position = options.call_position();
    for (option, origin) in OF_COMMAND {
        options.refuse(option, &format!("{origin}: leave `{option}` out"));
    }
    let gpu = gpu(&mut options);
    let stated_latency = options.take("latency");
    let price = price(&mut options, gpu);
    let gpus_per_node = options.u32("gpus_per_node");
    let engine = served::make(context, command, options)?;
    let refused = |text: String| Thrown::input(text).at(position);
    let (Some(args), Some(gpu)) = (engine.served.clone(), gpu) else {
        unreachable!("an invalid command line or GPU is a problem of the options")
    };
    let Some(served) = &args.served else {
        let unknown = args.model.as_deref().map(|name| Model::find(name).err().map(|error| error.to_string()));
        let problem = unknown.flatten().unwrap_or_else(|| "expected a model: `vllm serve MODEL ...`".to_owned());
        return Err(refused(problem));
    };
    let one_node = gpus_per_node.unwrap_or(gpu.gpus_per_node);
    let group = args.tensor_parallel_size.saturating_mul(args.prefill_context_parallel_size);
    if group > one_node {
        let name = gpu.name;
        return Err(refused(format!(
            "each layer is on {group} GPUs, but a node has {one_node} x {name}: lower `--tensor-parallel-size`, add \
             stages by `--pipeline-parallel-size`, or state `gpus_per_node`"
        )));
    }
    // Even with a stated number of blocks, the weights must fit.
    let weights = served.model.memory_left(
        &served.serving,
        gpu.memory_bytes(),
        engine.memory.utilization,
        engine.memory.activation_bytes as f64,
    );
    weights.map_err(|error| refused(error.to_string()))?;
    let weight_bytes = served.model.weight_bytes(&served.serving).map_err(|error| refused(error.to_string()))?;
    let has_experts = served.model.layers.iter().any(|layer| matches!(layer.feed_forward, FeedForward::Experts(_)));
    let chosen = choose(context, stated_latency, &args, served, gpu, position)?;
    let gpus = GpuDeployment {
        gpu: gpu.name.to_owned(),
        gpus_per_engine: args.gpus(),
        latency: chosen.name.to_owned(),
        latency_reason: chosen.reason,
        price_per_gpu_hour_usd: price.as_ref().map(|(usd, _)| *usd),
        price_source: price.map(|(_, source)| source),
    };
    let has_barrier = has_experts && args.data_parallel_size > 1 && args.input.pipeline_parallel_size == 1;
    Ok(DeploymentSpec { engine, latency: chosen.latency, gpus, has_barrier, args, weight_bytes })
}

/// Reads the option `gpu`, and leaves it for the engine's defaults.
fn gpu(options: &mut Options<'_>) -> Option<Gpu> {
    let Some(name) = options.peek::<ImmutableString>("gpu") else {
        options.required::<()>("gpu", None);
        return None;
    };
    let found = Gpu::named(&name);
    if found.is_none() {
        let names = || GPUS.iter().map(|gpu| gpu.name);
        let hint = match nearest(&name, names()) {
            Some(near) => did_you_mean(near),
            None => format!("expected one of {}", names().collect::<Vec<_>>().join(", ")),
        };
        options.problem("gpu", format!("invalid `gpu` \"{name}\": {hint}"));
        // The option is removed, so that the engine does not report it again.
        options.take("gpu");
    }
    found
}

/// Reads the price of a GPU per hour in US dollars, with its source.
fn price(options: &mut Options<'_>, gpu: Option<Gpu>) -> Option<(f64, String)> {
    if let Some(usd) = options.f64("price_per_hour") {
        if !(usd.is_finite() && usd >= 0.0) {
            options.problem("price_per_hour", format!("invalid `price_per_hour`: expected at least 0, got {usd}"));
        }
        return Some((usd, "stated".to_owned()));
    }
    let listed = gpu?.price?;
    Some((listed.usd_per_hour, format!("list price of {}, {}", listed.provider, listed.date)))
}

/// Chooses the stated latency model, or else the best one that is available.
fn choose(
    context: &Context,
    stated: Option<Dynamic>,
    args: &VllmArgs,
    served: &ServedModel,
    gpu: Gpu,
    position: Position,
) -> Scripted<Chosen> {
    let refused = |text: String| Thrown::input(text).at(position);
    let tables = || tables_of(context, args, served, gpu);
    let roofline = || roofline::of_served(served, gpu.name).map_err(&refused);
    let named = |latency, name| Chosen { latency, name, reason: None };
    let Some(stated) = stated else {
        return Ok(match tables() {
            Ok(latency) => {
                Chosen { reason: Some("the tables have this GPU and model".to_owned()), ..named(latency, "tables") }
            }
            Err(reason) => Chosen { reason: Some(format!("no tables: {reason}")), ..named(roofline()?, "roofline") },
        });
    };
    match as_text(&stated).as_deref() {
        Some("tables") => {
            tables().map(|latency| named(latency, "tables")).map_err(|what| refused(format!("`tables`: {what}")))
        }
        Some("roofline") => Ok(named(roofline()?, "roofline")),
        Some(path) if Path::new(path).extension().is_some() => {
            let latency = fitted::of_path(context, path, true).map_err(&refused)?;
            Ok(named(latency, "fitted"))
        }
        Some(other) => {
            let hint = nearest(other, NAMES).map(|near| format!("; {}", did_you_mean(near))).unwrap_or_default();
            Err(refused(format!(
                "invalid `latency` \"{other}\": expected \"tables\", \"roofline\", a file of `vcr fit` or a latency \
                 model{hint}"
            )))
        }
        None => {
            let latency =
                LatencySpec::of(&stated).map_err(|what| refused(format!("invalid `latency`: expected {what}")))?;
            let of_engine = Placement::of_args(FUNCTION, args);
            let of_latency = latency.placement.as_ref();
            let contradictions = of_latency.map(|of_latency| Placement::contradictions(&of_engine, of_latency));
            match contradictions.unwrap_or_default().first() {
                Some(contradiction) => Err(refused(contradiction.clone())),
                None => Ok(named(latency, "given")),
            }
        }
    }
}

/// The operator tables of the served model.
fn tables_of(context: &Context, args: &VllmArgs, served: &ServedModel, gpu: Gpu) -> Result<LatencySpec, String> {
    let name = args.model.as_deref().unwrap_or_default();
    let own = context.folder.join(name).join("config.json");
    let model = if own.is_file() { own.display().to_string() } else { name.to_owned() };
    let has_experts = served.model.layers.iter().any(|layer| matches!(layer.feed_forward, FeedForward::Experts(_)));
    let ranks = if has_experts { args.data_parallel_size } else { 1 };
    if args.prefill_context_parallel_size > 1 {
        return Err("they have no prefill context parallelism".to_owned());
    }
    let spread = has_experts && args.expert_parallel;
    let loaded_as = loaded_as(served)?;
    let input = TablesInput {
        tensor_parallel: args.tensor_parallel_size,
        expert_parallel: if spread { args.tensor_parallel_size * ranks } else { 1 },
        attention_dp: ranks,
        gemm_dtype: loaded_as.clone(),
        moe_dtype: loaded_as.filter(|_| has_experts),
        kv_cache_dtype: match args.kv_cache_dtype.as_str() {
            "auto" => None,
            fp8 if fp8.starts_with("fp8") => Some("fp8".to_owned()),
            _ => Some("bfloat16".to_owned()),
        },
        ..TablesInput::new(gpu.name, &model)
    };
    tables::of_input(context, input)
}

/// The data type to which an unquantised checkpoint is quantised on loading, if it is.
fn loaded_as(served: &ServedModel) -> Result<Option<String>, String> {
    let stored = Serving { quantization: None, ..served.serving.clone() };
    let format = |serving| served.model.weight_format(serving).map_err(|error| error.to_string());
    let (stored, loaded) = (format(&stored)?, format(&served.serving)?);
    Ok((stored != loaded).then(|| loaded.name().to_owned()))
}

#[cfg(test)]
mod tests {
    use vcr_cluster::Report;
    use vcr_cluster::metrics::Gauge;

    use super::*;
    use crate::{Outcome, RunOptions, ScenarioError, Silent, run_file};

    fn result(script: &str) -> Result<Outcome, ScenarioError> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("test.rhai");
        std::fs::write(&path, script).expect("it is writable");
        run_file(&path, RunOptions::default(), Arc::new(Silent))
    }

    fn report(pool: &str) -> Arc<Report> {
        let script = format!(
            r#"let load = poisson(#{{ rate: 20, duration: "20s", prompt_tokens: 500, output_tokens: 100 }});
               run(#{{ cluster: cluster(#{{ engines: pool(#{{ {pool} }}) }}), workloads: [load] }});"#
        );
        result(&script).unwrap_or_else(|error| panic!("{}: {:?}", error.message, error.hint)).runs[0].clone()
    }

    fn gauges(report: &Report) -> [Option<f64>; 4] {
        [Gauge::Gpus, Gauge::Cost, Gauge::CostPerHour, Gauge::CostPerMillionOutputTokens]
            .map(|gauge| report.metrics.gauge(gauge))
    }

    const LINE: &str = "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --max-num-seqs 64";

    #[test]
    fn a_deployment_is_its_engine_and_its_latency_model() {
        let deployed = report(&format!(
            r#"engines: 3, deployment: deployment("{LINE}", #{{ gpu: "h100", latency: "roofline", price_per_hour: 3 }})"#
        ));
        let apart = report(&format!(
            r#"engines: 3, engine: vllm_args("{LINE}"), latency: roofline(#{{
                model: model("meta-llama/Llama-3.1-8B-Instruct", #{{ gpu: "h100", tensor_parallel: 2 }}) }})"#
        ));
        assert_eq!(deployed.fingerprint, apart.fingerprint);
        assert_eq!(deployed.peaks, apart.peaks);
        assert_eq!((gauges(&apart), apart.deployments.len()), ([None; 4], 0), "nothing is known of its GPUs");
        let hours = deployed.duration_ms / 3.6e6;
        let tokens = deployed.metrics.count(vcr_cluster::metrics::Counter::OutputTokens) as f64;
        let expected = [6.0, 18.0 * hours, 18.0, 18.0 * hours / tokens * 1e6];
        for (found, expected) in gauges(&deployed).into_iter().zip(expected) {
            let found = found.expect("it is known");
            assert!((found / expected - 1.0).abs() < 1e-9, "{found}, not {expected}");
        }
        let [pool] = &deployed.deployments[..] else { panic!("one pool: {:?}", deployed.deployments) };
        assert_eq!((pool.deployment.gpu.as_str(), pool.deployment.gpus_per_engine), ("h100-sxm", 2));
        assert_eq!(pool.deployment.price_source.as_deref(), Some("stated"));
        assert!((pool.gpu_hours / (6.0 * hours) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn gpus_count_for_as_long_as_an_autoscaler_holds_them() {
        let scaled = report(&format!(
            r#"engines: 1, deployment: deployment("{LINE}", #{{ gpu: "h100", latency: fixed(#{{ step: "40ms" }}) }}),
               autoscale: autoscale(#{{ policy: "target_requests", target: 8, interval: "2s", max: 6, startup: "1s" }})"#
        ));
        assert!(!scaled.scaling.is_empty(), "it scales");
        let held = scaled.pools[0].worker_seconds * 2.0;
        let gpus = scaled.metrics.gauge(Gauge::Gpus).expect("it is known");
        assert!((gpus / (held / scaled.duration_ms * 1e3) - 1.0).abs() < 1e-9, "{gpus}");
        assert!(gpus > 2.0 && gpus < 12.0, "{gpus}");
        assert_eq!(scaled.deployments[0].deployment.latency, "given");
        let source = scaled.deployments[0].deployment.price_source.as_deref();
        assert!(source.is_some_and(|source| source.starts_with("list price of ")), "{source:?}");
    }

    #[test]
    fn a_cost_without_a_price_is_absent_and_says_why() {
        let line = "vllm serve Qwen/Qwen3-0.6B --max-model-len 8192";
        let of = |options: &str, then: &str| {
            let load = r#"burst(#{ count: 3, prompt_tokens: 50, output_tokens: 5 })"#;
            result(&format!(
                r#"let d = deployment("{line}", #{{ gpu: "gb10", latency: "roofline" {options} }});
                   let r = run(#{{ cluster: cluster(#{{ engines: pool(#{{ deployment: d }}) }}), workloads: [{load}] }});
                   {then}"#
            ))
        };
        let unpriced =
            of("", r#"check("unknown", !has(r, "cost") && has(r, "gpus")); expect(r, "gpus", "value == 1");"#);
        assert!(unpriced.is_ok_and(|outcome| outcome.passed));
        let error = of("", r#"expect(r, "cost_per_hour", "value < 3");"#).expect_err("it is not known");
        assert!(error.message.contains("no list price of `gb10` is known; state `price_per_hour`"), "{error:?}");
        let priced = of(", price_per_hour: 0.5", r#"expect(r, "cost_per_hour", "value <= $0.50001");"#);
        assert!(priced.is_ok_and(|outcome| outcome.passed));
        let plain = r#"let r = run(#{ cluster: cluster(#{ engines: pool(#{ latency: fixed(#{ step: "1ms" }) }) }),
            workloads: [burst(#{ count: 3, prompt_tokens: 50, output_tokens: 5 })] }); value(r, "gpus", "value");"#;
        let error = result(plain).expect_err("the pool has no deployment");
        assert!(error.message.contains("the pool `engines` has no `deployment: deployment(...)`"), "{error:?}");
    }

    #[test]
    fn ranks_that_share_experts_wait_for_each_other() {
        let of = |model: &str| {
            let command = format!("vllm serve {model} -dp 2 -ep --max-model-len 8192");
            report(&format!(r#"deployment: deployment("{command}", #{{ gpu: "h200", latency: "roofline" }})"#))
        };
        let (moe, dense) = (of("Qwen/Qwen3-30B-A3B"), of("Qwen/Qwen3-8B"));
        assert!(moe.engines.iter().all(|rank| rank.waiting.is_some()), "{:?}", moe.engines);
        assert!(dense.engines.iter().all(|rank| rank.waiting.is_none()), "{:?}", dense.engines);
        assert_eq!([&moe, &dense].map(|report| report.metrics.gauge(Gauge::Gpus)), [Some(2.0); 2]);
    }
}
