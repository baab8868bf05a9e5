//! `vcr inspect vllm-args`: the simulated equivalent of a `vllm serve` command line.

use std::io::{self, Write};

use clap::Args;
use serde_json::json;
use vcr_core::{EngineConfig, EngineConfigInput, option};
use vcr_model::vllm_args::{Deployment, Row, VllmArgs};
use vcr_steplog::settings_of;

use crate::exit::{Exit, print_error, printed};
use crate::terminal::layout::Layout;
use crate::terminal::style::{BOLD, bare_table, write_table};

pub(crate) const VLLM_ARGS_EXAMPLES: &str = "Examples:
  vcr inspect vllm-args 'vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 512'
  vcr inspect vllm-args --gpu b200 --vllm-minor 0.32 -- --tensor-parallel-size 4 \\
      --kv-cache-dtype fp8

In scenarios vllm_args(\"vllm serve ...\") is an engine; vcr play and vcr serve have --vllm-args.

Exit codes:
  0  success
  2  an argument is unknown, invalid or not simulated";

/// Options of `vcr inspect vllm-args`.
#[derive(Debug, Args)]
pub(crate) struct VllmArgsArgs {
    /// The command line, as one quoted text or as separate words.
    #[arg(required = true, value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<String>,

    /// GPU that vLLM's defaults depend on.
    #[arg(long, value_name = "GPU", default_value = Deployment::default().gpu)]
    gpu: String,

    /// Minor version of vLLM that arguments and defaults depend on.
    #[arg(long, value_name = "VERSION", default_value = Deployment::default().minor)]
    vllm_minor: String,

    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn vllm_args(args: &VllmArgsArgs) -> Exit {
    // Quotes the words that a shell has split.
    let command = match &args.command[..] {
        [line] => line.clone(),
        words => words.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect::<Vec<_>>().join(" "),
    };
    let read =
        VllmArgs::read(&command, Deployment { minor: &args.vllm_minor, gpu: &args.gpu, ..Deployment::default() });
    let read = match read {
        Ok(read) => read,
        Err(errors) => {
            errors.iter().for_each(|error| print_error(error, None));
            return Exit::BadInput;
        }
    };
    let blocks = match read.known_blocks() {
        Ok(blocks) => blocks,
        Err(error) => {
            print_error(&error, None);
            return Exit::BadInput;
        }
    };
    let num_gpu_blocks = blocks.unwrap_or(option::NUM_GPU_BLOCKS.max);
    let input = EngineConfigInput { num_gpu_blocks, ..read.input.clone() };
    let config = match EngineConfig::new(input).and_then(|config| config.check_start_up().map(|()| config)) {
        Ok(config) => config,
        Err(errors) => {
            errors.iter().for_each(|error| print_error(error, None));
            return Exit::BadInput;
        }
    };
    let mut out = anstream::stdout().lock();
    let written =
        if args.json { write_json(&mut out, &read, blocks, &config) } else { write_rows(&mut out, &read.rows, blocks) };
    printed(written, Exit::Passed)
}

fn write_rows(out: &mut dyn Write, rows: &[Row], blocks: Option<u32>) -> io::Result<()> {
    let mut table = bare_table();
    table.set_header(["  argument", "value", "effect", "what it becomes"]);
    for row in rows {
        table.add_row([&format!("  {}", row.argument), &row.value, row.effect.name(), &row.result]);
    }
    Layout::of_stdout(true).wrap_last(&mut table);
    writeln!(out, "{BOLD}ARGUMENTS{BOLD:#}")?;
    write_table(out, &table)?;
    match blocks {
        Some(blocks) => writeln!(out, "\nnum_gpu_blocks: {blocks}"),
        None => Ok(()),
    }
}

fn write_json(out: &mut dyn Write, read: &VllmArgs, blocks: Option<u32>, config: &EngineConfig) -> io::Result<()> {
    let rows: Vec<_> = read.rows.iter().map(|row| {
        json!({"argument": row.argument, "value": row.value, "effect": row.effect.name(), "result": row.result})
    }).collect();
    let mut engine = settings_of(&config.clone().into());
    if blocks.is_none() {
        engine.remove(option::NUM_GPU_BLOCKS.log_key);
    }
    let document = json!({
        "arguments": rows,
        "engine": engine,
        "model": read.model,
        "served_model_names": read.served_model_names,
        "tensor_parallel_size": read.tensor_parallel_size,
        "prefill_context_parallel_size": read.prefill_context_parallel_size,
        "data_parallel_size": read.data_parallel_size,
        "expert_parallel": read.expert_parallel,
        "dtype": read.dtype,
        "kv_cache_dtype": read.kv_cache_dtype,
        "quantization": read.quantization,
        "gpu_memory_utilization": read.gpu_memory_utilization,
        "kv_cache_memory_bytes": read.kv_cache_memory_bytes,
    });
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}
