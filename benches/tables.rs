//! Measures step times from operator tables. Workload: a 70B model on four H100s, and a mixture of experts with a
//! latent cache on eight H200s, each with a step of 64 decodes and with a step that also has a prompt. Also
//! measures reading the tables. Needs an installed aiconfigurator-core, whose path is in `VCR_TABLES`; without it,
//! nothing is measured.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use vcr_core::latency::StepShape;
use vcr_latency::tables::{DATA_VARIABLE, Tables, TablesInput};

fn decodes(context: u64) -> StepShape {
    StepShape {
        decode_requests: 64,
        decode_tokens: 64,
        decode_context_tokens: 64 * context,
        sampled_requests: 64,
        ..StepShape::default()
    }
}

fn mixed(context: u64) -> StepShape {
    let tokens = 1_000;
    StepShape {
        prefill_requests: 1,
        prefill_tokens: tokens,
        prefill_attention_pairs: tokens * (tokens + 1) / 2,
        ..decodes(context)
    }
}

fn steps(c: &mut Criterion) {
    if std::env::var_os(DATA_VARIABLE).is_none() {
        eprintln!("{DATA_VARIABLE} names no package: nothing is measured");
        return;
    }
    let dense = TablesInput { tensor_parallel: 4, ..TablesInput::new("h100_sxm", "Meta-Llama-3.1-70B") };
    let experts = TablesInput { tensor_parallel: 8, expert_parallel: 8, ..TablesInput::new("h200_sxm", "DeepSeek-V3") };
    for (name, input) in [("dense", dense), ("experts", experts)] {
        let tables = Tables::new(&input).expect("the tables can be read");
        let mut context = 1_000;
        c.bench_function(&format!("tables/{name}/64_decodes"), |b| {
            b.iter(|| {
                context = 1_000 + (context + 1) % 1_000;
                tables.price_step(black_box(&decodes(context)))
            });
        });
        c.bench_function(&format!("tables/{name}/prompt_and_64_decodes"), |b| {
            b.iter(|| {
                context = 1_000 + (context + 1) % 1_000;
                tables.price_step(black_box(&mixed(context)))
            });
        });
        c.bench_function(&format!("tables/{name}/read"), |b| {
            b.iter(|| Tables::new(black_box(&input)).expect("the tables can be read"));
        });
    }
}

criterion_group!(benches, steps);
criterion_main!(benches);
