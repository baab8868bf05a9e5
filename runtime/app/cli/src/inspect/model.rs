//! `vcr inspect model`: shows a model's layers, KV-cache groups, weights and KV blocks.

use std::io::{self, Write};

use clap::Args;
use serde_json::{Value, json};
use vcr_core::SchedulerRules;
use vcr_model::vllm_args::{GPUS, Gpu};
use vcr_model::{DraftMethod, FeedForward, KvPlan, Mixer, Model, ModelError, Serving};

use crate::exit::{Exit, print_error, printed};
use crate::inspect::gpus::{gpus_as_json, write_gpus};
use crate::terminal::style::{BOLD, bare_table, write_table};

pub(crate) const MODEL_EXAMPLES: &str = "Examples:
  vcr inspect model Qwen/Qwen3-8B --gpu h100
  vcr inspect model openai/gpt-oss-120b --gpu h100 --tensor-parallel-size 2 --kv-cache-dtype fp8
  vcr inspect model config.json --json
  vcr inspect model --list
  vcr inspect model --list-gpus

In scenarios model(\"NAME\") is the same; engine(#{ model: model(\"NAME\", #{ gpu: \"h100\" }) })
takes its groups and blocks.

Exit codes:
  0  success
  2  unknown or invalid model or option, or too little memory for the weights or one sequence";

/// Options of `vcr inspect model`.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Name in the table of models, a config.json, or a folder with one.
    #[arg(required_unless_present_any = ["list", "list_gpus"], value_name = "MODEL")]
    model: Option<String>,

    /// Print the names in the table of models.
    #[arg(long, conflicts_with = "model")]
    list: bool,

    /// Print the table of GPUs: peaks, memory, links, list prices, and where they are published.
    #[arg(long, conflicts_with_all = ["model", "list"])]
    list_gpus: bool,

    /// GPU whose memory holds the KV blocks, such as h100.
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,

    /// Share of the GPU's memory that the engine may use.
    #[arg(long, value_name = "SHARE", default_value_t = 0.92)]
    gpu_memory_utilization: f64,

    /// Bytes of each GPU for KV blocks, instead of the memory that weights leave.
    #[arg(long, value_name = "BYTES")]
    kv_cache_memory_bytes: Option<u64>,

    /// Bytes of each GPU for other purposes than weights and KV blocks.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    activation_bytes: u64,

    /// GPUs that share each layer.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    tensor_parallel_size: u64,

    /// Stages that the layers are split into.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pipeline_parallel_size: u64,

    /// GPUs that share the KV of each sequence.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    decode_context_parallel_size: u64,

    /// Copies of each layer that share the tokens of a prompt.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    prefill_context_parallel_size: u64,

    /// Ranks with separate attention.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    data_parallel_size: u64,

    /// Whole experts on each GPU instead of a part of each; the memory is equal.
    #[arg(long)]
    enable_expert_parallel: bool,

    /// Data type of the KV cache; `auto` follows the checkpoint.
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    kv_cache_dtype: String,

    /// Tokens of a KV block [default: decided by the model's attention].
    #[arg(long, value_name = "TOKENS")]
    block_size: Option<u64>,

    /// Longest sequence [default: the model's].
    #[arg(long, value_name = "TOKENS")]
    max_model_len: Option<u64>,

    /// Maximum tokens of a step. Layers with sliding windows also hold the KV of two steps, and of one more for each
    /// further pipeline stage.
    #[arg(long, value_name = "TOKENS", default_value_t = 8_192)]
    max_num_batched_tokens: u32,

    /// Method of the checkpoint's quantisation, or fp8 to quantise a plain one.
    #[arg(long, value_name = "METHOD")]
    quantization: Option<String>,

    /// Also count the layers and weights of this drafter: mtp, eagle, eagle3 or draft_model.
    #[arg(long, value_name = "METHOD")]
    drafter: Option<String>,

    /// Model of the drafter (an EAGLE head or a draft model), in the forms of MODEL.
    #[arg(long, value_name = "MODEL", requires = "drafter")]
    draft_model: Option<String>,

    /// Draft tokens per request and step.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    num_speculative_tokens: u64,

    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

struct Found {
    model: Model,
    kv: KvPlan,
    weight_bytes: f64,
    weight_format: &'static str,
    /// Data type of its matrix products, on a GPU that supports the type.
    computed_as: &'static str,
    /// Memory of the fullest pipeline stage for KV blocks, if known, and the number of blocks.
    pool: Option<(u64, u32)>,
}

pub(crate) fn model(args: &ModelArgs) -> Exit {
    let mut out = anstream::stdout().lock();
    if args.list_gpus {
        let written = if args.json { writeln!(out, "{:#}", gpus_as_json()) } else { write_gpus(&mut out) };
        return printed(written, Exit::Passed);
    }
    let Some(name) = &args.model else {
        let mut names = vcr_model::names();
        let written = if args.json {
            writeln!(out, "{:#}", json!(names.collect::<Vec<_>>()))
        } else {
            names.try_for_each(|name| writeln!(out, "{name}"))
        };
        return printed(written, Exit::Passed);
    };
    match find(args, name) {
        Ok(found) => {
            let written = if args.json { write_json(&mut out, &found) } else { write_tables(&mut out, &found) };
            printed(written, Exit::Passed)
        }
        Err(error) => {
            print_error(&error, None);
            Exit::BadInput
        }
    }
}

fn find(args: &ModelArgs, name: &str) -> Result<Found, ModelError> {
    let invalid = |field, reason: String| ModelError::Serving { field, reason };
    let utilization = args.gpu_memory_utilization;
    if !(utilization > 0.0 && utilization <= 1.0) {
        let reason = format!("{utilization}: expected a share above 0 and at most 1");
        return Err(invalid("gpu_memory_utilization", reason));
    }
    let gpu = args.gpu.as_deref().map(|name| {
        Gpu::named(name).ok_or_else(|| {
            let names: Vec<&str> = GPUS.iter().map(|gpu| gpu.name).collect();
            invalid("gpu", format!("unknown `{name}`: expected one of {}", names.join(", ")))
        })
    });
    let gpu = gpu.transpose()?;
    let serving = Serving {
        tensor_parallel: args.tensor_parallel_size,
        pipeline_parallel: args.pipeline_parallel_size,
        decode_context_parallel: args.decode_context_parallel_size,
        prefill_context_parallel: args.prefill_context_parallel_size,
        data_parallel: args.data_parallel_size,
        expert_parallel: args.enable_expert_parallel,
        kv_cache_dtype: args.kv_cache_dtype.clone(),
        block_size: args.block_size,
        max_model_len: args.max_model_len,
        // Maximum number of tokens in flight under async scheduling.
        in_flight_tokens: (args.pipeline_parallel_size.min(1 << 16) + 1) * u64::from(args.max_num_batched_tokens),
        quantization: args.quantization.clone(),
        num_speculative_tokens: args.num_speculative_tokens,
        ..Serving::default()
    };
    let mut model = Model::find(name)?;
    if let Some(method) = &args.drafter {
        let expected = || invalid("drafter", format!("unknown `{method}`: expected {}", DraftMethod::expected()));
        let own = args.draft_model.as_deref().map(Model::find).transpose()?;
        model = model.with_drafter(DraftMethod::of_name(method).ok_or_else(expected)?, own)?;
    }
    let kv = model.kv_plan(&serving)?;
    let pool = match (args.kv_cache_memory_bytes, gpu) {
        (Some(bytes), _) => Some((bytes, kv.blocks_in(bytes)?)),
        (None, Some(gpu)) => {
            let left = model.memory_left(&serving, gpu.memory_bytes(), utilization, args.activation_bytes as f64)?;
            Some((left.iter().copied().min().unwrap_or(0), kv.blocks_in_stages(&left)?))
        }
        (None, None) => None,
    };
    let weight_bytes = model.weight_bytes(&serving)?;
    let weight_format = model.weight_format(&serving)?.name();
    let computed_as = model.work(&serving)?.arithmetic.name();
    Ok(Found { model, kv, weight_bytes, weight_format, computed_as, pool })
}

fn write_tables(out: &mut dyn Write, found: &Found) -> io::Result<()> {
    let Found { model, kv, .. } = found;
    writeln!(out, "{BOLD}MODEL{BOLD:#}")?;
    let mut table = bare_table();
    let mut row = |name: &str, value: String| {
        table.add_row([format!("  {name}"), value]);
    };
    row("name", model.name.clone());
    row("architecture", model.architecture.clone());
    row("layers", layers(model));
    row("hidden_size", model.hidden_size.to_string());
    row("max_model_len", kv.max_model_len.to_string());
    row("weights", format!("{} on each GPU, {}", gib(found.weight_bytes), found.weight_format));
    row(
        "computed as",
        format!("{}{}", found.computed_as, if found.computed_as == "bfloat16" { "" } else { ", on a GPU that can" }),
    );
    row("KV of a token", format!("{:.0} bytes", kv.bytes_per_token()));
    row("KV block", format!("{} bytes", kv.bytes_per_block));
    row("KV of a sequence", format!("{} at most", gib(kv.bytes_of_sequence(kv.max_model_len) as f64)));
    if let Some((bytes, blocks)) = found.pool {
        row("KV blocks", format!("{blocks} in {}", gib(bytes as f64)));
    }
    let groups = kv.engine_groups(SchedulerRules::V0_33);
    let texts: Vec<String> = groups.iter().map(|group| format!("\"{group}\"")).collect();
    row(
        "kv_cache_groups",
        match &texts[..] {
            [] => "none needed: one group of full attention".to_owned(),
            texts => format!("[{}]", texts.join(", ")),
        },
    );
    write_table(out, &table)?;
    writeln!(out, "\n{BOLD}GROUPS{BOLD:#}")?;
    let mut table = bare_table();
    table.set_header(["  kind", "layers", "window", "block_size", "bytes/block", "bytes/token"]);
    for group in &kv.groups {
        table.add_row([
            format!("  {}", group.kind.name()),
            group.layers.to_string(),
            group.kind.window_tokens().map_or("-".to_owned(), |tokens| tokens.to_string()),
            group.block_size.to_string(),
            group.page_bytes.to_string(),
            format!("{:.0}", group.bytes_per_token()),
        ]);
    }
    write_table(out, &table)
}

fn write_json(out: &mut dyn Write, found: &Found) -> io::Result<()> {
    let Found { model, kv, .. } = found;
    let groups: Vec<Value> = kv
        .groups
        .iter()
        .map(|group| {
            json!({
                "kind": group.kind.name(),
                "layers": group.layers,
                "window_tokens": group.kind.window_tokens(),
                "block_size": group.block_size,
                "bytes_per_block": group.page_bytes,
                "bytes_per_token": group.bytes_per_token(),
            })
        })
        .collect();
    let engine_groups: Vec<String> = kv.engine_groups(SchedulerRules::V0_33).iter().map(ToString::to_string).collect();
    let document = json!({
        "name": model.name,
        "architecture": model.architecture,
        "layers": model.layers.len(),
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "max_model_len": kv.max_model_len,
        "weight_bytes": found.weight_bytes,
        "weight_format": found.weight_format,
        "computed_as": found.computed_as,
        "block_size": kv.block_size,
        "bytes_per_block": kv.bytes_per_block,
        "kv_bytes_per_token": kv.bytes_per_token(),
        "kv_bytes_of_sequence": kv.bytes_of_sequence(kv.max_model_len),
        "kv_cache_memory_bytes": found.pool.map(|(bytes, _)| bytes),
        "num_gpu_blocks": found.pool.map(|(_, blocks)| blocks),
        "groups": groups,
        "kv_cache_groups": engine_groups,
    });
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}

fn layers(model: &Model) -> String {
    let count = |wanted: fn(&Mixer) -> bool| model.layers.iter().filter(|layer| wanted(&layer.mixer)).count();
    let experts = model.layers.iter().filter(|layer| matches!(layer.feed_forward, FeedForward::Experts(_))).count();
    let parts = [
        (count(|mixer| matches!(mixer, Mixer::Attention(_))), "attention"),
        (count(|mixer| matches!(mixer, Mixer::Latent(_))), "latent attention"),
        (count(|mixer| matches!(mixer, Mixer::State(_))), "a state"),
        (experts, "experts"),
    ];
    let texts: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} with {what}")).collect();
    format!("{}: {}", model.layers.len(), texts.join(", "))
}

fn gib(bytes: f64) -> String {
    format!("{:.2} GiB", bytes / f64::from(1 << 30))
}
