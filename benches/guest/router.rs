//! Measures a router per request, as a guest and natively.
//!
//! `prefix-affinity` chooses among 64 engines for prompts of 16 and of 512 blocks. Some engines have cached a part
//! of each prompt. Before each request, half of the earlier requests have ended and are reported to the router. The
//! search for cached parts is not included: the simulator makes it before the call.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use vcr_cluster::{Choice, EndedRequest, RoutePhase, RouteRequest, Router, RouterConfig, WorkerLoad};
use vcr_guest::{GuestModule, Limits};

const WORKERS: u32 = 64;
/// Number of requests that are routed in turn.
const REQUESTS: u64 = 256;

/// Engines with different loads. A quarter of them have cached a part of the prompt.
fn workers(request: u64) -> Vec<WorkerLoad> {
    let load = |worker: u32| {
        let draw = vcr_core::seed::derive(request, "load", u64::from(worker));
        WorkerLoad {
            worker,
            running_requests: 40 + (draw % 16) as u32,
            waiting_requests: (draw >> 8) as u32 % 3,
            max_running_requests: 256,
            active_blocks: 4_000 + (draw >> 16) as u32 % 4_000,
            total_blocks: 16_384,
            outstanding_prefill_tokens: (draw >> 24) % 8_192,
            cached_prompt_blocks: if worker.is_multiple_of(4) { (draw >> 40) as u32 % 16 } else { 0 },
            preemption_count: (draw >> 48) % 4,
            ..WorkerLoad::default()
        }
    };
    (0..WORKERS).map(load).collect()
}

fn route(router: &mut dyn Router, shown: &[Vec<WorkerLoad>], blocks: &[u64], request: u64) -> Choice {
    let workers = &shown[(request % REQUESTS) as usize];
    let query = RouteRequest {
        now_ns: request * 1_000,
        id: request,
        prompt_tokens: blocks.len() as u32 * 16 + 5,
        max_tokens: 200,
        priority: 0,
        adapter: None,
        tenant: 0,
        slo: Default::default(),
        session: request,
        block_size_tokens: 16,
        phase: RoutePhase::Whole,
        may_refuse: true,
        block_hashes: blocks,
    };
    if router.needs_ended() && request % 2 == 1 {
        router.ended(&EndedRequest { id: request - 1, worker: 3, output_tokens: 200, failed: false, ttft_ns: Some(9) });
    }
    router.route(&query, workers).expect("it routes")
}

fn routing(criterion: &mut Criterion) {
    let native = RouterConfig::PrefixAffinity(vcr_policy::prefix_affinity::AffinityConfig::default());
    let mut routers =
        vec![("native", native.build(&vcr_core::PluginContext::of_seed(1)).expect("the defaults are good"))];
    if let Some(path) = vcr_benches::guest_path("prefix-affinity") {
        let module = GuestModule::load(path, Limits::default()).expect("a built guest loads");
        routers.push(("guest", module.router("{}", 1).expect("the defaults are good")));
    }
    let shown: Vec<Vec<WorkerLoad>> = (0..REQUESTS).map(workers).collect();
    let mut group = criterion.benchmark_group("route_among_64");
    for num_blocks in [16_u64, 512] {
        let blocks: Vec<u64> = (0..num_blocks).map(|block| vcr_core::seed::derive(9, "block", block)).collect();
        for (name, router) in &mut routers {
            group.bench_function(BenchmarkId::new(*name, format!("{num_blocks} blocks")), |bencher| {
                let mut request = 0;
                bencher.iter(|| {
                    request += 1;
                    route(router.as_mut(), &shown, &blocks, request)
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, routing);
criterion_main!(benches);
