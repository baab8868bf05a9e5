//! Runs on several threads: the same bytes as on one.

use std::num::NonZeroUsize;

use proptest::prelude::*;
use vcr_cluster::observe::{Observer, Overload, Unobserved};
use vcr_cluster::{
    Arrivals, CancelConfig, ClientConfig, DataParallel, Limit, Overheads, PackedRows, PoolConfig, Report, RequestMix,
    RouterConfig, RunConfig, SimError, Threads, Topology, WorkloadConfig, lane_work, simulate, simulate_on,
};
use vcr_random::Distribution;

use super::case::arb_ranks;
use super::routers::arb_router;
use super::schedulers::{Scheduler, arb_scheduler, with_scheduler};
use crate::support::{MS, config, mix, pool, recorded, synthetic};

/// Keeps all that an observer is shown of a run that is not progress.
#[derive(Default)]
struct Listening {
    wants_series: bool,
    overloads: Vec<String>,
}

impl Observer for Listening {
    fn wants_series(&self) -> bool {
        self.wants_series
    }

    fn wants_step_digests(&self) -> bool {
        self.wants_series
    }

    fn overloaded(&mut self, overload: &Overload<'_>) {
        self.overloads.push(overload.to_string());
    }
}

fn threads(count: usize) -> Threads {
    Threads::wherever_possible(NonZeroUsize::new(count).expect("not zero"))
}

/// All that a run shows, on some threads.
fn shown(config: &RunConfig, threads: Threads, wants_series: bool) -> Result<String, SimError> {
    let mut listening = Listening { wants_series, ..Listening::default() };
    let report = simulate_on(threads, config.clone(), &mut listening)?;
    let Report { fingerprint, series, step_digests, token_gaps_ns, cut_short, .. } = &report;
    let mut requests = Vec::new();
    report.for_each_request(|record| requests.push(format!("{record:?}")));
    let mut gaps = Vec::new();
    token_gaps_ns.for_each(|gap_ns, times| gaps.extend((0..times).map(|_| gap_ns)));
    gaps.sort_unstable();
    let json = serde_json::to_string(&report).expect("a report is serialisable");
    let overloads = listening.overloads;
    Ok(format!(
        "{fingerprint}\n{json}\n{requests:?}\n{series:?}\n{step_digests:?}\n{gaps:?}\n{overloads:?}\n{cut_short}"
    ))
}

fn assert_same_on_threads(config: &RunConfig) {
    for wants_series in [false, true] {
        let expected = shown(config, Threads::ONE, wants_series).map_err(|error| error.to_string());
        for count in [2, 3, 5, 8] {
            let done = shown(config, threads(count), wants_series).map_err(|error| error.to_string());
            assert!(done == expected, "{count} threads differ: {}", first_difference(&done, &expected));
        }
        let packed = RunConfig { packed_records: PackedRows::Always, ..config.clone() };
        for count in [1, 3] {
            let done = shown(&packed, threads(count), wants_series).map_err(|error| error.to_string());
            assert!(done == expected, "packed, {count} threads: {}", first_difference(&done, &expected));
        }
    }
}

fn first_difference(done: &Result<String, String>, expected: &Result<String, String>) -> String {
    let (Ok(done), Ok(expected)) = (done, expected) else {
        return format!("{:?} {:?}", done.is_ok(), expected.is_ok());
    };
    let at = done.bytes().zip(expected.bytes()).position(|(one, other)| one != other).unwrap_or(0);
    let part = |text: &str| text[at.saturating_sub(200)..text.len().min(at + 200)].to_owned();
    format!("\n{}\n{}", part(done), part(expected))
}

/// A cluster whose engines only requests reach, which start by themselves.
#[derive(Clone, Debug)]
struct Open {
    engines: u32,
    blocks: u32,
    router: RouterConfig,
    ranks: DataParallel,
    scheduler: Scheduler,
    arrivals: Arrivals,
    /// Longer prompts than any engine can hold among them.
    prompt_tokens: f64,
    client: ClientConfig,
    overheads: Overheads,
    rejects_in_queue: bool,
    max_time_ms: Option<u64>,
    seed: u64,
}

fn arb_arrivals() -> impl Strategy<Value = Arrivals> {
    (0..3u32, 1..120u64, prop_oneof![Just(0), 1..900u64]).prop_map(|(kind, count, over_ms)| {
        let rate_per_s = 1e3 * count as f64 / (1 + over_ms) as f64;
        let limit = Limit { count: Some(count), duration_ns: None };
        match kind {
            0 => Arrivals::Burst { count, over_ns: over_ms * MS },
            1 => Arrivals::Constant { rate_per_s, limit },
            _ => Arrivals::Poisson { rate_per_s, limit },
        }
    })
}

fn arb_client() -> impl Strategy<Value = ClientConfig> {
    let cancel = (0.1..1.0f64, 1.0..400.0f64).prop_map(|(share, mean)| CancelConfig {
        share,
        after_ms: Some(Distribution::Exponential { mean }),
        after_tokens: None,
    });
    let timeout_ms = || proptest::option::of(1..600u64);
    prop_oneof![
        2 => Just(ClientConfig::default()),
        1 => (timeout_ms(), timeout_ms(), proptest::option::of(cancel)).prop_map(|(first, whole, cancel)| ClientConfig {
            first_token_timeout_ns: first.map(|ms| ms * MS),
            timeout_ns: whole.map(|ms| ms * MS),
            cancel,
            ..ClientConfig::default()
        }),
    ]
}

fn arb_open() -> impl Strategy<Value = Open> {
    // Lanes are for round robins; others take one thread, whatever they may take.
    let router = prop_oneof![4 => Just(RouterConfig::RoundRobin), 1 => arb_router()];
    let cluster = (2..9u32, 30..500u32, router, arb_ranks(), arb_scheduler());
    let load = (arb_arrivals(), prop_oneof![Just(120.0), Just(600.0)], arb_client());
    let answer_ns = prop_oneof![Just(0), 0..5 * MS];
    let rest = (answer_ns, any::<bool>(), proptest::option::of(1..2_000u64), any::<u64>());
    (cluster, load, rest).prop_map(|(cluster, load, (output_ns, rejects_in_queue, max_time_ms, seed))| {
        let (engines, blocks, router, ranks, scheduler) = cluster;
        let (arrivals, prompt_tokens, client) = load;
        let overheads = Overheads { output_ns, ..Overheads::default() };
        Open {
            engines,
            blocks,
            router,
            ranks,
            scheduler,
            arrivals,
            prompt_tokens,
            client,
            overheads,
            rejects_in_queue,
            max_time_ms,
            seed,
        }
    })
}

impl Open {
    fn config(&self) -> RunConfig {
        let Self { overheads, ranks: data_parallel, rejects_in_queue, .. } = *self;
        let engines = pool("engines", self.engines, self.blocks, self.router.clone());
        let engines = PoolConfig { data_parallel, overheads, rejects_in_queue, ..engines };
        let requests = RequestMix { shared_prefix_tokens: 48, prefix_groups: 3, ..mix(self.prompt_tokens, 25.0) };
        let load = WorkloadConfig {
            client: self.client.clone(),
            ..synthetic("load", self.arrivals.clone(), requests.clone())
        };
        let burst = synthetic("burst", Arrivals::Burst { count: 30, over_ns: 0 }, requests);
        let run = RunConfig {
            seed: self.seed,
            max_time_ns: self.max_time_ms.map(|ms| ms * MS),
            ..config(Topology::Aggregated(engines), vec![load, burst])
        };
        with_scheduler(run, self.scheduler)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_clusters_do_the_same_on_any_number_of_threads(open in arb_open()) {
        assert_same_on_threads(&open.config());
    }

    #[test]
    fn random_clusters_of_ticks_do_the_same_on_any_number_of_threads(open in arb_open()) {
        assert_same_on_threads(&Open { scheduler: Scheduler::Ticks, ..open }.config());
    }
}

/// Far more requests than are served: the warning is the same, too.
/// The work of lanes does not depend on threads, and is that of the whole run.
#[test]
fn the_work_of_lanes_is_counted() {
    let arrivals = Arrivals::Burst { count: 200, over_ns: 900 * MS };
    let run = |router| {
        let topology = Topology::Aggregated(pool("engines", 4, 2000, router));
        config(topology, vec![synthetic("burst", arrivals.clone(), mix(200.0, 20.0))])
    };
    let work = lane_work(&run(RouterConfig::RoundRobin)).expect("its engines are independent");
    assert_eq!(Some(&work), lane_work(&run(RouterConfig::RoundRobin)).as_ref());
    assert_eq!(work.rounds.iter().map(|round| round.requests).sum::<u64>(), 200);
    assert!(work.rounds.len() > 2 && work.rounds.iter().all(|round| round.instants.len() == 4));
    let of_lane = |lane: usize| work.rounds.iter().map(|round| round.instants[lane]).sum::<u64>();
    assert!((0..4).all(|lane| of_lane(lane) > 50), "each lane has requests and steps");
    assert_eq!(lane_work(&run(RouterConfig::LeastLoaded)), None, "its router looks at engines at each request");
}

#[test]
fn an_overload_is_noticed_at_the_same_instant() {
    let limit = Limit { count: Some(8_000), duration_ns: None };
    for router in [RouterConfig::RoundRobin, RouterConfig::LeastLoaded] {
        let load = synthetic("load", Arrivals::Poisson { rate_per_s: 4_000.0, limit }, mix(100.0, 20.0));
        let run = config(Topology::Aggregated(pool("engines", 4, 500, router)), vec![load]);
        let alone = shown(&run, Threads::ONE, false).expect("it runs");
        assert!(alone.contains("the load is above the capacity"), "it is overloaded");
        assert!(alone == shown(&run, threads(4), false).expect("it runs"));
    }
}

#[test]
fn recorded_arrivals_do_the_same_on_threads() {
    let row = |row: u64| {
        let (at_ms, ids) = (row * 7 % 1_000, [row % 3, 10 + row % 5, 100 + row]);
        format!(
            "{{\"timestamp\": {at_ms}, \"input_length\": {}, \"output_length\": 30, \"hash_ids\": {ids:?}}}\n",
            1100
        )
    };
    let rows: String = (0..200).map(row).collect();
    for router in [RouterConfig::RoundRobin, RouterConfig::Kv(vcr_cluster::KvRouterConfig::default())] {
        let run = config(Topology::Aggregated(pool("engines", 6, 700, router)), vec![recorded("trace", &rows)]);
        assert_same_on_threads(&run);
    }
}

/// Fails at a step of the engine whose number is odd.
#[test]
fn a_failure_is_that_of_one_thread() {
    use vcr_core::latency::{LatencyError, LatencyModel, StepBatch, price_until_horizon};
    struct Failing(u64);
    impl LatencyModel for Failing {
        fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
            self.0 = self
                .0
                .checked_sub(1)
                .ok_or_else(|| LatencyError { model: "failing".to_owned(), reason: "it has had enough".to_owned() })?;
            price_until_horizon(batch, durations_ns, |_| Ok(2 * MS))
        }
    }
    let latency: vcr_cluster::LatencyFactory =
        std::sync::Arc::new(|context| Ok(Box::new(Failing(if context.engine == Some(1) { 20 } else { 10_000 }))));
    let engines = PoolConfig { latency, ..pool("engines", 4, 500, RouterConfig::RoundRobin) };
    let load = synthetic("load", Arrivals::Burst { count: 80, over_ns: 100 * MS }, mix(100.0, 20.0));
    let run = config(Topology::Aggregated(engines), vec![load]);
    let alone = simulate(run.clone(), &mut Unobserved).expect_err("it fails").to_string();
    assert!(alone.contains("it has had enough"), "{alone}");
    assert_eq!(alone, simulate_on(threads(3), run, &mut Unobserved).expect_err("it fails").to_string());
}

/// Ends a run at its third look.
#[derive(Default)]
struct Impatient {
    looks: std::cell::Cell<u32>,
}

impl Observer for Impatient {
    fn wants_stop(&self) -> bool {
        self.looks.set(self.looks.get() + 1);
        self.looks.get() > 2
    }
}

#[test]
fn a_run_on_threads_can_be_stopped() {
    for router in [RouterConfig::RoundRobin, RouterConfig::LeastLoaded] {
        let limit = Limit { count: Some(3_000), duration_ns: None };
        let load = synthetic("load", Arrivals::Poisson { rate_per_s: 400.0, limit }, mix(100.0, 20.0));
        let run = config(Topology::Aggregated(pool("engines", 4, 500, router)), vec![load]);
        let packed = RunConfig { packed_records: PackedRows::Always, ..run.clone() };
        let part = simulate_on(threads(2), packed, &mut Impatient::default()).expect("it is stopped, not failed");
        assert!(part.partial && part.unfinished_requests > 0 && part.num_requests() > part.unfinished_requests);
        let part = simulate_on(threads(2), run, &mut Impatient::default()).expect("it is stopped, not failed");
        assert!(part.partial && part.unfinished_requests > 0);
        assert!(part.engines.iter().all(|engine| engine.utilisation <= 1.0));
        let ends = part.requests.iter().filter_map(|request| request.end_ns);
        assert!(ends.max().is_none_or(|end_ns| end_ns as f64 / 1e6 <= part.duration_ms));
    }
}
