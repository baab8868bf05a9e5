//! The gain of one run from 2 to 64 cores, by the dependencies of its parts.
//!
//! Workload: 40,000 requests of 1,024 tokens in and 128 out for 64 engines in turn, 640 a second, so
//! that about two thirds of the time are spent in steps. One thread runs it, timed; the work of each
//! lane in each round is counted, and any number of cores take the lanes as threads do. The shares of
//! the run that its requests and what is before and after its rounds take are those of its instructions
//! (callgrind).
//!
//! `cargo bench -p vcr-benches --bench cores -- 0.9` takes these seconds of one thread and measures
//! none: the rest is the structure of the run, which depends on no machine.

use std::time::Instant;

use vcr_cluster::observe::Unobserved;
use vcr_cluster::{
    LaneCosts, LatencyFactory, PoolConfig, RouterConfig, RunConfig, SyntheticInput, Topology, lane_work, simulate,
};
use vcr_core::{EngineConfig, EngineConfigInput, factory::copies};
use vcr_timing::{Polynomial, PolynomialInput};

/// Shares of the time of one thread: of requests that are made, and of all that is before and after rounds.
const REQUESTS_SHARE: f64 = 0.05;
const REST_SHARE: f64 = 0.30;
/// To begin and end a round with several threads.
const ROUND_NS: f64 = 4_000.0;

fn run(engines: u32) -> RunConfig {
    let engine = EngineConfig::new(EngineConfigInput { block_size: 64, ..EngineConfigInput::default() });
    let model = Polynomial::new(PolynomialInput::default()).expect("the defaults are valid");
    let latency: LatencyFactory = copies(model);
    let pool = PoolConfig {
        router: RouterConfig::RoundRobin,
        ..PoolConfig::new("engines", engines, engine.expect("valid"), latency)
    };
    let input = SyntheticInput {
        input_tokens: 1024,
        output_tokens: 128,
        request_count: 40_000,
        request_rate: Some(f64::from(engines) * 10.0),
        shared_prefix_ratio: 0.5,
        num_prefix_groups: 64,
        ..SyntheticInput::default()
    };
    let workloads = vec![input.workload("load").expect("valid")];
    RunConfig { seed: 1, workloads, ..RunConfig::new("cores", Topology::Aggregated(pool)) }
}

/// Time that a run takes on one thread.
fn measured_ns(config: &RunConfig) -> f64 {
    let start = Instant::now();
    simulate(config.clone(), &mut Unobserved).expect("it ends");
    start.elapsed().as_nanos() as f64
}

fn main() -> Result<(), String> {
    let config = run(64);
    let given = std::env::args().find_map(|argument| argument.parse::<f64>().ok());
    let one_ns = given.map_or_else(|| measured_ns(&config), |seconds| seconds * 1e9);
    let work = lane_work(&config).ok_or("the run is not on lanes")?;
    let instants: u64 = work.rounds.iter().flat_map(|round| &round.instants).sum();
    let requests: u64 = work.rounds.iter().map(|round| round.requests).sum();
    let costs = LaneCosts {
        instant_ns: one_ns * (1.0 - REQUESTS_SHARE - REST_SHARE) / instants as f64,
        request_ns: one_ns * REQUESTS_SHARE / requests as f64,
        round_ns: ROUND_NS,
        rest_ns: one_ns * REST_SHARE,
    };
    let of = |cores| work.estimate(cores, &costs);
    let share = |ns: f64| format!("{:.2}", ns / of(1).wall_ns);
    let cells = [2, 4, 16, 64].map(|cores| share(of(cores).wall_ns)).join(" | ");
    println!("| run | one thread | 2 | 4 | 16 | 64 | critical path |\n|---|---|---|---|---|---|---|");
    println!("| 64 engines in turn | {:.2} s | {cells} | {} |", one_ns / 1e9, share(of(1).critical_ns));
    Ok(())
}
