//! Shared helpers of the cluster's tests: small engines, simple latency models, short runs.

use std::sync::Arc;

use vcr_base::random::Distribution;
use vcr_cluster::metrics::{Counter, Scope};
use vcr_cluster::observe::Unobserved;
use vcr_cluster::{
    Answers, Arrivals, LatencyFactory, LinkConfig, LinkSharing, MetricsReport, PoolConfig, PrefillCancellation, Report,
    RequestMix, RouterConfig, RunConfig, SourceOutput, Topology, TracePacing, TransferScope, WorkloadConfig,
    WorkloadSource, simulate,
};
use vcr_core::latency::{LatencyError, LatencyModel, StepBatch, price_until_horizon};
use vcr_core::{EngineConfig, EngineConfigInput};
use vcr_trace::{Format, Trace, TraceOptions};

pub(crate) const MS: u64 = 1_000_000;

/// A latency model with 2 ms per step and 10 us per prefill token.
struct Linear {
    prefers_batches: bool,
}

impl LatencyModel for Linear {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |shape| Ok(2 * MS + 10_000 * shape.prefill_tokens))
    }

    fn prefers_batches(&self) -> bool {
        self.prefers_batches
    }
}

pub(crate) fn linear() -> LatencyFactory {
    Arc::new(|_seed| Ok(Box::new(Linear { prefers_batches: false })))
}

/// The same latency model, but it prefers batches.
pub(crate) fn linear_in_batches() -> LatencyFactory {
    Arc::new(|_seed| Ok(Box::new(Linear { prefers_batches: true })))
}

pub(crate) fn engine(num_gpu_blocks: u32) -> EngineConfig {
    let input = EngineConfigInput {
        num_gpu_blocks,
        max_num_batched_tokens: 512,
        max_num_seqs: 16,
        ..EngineConfigInput::default()
    };
    EngineConfig::new(input).expect("a valid engine")
}

pub(crate) fn pool(name: &str, engines: u32, num_gpu_blocks: u32, router: RouterConfig) -> PoolConfig {
    PoolConfig { router, ..PoolConfig::new(name, engines, engine(num_gpu_blocks), linear()) }
}

pub(crate) fn link(bandwidth_bytes_per_s: Option<u64>, sharing: LinkSharing) -> LinkConfig {
    LinkConfig {
        bandwidth_bytes_per_s,
        latency_ns: 1000,
        kv_bytes_per_token: 100_000,
        scope: TransferScope::Missing,
        sharing,
        source_output: SourceOutput::FirstToken,
        cancellation: PrefillCancellation::default(),
        plane: None,
    }
}

pub(crate) fn constant(value: f64) -> Distribution {
    Distribution::Constant { value }
}

pub(crate) fn mix(prompt_tokens: f64, output_tokens: f64) -> RequestMix {
    let exponential = |mean| Distribution::Exponential { mean };
    RequestMix { prefix_groups: 0, ..RequestMix::new(exponential(prompt_tokens), exponential(output_tokens)) }
}

pub(crate) fn synthetic(name: &str, arrivals: Arrivals, mix: RequestMix) -> WorkloadConfig {
    WorkloadConfig::new(name, WorkloadSource::Synthetic { arrivals, classes: mix.into() })
}

/// A workload that plays rows in Mooncake's format with their own arrival times.
pub(crate) fn recorded(name: &str, rows: &str) -> WorkloadConfig {
    let trace = Trace::read(rows.as_bytes(), name, Format::Mooncake, &TraceOptions::default());
    let source = WorkloadSource::Trace {
        trace: Arc::new(trace.expect("a valid trace")),
        pacing: TracePacing::Recorded { speedup: 1.0 },
        copies: 1,
        stagger_ns: 0,
        answers: Answers::Simulated,
    };
    WorkloadConfig::new(name, source)
}

pub(crate) fn config(topology: Topology, workloads: Vec<WorkloadConfig>) -> RunConfig {
    RunConfig { seed: 1, workloads, samples_steps: true, ..RunConfig::new("test", topology) }
}

pub(crate) fn run(config: &RunConfig) -> Report {
    simulate(config.clone(), &mut Unobserved).expect("the run reaches its end")
}

/// Checks that every request ended once, and that tokens add up.
pub(crate) fn assert_conserved(report: &Report) {
    let count = |counter| report.metrics.count(counter);
    let ends =
        [Counter::Completed, Counter::Rejected, Counter::Failed, Counter::Shed, Counter::Timeouts, Counter::Cancelled]
            .map(count);
    assert_eq!(ends.iter().sum::<u64>() + report.unfinished_requests, count(Counter::Requests));
    assert_eq!(report.requests.len() as u64, count(Counter::Requests));
    let completed = report.requests.iter().filter(|r| r.outcome == vcr_cluster::record::Outcome::Completed);
    let mut output_tokens = 0;
    for record in completed {
        assert_eq!(record.output_tokens, record.max_tokens, "a completed request has its whole output");
        assert!(record.cached_tokens < record.prompt_tokens);
        output_tokens += u64::from(record.output_tokens);
    }
    assert_eq!(output_tokens, count(Counter::OutputTokens));
    for counter in Counter::ALL.iter().filter(|counter| counter.info().scope == Scope::Workload) {
        let name = counter.info().name;
        let of = |metrics: &MetricsReport| metrics.count(*counter);
        let parts: u64 = report.workloads.values().map(of).sum();
        assert_eq!(parts, of(&report.metrics), "`{name}` over workloads");
    }
}
