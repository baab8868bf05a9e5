//! Tests of host and disk tiers: exact times, routers and crashes.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use crate::support::{MS, assert_conserved, config, pool, run};
use vcr_cluster::metrics::{Counter, Trend};
use vcr_cluster::record::{GiveUp, Outcome, RequestRecord};
use vcr_cluster::{
    Answers, Choice, ClientConfig, FaultConfig, FaultKind, KvKnowledge, KvRouterConfig, KvTierReport, PoolConfig,
    PoolRole, Report, RouteError, RouteRequest, Router, RouterConfig, RouterFactory, RunConfig, Topology, TracePacing,
    WorkerLoad, WorkloadConfig, WorkloadSource,
};
use vcr_core::{EngineConfig, EngineConfigInput, EvictionPolicy, HostRules, KvTiersConfig, SharedTier};
use vcr_trace::{Format, Trace, TraceOptions};

/// A block of 16 tokens has 1.6 MB. It takes 1 ms to the host and 0.5 ms back, 2 ms to the disk and 4 ms back.
const TIERS: KvTiersConfig = KvTiersConfig {
    rules: HostRules::Dynamo,
    eviction_policy: EvictionPolicy::Lru,
    store_threshold: 0,
    offload_prompt_only: true,
    host_blocks: 9,
    disk_blocks: 20,
    kv_bytes_per_token: 100_000,
    offload_batch_size: 4,
    device_to_host_bytes_per_s: Some(1_600_000_000),
    host_to_device_bytes_per_s: Some(3_200_000_000),
    host_to_disk_bytes_per_s: Some(800_000_000),
    disk_to_host_bytes_per_s: Some(400_000_000),
    host_latency_ns: 0,
    disk_latency_ns: 100_000,
    shared_host: None,
    shared_disk: None,
};

const BLOCK_BYTES: u64 = 1_600_000;

/// A prompt with `blocks` unique blocks at `at_ms`, with one output token.
fn row(at_ms: u32, content: u32, blocks: u32) -> String {
    let ids: Vec<String> = (0..blocks).map(|block| (content * 100 + block).to_string()).collect();
    format!(
        "{{\"timestamp\":{at_ms},\"input_length\":{},\"output_length\":1,\"hash_ids\":[{}]}}\n",
        blocks * 16,
        ids.join(",")
    )
}

/// Engines with eight blocks on each device.
fn small(engines: u32, tiers: Option<KvTiersConfig>, router: RouterConfig, rows: &str) -> RunConfig {
    let pool = pool("workers", engines, 9, router);
    let own = pool.engine.as_vllm().expect("pools are vLLM's").stated();
    let input = EngineConfigInput { kv_tiers: tiers, ..own };
    let engine = EngineConfig::new(input).expect("a valid engine").into();
    let options = TraceOptions { block_size_tokens: NonZeroU32::new(16), ..TraceOptions::default() };
    let trace = Trace::read(rows.as_bytes(), "rows", Format::Mooncake, &options).expect("a trace");
    let source = WorkloadSource::Trace {
        trace: Arc::new(trace),
        pacing: TracePacing::Recorded { speedup: 1.0 },
        copies: 1,
        stagger_ns: 0,
        answers: Answers::Simulated,
    };
    let workload = WorkloadConfig::new("rows", source);
    config(Topology::Aggregated(PoolConfig { engine, ..pool }), vec![workload])
}

fn played(config: &RunConfig) -> Report {
    let report = run(config);
    assert_conserved(&report);
    report
}

fn tiers_of(report: &Report, engine: usize) -> KvTierReport {
    report.engines[engine].kv_tiers.expect("the engine has tiers")
}

fn cached(report: &Report) -> Vec<u32> {
    report.requests.iter().map(|record| record.cached_tokens).collect()
}

/// A prompt of 6 blocks, then one of 7 that evicts it from the device and partly from the host, then the first
/// again. Steps take 2 ms and 10 us per token.
fn there_and_back() -> String {
    row(0, 1, 6) + &row(20, 2, 7) + &row(40, 1, 6)
}

#[test]
fn what_was_driven_out_comes_back_after_bytes_over_bandwidth() {
    let report = played(&small(1, Some(TIERS), RouterConfig::RoundRobin, &there_and_back()));
    let again: &RequestRecord = &report.requests[2];
    // The device still has the first block, and the host the second. The disk, which received four blocks at 23.12
    // ms, has three more usable blocks.
    assert_eq!((again.cached_tokens, again.detail.host_cached_tokens, again.detail.disk_cached_tokens), (80, 16, 48));
    // The load takes 12 ms from the disk plus its latency, then 1.5 ms from the host to the device.
    let loaded_ns = 40 * MS + 12 * MS + 100_000 + 1_500_000;
    assert_eq!(again.scheduled_ns, Some(loaded_ns));
    assert_eq!((again.detail.first_load_ns, again.detail.load_ns), (Some(13_600_000), Some(13_600_000)));
    // Only the last block is computed.
    assert_eq!(again.end_ns, Some(loaded_ns + 2_160_000));
    assert_eq!(
        tiers_of(&report, 0),
        KvTierReport {
            device_hit_tokens: 16,
            host_hit_tokens: 16,
            disk_hit_tokens: 48,
            loads: 1,
            // All blocks of both prompts, and two blocks of the repeated prompt: the first and the last one. The
            // host had lost both, and neither was loaded from the disk.
            device_to_host_bytes: (6 + 7 + 2) * BLOCK_BYTES,
            host_to_device_bytes: 4 * BLOCK_BYTES,
            // Four blocks for the second prompt, three for blocks from the disk, and two for the repeated prompt's
            // blocks.
            host_to_disk_bytes: 9 * BLOCK_BYTES,
            disk_to_host_bytes: 3 * BLOCK_BYTES,
        }
    );
    assert_eq!(report.metrics.count(Counter::HostCachedTokens), 16);
    assert_eq!(report.metrics.count(Counter::DiskCachedTokens), 48);
    let load = report.metrics.trend(Trend::KvLoad).expect("it has samples");
    assert_eq!((load.count, load.max), (1, 13.6));
}

/// A router that chooses the first engine and keeps the loads that it sees.
struct Seeing {
    needs_tiers: bool,
    seen: Arc<Mutex<Vec<WorkerLoad>>>,
}

impl Router for Seeing {
    fn route(&mut self, _request: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        self.seen.lock().expect("no holder panicked").push(workers[0]);
        Ok(Choice::Worker(workers[0].worker))
    }

    fn needs_overlap(&self) -> bool {
        true
    }

    fn needs_tiers(&self) -> bool {
        self.needs_tiers
    }
}

fn seen_by_router(tiers: KvTiersConfig, needs_tiers: bool, rows: &str) -> Vec<WorkerLoad> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let of_router = Arc::clone(&seen);
    let make: RouterFactory = Arc::new(move |_| Ok(Box::new(Seeing { needs_tiers, seen: Arc::clone(&of_router) })));
    played(&small(1, Some(tiers), RouterConfig::Made(make), rows));
    let seen = seen.lock().expect("no holder panicked");
    seen.clone()
}

#[test]
fn a_router_that_asks_sees_prompts_by_tier_loads_on_their_way_and_the_last_step() {
    // Another request is routed during the load of the first prompt, which takes from 40 to 53.6 ms.
    let rows = there_and_back() + &row(45, 3, 1);
    for needs_tiers in [true, false] {
        let seen = seen_by_router(TIERS, needs_tiers, &rows);
        let blocks = |load: &WorkerLoad| (load.cached_prompt_blocks, load.host_prompt_blocks, load.disk_prompt_blocks);
        let of_tiers = if needs_tiers { (1, 1, 4) } else { (1, 0, 0) };
        assert_eq!(seen.iter().map(blocks).collect::<Vec<_>>(), [(0, 0, 0), (0, 0, 0), of_tiers, (0, 0, 0)]);
        // A step takes 2 ms plus 10 us for each of 96 or 112 tokens.
        let steps = seen.iter().map(|load| load.last_step_ns).collect::<Vec<_>>();
        assert_eq!(steps, [0, 2_960_000, 3_120_000, 3_120_000]);
        assert_eq!(seen.iter().map(|load| load.loading_requests).collect::<Vec<_>>(), [0, 0, 0, 1]);
    }
}

#[test]
fn without_tiers_nothing_of_them_is_reported_and_the_prompt_is_computed() {
    let report = played(&small(1, None, RouterConfig::RoundRobin, &there_and_back()));
    assert_eq!(cached(&report), [0, 0, 16]);
    assert_eq!(report.engines[0].kv_tiers, None);
    let text = serde_json::to_string(&report.metrics).expect("a report is JSON");
    assert!(!text.contains(Counter::HostCachedTokens.info().name), "{text}");
    assert!(report.metrics.trend(Trend::KvLoad).is_none());
}

#[test]
fn offloads_on_their_way_bring_nothing_yet() {
    // The first prompt's blocks reach the host at 8.96 ms. A request before that does not wait for them, and
    // computes its prompt.
    let rows = row(0, 1, 6) + &row(3, 2, 8) + &row(6, 1, 6);
    let report = played(&small(1, Some(TIERS), RouterConfig::RoundRobin, &rows));
    assert_eq!(cached(&report), [0, 0, 0]);
}

#[test]
fn loads_share_a_way_in_order() {
    let tiers = KvTiersConfig { host_blocks: 40, ..TIERS };
    // Both prompts have left the device when they are requested again at the same time.
    let rows = row(0, 1, 3) + &row(10, 2, 3) + &row(20, 3, 8) + &row(60, 1, 3) + &row(60, 2, 3);
    let report = played(&small(1, Some(tiers), RouterConfig::RoundRobin, &rows));
    assert_eq!(cached(&report), [0, 0, 0, 32, 32]);
    // Two blocks each, at half a millisecond per block.
    let loads: Vec<_> = report.requests[3..].iter().map(|record| record.detail.first_load_ns).collect();
    assert_eq!(loads, [Some(MS), Some(2 * MS)]);
    assert_eq!(report.requests[3].scheduled_ns, Some(61 * MS));
}

#[test]
fn a_crash_takes_host_and_disk_with_it() {
    let mut config = small(1, Some(TIERS), RouterConfig::RoundRobin, &there_and_back());
    let kind = FaultKind::Crash { restart_after_ns: Some(MS) };
    config.faults = vec![FaultConfig { at_ns: 30 * MS, pool: PoolRole::Aggregated, engine: 0, kind }];
    let report = played(&config);
    assert_eq!(cached(&report), [0, 0, 0]);
    // Transfers before the crash still count.
    assert_eq!(tiers_of(&report, 0).device_to_host_bytes, (6 + 7 + 6) * BLOCK_BYTES);
}

#[test]
fn a_load_that_a_crash_cuts_off_is_tried_again_elsewhere() {
    let mut config = small(1, Some(TIERS), RouterConfig::RoundRobin, &there_and_back());
    let kind = FaultKind::Crash { restart_after_ns: Some(MS) };
    config.faults = vec![FaultConfig { at_ns: 45 * MS, pool: PoolRole::Aggregated, engine: 0, kind }];
    config.max_retries = 1;
    let report = played(&config);
    let again = &report.requests[2];
    assert_eq!((again.retries, again.cached_tokens, again.detail.load_ns), (1, 0, None));
    assert_eq!(again.scheduled_ns, Some(46 * MS));
}

#[test]
fn a_crash_forgets_loads_of_requests_that_were_given_up() {
    // Loading a block from the host takes a second.
    let tiers = KvTiersConfig {
        rules: HostRules::Vllm,
        host_blocks: 40,
        disk_blocks: 0,
        disk_to_host_bytes_per_s: None,
        host_to_disk_bytes_per_s: None,
        host_to_device_bytes_per_s: Some(BLOCK_BYTES),
        ..TIERS
    };
    let rows = row(0, 1, 6) + &row(50, 2, 8) + &row(200, 1, 6) + &row(500, 3, 1);
    let mut config = small(1, Some(tiers), RouterConfig::RoundRobin, &rows);
    config.workloads[0].client = ClientConfig { timeout_ns: Some(100 * MS), ..ClientConfig::default() };
    let kind = FaultKind::Crash { restart_after_ns: Some(10 * MS) };
    config.faults = vec![FaultConfig { at_ns: 400 * MS, pool: PoolRole::Aggregated, engine: 0, kind }];
    let report = played(&config);
    assert_eq!(report.requests[2].outcome, Outcome::GivenUp(GiveUp::Timeout));
    assert_eq!((report.metrics.count(Counter::Retries), report.metrics.count(Counter::Completed)), (0, 3));
}

/// Returns in how many of 20 runs the router finds the prompt. Only the host of one of two idle engines has it.
fn found_of_20(host_cache_hit_weight: f64, lag_ns: u64) -> usize {
    let router = RouterConfig::Kv(KvRouterConfig {
        host_cache_hit_weight,
        knowledge: KvKnowledge::Events { lag_ns, at_step_end: false },
        ..KvRouterConfig::default()
    });
    let tiers = KvTiersConfig { host_blocks: 40, ..TIERS };
    // The two prompts in the middle evict the first prompt from the device of either engine.
    let rows = row(0, 1, 5) + &row(30, 3, 8) + &row(30, 4, 8) + &row(80, 1, 5);
    let finds = |seed| {
        let config = RunConfig { seed, ..small(2, Some(tiers), router.clone(), &rows) };
        played(&config).requests[3].cached_tokens > 0
    };
    (0..20).filter(|&seed| finds(seed)).count()
}

#[test]
fn the_router_goes_to_the_host_that_has_the_prompt_if_it_knows_and_minds() {
    for lag_ns in [0, 5 * MS] {
        assert_eq!(found_of_20(0.75, lag_ns), 20, "lag {lag_ns}");
        // Both engines then cost the same, so the choice is random.
        assert!((1..20).contains(&found_of_20(0.0, lag_ns)), "lag {lag_ns}");
    }
    // With this delay, the router does not know the first request's blocks yet.
    assert!((1..20).contains(&found_of_20(0.75, 90 * MS)));
}

/// The shared bandwidth equals the bandwidth of one engine.
const SHARED: SharedTier = SharedTier { write_bytes_per_s: Some(1_600_000_000), read_bytes_per_s: Some(3_200_000_000) };

const ONE_HOST: KvTiersConfig = KvTiersConfig { host_blocks: 40, disk_blocks: 0, shared_host: Some(SHARED), ..TIERS };

#[test]
fn what_one_engine_keeps_in_a_shared_host_another_loads() {
    let rows = row(0, 1, 6) + &row(20, 1, 6);
    let read = |read_bytes_per_s, host_latency_ns| {
        let shared_host = Some(SharedTier { read_bytes_per_s, ..SHARED });
        let tiers = KvTiersConfig { shared_host, host_latency_ns, ..ONE_HOST };
        let report = played(&small(2, Some(tiers), RouterConfig::RoundRobin, &rows));
        assert_eq!(cached(&report), [0, 80]);
        let (kept, loaded) = (tiers_of(&report, 0), tiers_of(&report, 1));
        assert_eq!((kept.device_to_host_bytes, kept.host_to_device_bytes), (6 * BLOCK_BYTES, 0));
        // The host already has the whole prompt.
        assert_eq!((loaded.device_to_host_bytes, loaded.host_to_device_bytes), (0, 5 * BLOCK_BYTES));
        report.requests[1].scheduled_ns.expect("it ran")
    };
    // The first read is limited by the engine's own bandwidth, the second by half of the shared bandwidth. The third
    // also has the latency.
    assert_eq!(read(None, 0), 22 * MS + MS / 2);
    assert_eq!(read(Some(1_600_000_000), 0), 25 * MS);
    assert_eq!(read(Some(1_600_000_000), MS), 26 * MS);
    let own = KvTiersConfig { shared_host: None, ..ONE_HOST };
    assert_eq!(cached(&played(&small(2, Some(own), RouterConfig::RoundRobin, &rows))), [0, 0]);
}

#[test]
fn loads_of_engines_share_the_bandwidth_of_the_host() {
    // Both engines load the prompt at the same time. Neither device has any of its blocks.
    let rows = row(0, 1, 6) + &row(20, 2, 8) + &row(21, 3, 8) + &row(60, 1, 6) + &row(60, 1, 6);
    let scheduled = |read_bytes_per_s| {
        let shared_host = Some(SharedTier { read_bytes_per_s: Some(read_bytes_per_s), ..SHARED });
        let tiers = KvTiersConfig { shared_host, ..ONE_HOST };
        let report = played(&small(2, Some(tiers), RouterConfig::RoundRobin, &rows));
        assert_eq!(cached(&report), [0, 0, 0, 80, 80]);
        [report.requests[3].scheduled_ns, report.requests[4].scheduled_ns]
    };
    assert_eq!(scheduled(3_200_000_000), [Some(65 * MS); 2]);
    // With this bandwidth of the shared tier, only the bandwidth of each engine limits the load.
    assert_eq!(scheduled(6_400_000_000), [Some(62 * MS + MS / 2); 2]);
}

#[test]
fn a_shared_host_outlives_engines() {
    let rows = row(0, 1, 6) + &row(40, 1, 6);
    let kind = FaultKind::Crash { restart_after_ns: Some(MS) };
    let faults = vec![FaultConfig { at_ns: 30 * MS, pool: PoolRole::Aggregated, engine: 0, kind }];
    let run =
        |tiers| played(&RunConfig { faults: faults.clone(), ..small(1, Some(tiers), RouterConfig::RoundRobin, &rows) });
    let report = run(ONE_HOST);
    assert_eq!(cached(&report), [0, 80]);
    assert_eq!(tiers_of(&report, 0).device_to_host_bytes, 6 * BLOCK_BYTES);
    assert_eq!(cached(&run(KvTiersConfig { shared_host: None, ..ONE_HOST })), [0, 0]);
}

#[test]
fn what_leaves_the_host_of_one_engine_another_reads_from_a_shared_disk() {
    // Two prompts of 8 blocks evict the first prompt from the host of engine 0.
    let filler = [row(10, 2, 1), row(20, 3, 8), row(40, 4, 1), row(60, 5, 8)].concat();
    let rows = row(0, 1, 6) + &filler + &row(100, 1, 6);
    let shared = SharedTier { write_bytes_per_s: None, read_bytes_per_s: Some(800_000_000) };
    let tiers = KvTiersConfig { disk_blocks: 40, shared_disk: Some(shared), ..TIERS };
    let report = played(&small(2, Some(tiers), RouterConfig::RoundRobin, &rows));
    let again = &report.requests[5];
    assert_eq!((again.cached_tokens, again.detail.host_cached_tokens, again.detail.disk_cached_tokens), (80, 0, 80));
    // The load takes 20 ms from the disk plus its latency, then 2.5 ms from the host to the device.
    assert_eq!(again.scheduled_ns, Some(122 * MS + 600_000));
    assert_eq!(tiers_of(&report, 1).disk_to_host_bytes, 5 * BLOCK_BYTES);
    let own = KvTiersConfig { shared_disk: None, ..tiers };
    assert_eq!(played(&small(2, Some(own), RouterConfig::RoundRobin, &rows)).requests[5].cached_tokens, 0);
}

#[test]
fn a_shared_host_is_the_same_for_every_engine_that_the_router_weighs() {
    // Engine 0's tiers count for both engines, so the choice is random.
    for lag_ns in [0, 5 * MS] {
        let knowledge = KvKnowledge::Events { lag_ns, at_step_end: false };
        let router = RouterConfig::Kv(KvRouterConfig { knowledge, ..KvRouterConfig::default() });
        let rows = row(0, 1, 5) + &row(30, 3, 8) + &row(30, 4, 8) + &row(80, 1, 5);
        let cached = |seed| {
            let config = RunConfig { seed, ..small(2, Some(ONE_HOST), router.clone(), &rows) };
            let report = played(&config);
            (report.requests[3].prefill_worker, report.requests[3].cached_tokens)
        };
        let chosen: Vec<_> = (0..20).map(cached).collect();
        assert!(chosen.iter().all(|&(_, tokens)| tokens == 64), "{chosen:?}");
        assert!(chosen.iter().any(|&(engine, _)| engine != chosen[0].0), "{chosen:?}");
    }
}
