//! Shared parts of the benchmarks: the Mooncake cluster and the path of its trace.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use vcr_cluster::observe::Unobserved;
use vcr_cluster::{
    LatencyFactory, PoolConfig, Report, RunConfig, Topology, TracePacing, WorkloadConfig, WorkloadSource, simulate,
};
use vcr_core::{EngineConfig, EngineConfigInput};
use vcr_fitted::{FittedRange, Noise, StepPrice, TERMS};
use vcr_trace::{Trace, TraceOptions};

/// Path of the Mooncake synthetic trace (3,993 requests, 61.2 M prompt tokens, 595 k output tokens). `None`, with a
/// message, if it is missing.
#[must_use]
pub fn mooncake_path() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/workloads/mooncake_synthetic.jsonl");
    if path.exists() {
        return Some(path);
    }
    println!("SKIPPED: no trace at {}", path.display());
    None
}

/// Path of the guest with this name. `None`, with a message, if it has not been built.
#[must_use]
pub fn guest_path(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../guests/dist/{name}.wasm"));
    if path.exists() {
        return Some(path);
    }
    println!("SKIPPED: no guest at {}; build it with `vcr guest build`", path.display());
    None
}

/// Step times of a fitted model that uses all terms and has noise: about those of an H100 with a model of 8 billion
/// weights.
///
/// # Panics
/// Never: the prices are valid.
#[must_use]
pub fn fitted_prices() -> StepPrice {
    let coefficients = TERMS.map(|term| match term.name {
        "step" => 6.0e6,
        "prefill_step" => 1.0e6,
        "token" | "token_above_128" | "token_above_512" => 1.0e4,
        "decode_context_token" | "decode_distinct_token" | "prefill_context_token" => 20.0,
        "attention_pair" => 1.0,
        _ => 1.0e3,
    });
    let factors = [0.9, 0.92, 0.94, 0.95, 0.97, 0.98, 1.0, 1.01, 1.02, 1.05, 1.08, 1.2, 2.0];
    let noise = Noise { decode: factors, prefill: factors };
    StepPrice::new(coefficients, FittedRange::default(), Some(noise)).expect("the prices are valid")
}

/// Reads a trace and replays it on four engines of Dynamo's default size, with round robin and the step times of
/// `latency`.
///
/// # Panics
/// The trace cannot be read, or the run fails.
#[must_use]
pub fn replay(path: &Path, latency: LatencyFactory) -> Report {
    let trace = Trace::open(path, &TraceOptions::default()).expect("the trace is readable");
    let engine = EngineConfig::new(EngineConfigInput { block_size: 64, ..EngineConfigInput::default() });
    let pool = PoolConfig::new("engines", 4, engine.expect("the defaults are valid"), latency);
    let source = WorkloadSource::Trace {
        answers: vcr_cluster::Answers::Simulated,
        trace: Arc::new(trace),
        pacing: TracePacing::Recorded { speedup: 1.0 },
        copies: 1,
        stagger_ns: 0,
    };
    let config = RunConfig {
        seed: 1,
        workloads: vec![WorkloadConfig::new("trace", source)],
        samples_steps: true,
        ..RunConfig::new("mooncake", Topology::Aggregated(pool))
    };
    simulate(config, &mut Unobserved).expect("the run reaches its end")
}
