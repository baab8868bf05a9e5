//! Tests of loads that change over time, and of several kinds of requests.

use std::collections::BTreeSet;

use vcr_base::random::Weights;
use vcr_cluster::metrics::Counter;
use vcr_cluster::{
    Adapters, Arrivals, Conversations, Curve, Documents, Gaps, Limit, Media, PoolConfig, Report, RequestClass,
    RequestMix, RouterConfig, Slo, Topology, WorkloadConfig, WorkloadSource,
};
use vcr_core::sglang::{SglangConfig, SglangConfigInput};
use vcr_core::{EngineConfig, EngineConfigInput};

use crate::support::{MS, assert_conserved, config, constant, pool, run, synthetic};

const S: u64 = 1000 * MS;

fn on_one_engine(workloads: Vec<WorkloadConfig>) -> Report {
    let report = run(&config(Topology::Aggregated(pool("engines", 1, 4000, RouterConfig::RoundRobin)), workloads));
    assert_conserved(&report);
    report
}

fn small() -> RequestMix {
    RequestMix::new(constant(32.0), constant(4.0))
}

fn of_classes(arrivals: Arrivals, classes: Vec<RequestClass>) -> WorkloadConfig {
    WorkloadConfig::new("w", WorkloadSource::Synthetic { arrivals, classes })
}

fn class(mix: RequestMix) -> RequestClass {
    Vec::from(mix).remove(0)
}

#[test]
fn rates_follow_their_stages() {
    let rate = Curve::stages(0.0, &[(10 * S, 20.0), (10 * S, 20.0), (10 * S, 0.0)]);
    let starts = |gaps| {
        let arrivals = Arrivals::Varying { rate: rate.clone(), gaps, limit: Limit::default() };
        on_one_engine(vec![synthetic("w", arrivals, small())])
    };
    let in_third = |report: &Report, third: u64| {
        report.requests.iter().filter(|r| (r.arrival_ns.saturating_sub(1)) / (10 * S) == third).count()
    };
    let even = starts(Gaps::Even);
    assert_eq!([0, 1, 2].map(|third| in_third(&even, third)), [100, 200, 100]);
    for gaps in [Gaps::Exponential, Gaps::Gamma { shape: 0.5 }, Gaps::Weibull { shape: 2.0 }] {
        let report = starts(gaps);
        let [up, level, down] = [0, 1, 2].map(|third| in_third(&report, third));
        assert!((60..140).contains(&up) && (150..250).contains(&level) && (60..140).contains(&down), "{gaps:?}");
    }
}

#[test]
fn burstiness_spreads_the_gaps_as_it_says() {
    let variation = |gaps| {
        let limit = Limit { count: Some(4000), duration_ns: None };
        let arrivals = Arrivals::Varying { rate: Curve::constant(100.0), gaps, limit };
        let report = on_one_engine(vec![synthetic("w", arrivals, RequestMix::new(constant(1.0), constant(1.0)))]);
        let gaps: Vec<f64> = report.requests.windows(2).map(|w| (w[1].arrival_ns - w[0].arrival_ns) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((0.9e7..1.1e7).contains(&mean), "{mean}");
        (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt() / mean
    };
    // Expected coefficients of variation: for gamma the square root of 1 / shape, for Weibull with shape 2 0.523.
    let found = [Gaps::Gamma { shape: 4.0 }, Gaps::Gamma { shape: 0.25 }, Gaps::Weibull { shape: 2.0 }].map(variation);
    for (found, wanted) in found.iter().zip([0.5, 2.0, 0.523]) {
        assert!((found / wanted - 1.0).abs() < 0.1, "{found} instead of {wanted}");
    }
}

#[test]
fn users_come_and_go_with_the_stages() {
    let users = Curve::stages(0.0, &[(2 * S, 4.0), (2 * S, 4.0), (0, 1.0), (2 * S, 1.0)]);
    let arrivals = Arrivals::Users { users, limit: Limit::default() };
    let report = on_one_engine(vec![synthetic("w", arrivals, small())]);
    let in_flight =
        |at_ns: u64| report.requests.iter().filter(|r| r.arrival_ns <= at_ns && r.end_ns.unwrap() > at_ns).count();
    let at = |ms: u64| in_flight(ms * MS);
    assert_eq!([at(499), at(600), at(1100), at(1600), at(2500), at(3900)], [0, 1, 2, 3, 4, 4]);
    assert_eq!([at(4100), at(5900)], [1, 1], "users who are too many leave when they are done");
    let last_ns = report.requests.iter().map(|r| r.arrival_ns).max().unwrap();
    assert!((5900 * MS..6 * S).contains(&last_ns), "{last_ns}");
}

#[test]
fn classes_come_by_their_weights_with_lengths_and_priorities_of_their_own() {
    let slo = |class: &str, ttft_ms: u64| {
        Some(Slo { class: class.to_owned(), ttft_ns: Some(ttft_ms * MS), tpot_ns: None, e2e_ns: None })
    };
    let classes = vec![
        RequestClass { weight: 3.0, slo: slo("chat", 100_000), ..class(small()) },
        RequestClass { weight: 1.0, slo: slo("batch", 0), ..class(RequestMix::new(constant(64.0), constant(2.0))) },
    ];
    let mut workload = of_classes(Arrivals::Burst { count: 400, over_ns: S }, classes);
    workload.tenant = 7;
    let report = on_one_engine(vec![workload]);
    let of = |class| report.requests.iter().filter(move |record| record.class == class);
    assert!((260..340).contains(&of(0).count()), "{}", of(0).count());
    assert!(of(0).all(|r| (r.prompt_tokens, r.max_tokens) == (32, 4)));
    assert!(of(1).all(|r| (r.prompt_tokens, r.max_tokens) == (64, 2)));
    let [chat, batch] = ["chat", "batch"].map(|name| &report.slo_classes[name]);
    assert_eq!((chat.all.requests, chat.all.good, chat.all.ratio), (of(0).count() as u64, of(0).count() as u64, 1.0));
    assert_eq!((batch.all.requests, batch.all.good), (of(1).count() as u64, 0));
    assert_eq!(batch.tenants[&7], batch.all);
}

#[test]
fn no_step_has_more_adapters_than_its_engine_allows() {
    let input = EngineConfigInput { num_gpu_blocks: 4000, max_loras: 2, ..EngineConfigInput::default() };
    let engines = PoolConfig {
        engine: EngineConfig::new(input).expect("valid").into(),
        ..pool("engines", 1, 4000, RouterConfig::RoundRobin)
    };
    let adapters = Some(Adapters { first: 10, popularity: Weights::zipf(5, 0.5) });
    let with = RequestClass { adapters, ..class(RequestMix::new(constant(64.0), constant(20.0))) };
    let workload = of_classes(Arrivals::Burst { count: 60, over_ns: 100 * MS }, vec![with]);
    let report = run(&config(Topology::Aggregated(engines), vec![workload.clone()]));
    assert_conserved(&report);
    assert_eq!(report.metrics.count(Counter::Completed), 60);
    let mut most = 0;
    for record in &report.requests {
        let at_ns = record.scheduled_ns.unwrap();
        let running = report.requests.iter().filter(|r| r.scheduled_ns <= Some(at_ns) && r.end_ns > Some(at_ns));
        most = most.max(running.map(|r| r.adapter.unwrap()).collect::<BTreeSet<u32>>().len());
    }
    assert_eq!(most, 2);
    let all: BTreeSet<u32> = report.requests.iter().filter_map(|r| r.adapter).collect();
    assert_eq!(all, (10..15).collect());
    // An engine without adapters refuses requests with adapters.
    let refused = of_classes(Arrivals::Burst { count: 1, over_ns: 0 }, vec![class(small())]);
    let refused = WorkloadConfig { name: "plain".to_owned(), ..refused };
    let report = on_one_engine(vec![workload, refused]);
    assert_eq!((report.metrics.count(Counter::Rejected), report.metrics.count(Counter::Completed)), (60, 1));
}

#[test]
fn adapters_share_no_blocks() {
    let with = |popularity| {
        let mix = RequestMix { shared_prefix_tokens: 320, ..small() };
        let adapters = Some(Adapters { first: 0, popularity });
        let class = RequestClass { adapters, ..class(mix) };
        let input = EngineConfigInput { num_gpu_blocks: 4000, max_loras: 8, ..EngineConfigInput::default() };
        let engine = EngineConfig::new(input).expect("valid").into();
        let engines = PoolConfig { engine, ..pool("engines", 1, 4000, RouterConfig::RoundRobin) };
        let workload = of_classes(Arrivals::Burst { count: 40, over_ns: 10 * S }, vec![class]);
        let report = run(&config(Topology::Aggregated(engines), vec![workload]));
        report.requests.iter().filter(|record| record.cached_tokens == 0).count()
    };
    // Each adapter computes the shared prefix once.
    assert_eq!((with(Weights::zipf(1, 0.0)), with(Weights::zipf(4, 0.0))), (1, 4));
}

#[test]
fn popular_documents_are_found_in_the_cache() {
    let report = |skew: f64| {
        let documents = Documents {
            popularity: Weights::zipf(100, skew),
            tokens: constant(400.0).into(),
            per_question: constant(2.0),
        };
        let mix = RequestMix { documents: Some(documents), ..small() };
        on_one_engine(vec![synthetic("w", Arrivals::Burst { count: 100, over_ns: 20 * S }, mix)])
    };
    let (even, skewed) = (report(0.0), report(2.0));
    assert!(even.requests.iter().all(|record| record.prompt_tokens == 832));
    let cached = |report: &Report| report.metrics.count(Counter::CachedTokens);
    assert!(cached(&skewed) > 2 * cached(&even), "{} and {}", cached(&skewed), cached(&even));
    // A question has each document only once.
    let all =
        Documents { popularity: Weights::zipf(2, 9.0), tokens: constant(400.0).into(), per_question: constant(5.0) };
    let mix = RequestMix { documents: Some(all), ..small() };
    let report = on_one_engine(vec![synthetic("w", Arrivals::Burst { count: 5, over_ns: 0 }, mix)]);
    assert!(report.requests.iter().all(|record| record.prompt_tokens == 832));
}

#[test]
fn stop_tokens_end_outputs_early_and_images_take_their_tokens() {
    let mix = RequestMix {
        stop_after: Some(constant(3.0).into()),
        media: Some(Media { items: constant(2.0), tokens_per_item: 100, distinct: None, in_prompt: true }),
        ..RequestMix::new(constant(32.0), constant(50.0))
    };
    let workload = synthetic("w", Arrivals::Burst { count: 10, over_ns: S }, mix);
    let report = run(&config(Topology::Aggregated(pool("engines", 1, 4000, RouterConfig::RoundRobin)), vec![workload]));
    assert_eq!(report.metrics.count(Counter::Completed), 10);
    assert!(report.requests.iter().all(|r| (r.output_tokens, r.max_tokens, r.prompt_tokens) == (3, 50, 232)));
}

#[test]
fn images_are_computed_once_while_the_encoder_cache_holds_them() {
    let report = |media: Option<Media>| {
        let mix = RequestMix { media, ..RequestMix::new(constant(32.0), constant(5.0)) };
        on_one_engine(vec![synthetic("w", Arrivals::Burst { count: 20, over_ns: S }, mix)])
    };
    let counts = |report: &Report| {
        let counters = [Counter::EncoderItems, Counter::EncoderTokens, Counter::EncoderHits, Counter::EncoderQueries];
        counters.map(|counter| report.metrics.count(counter))
    };
    let media = |distinct| Some(Media { items: constant(2.0), tokens_per_item: 100, distinct, in_prompt: true });
    let [items, tokens, hits, queries] = counts(&report(media(Some(3))));
    assert_eq!((items, tokens), (3, 300));
    assert!(hits > 3 && queries == hits + items, "{hits} and {queries}");
    assert_eq!(counts(&report(media(None))), [40, 4_000, 0, 40]);
    let mix = RequestMix { media: media(None), ..small() };
    let warning = |pool: PoolConfig| {
        let workload = synthetic("w", Arrivals::Burst { count: 1, over_ns: S }, mix.clone());
        config(Topology::Aggregated(pool), vec![workload]).media_warning()
    };
    let vllm = pool("engines", 1, 4000, RouterConfig::RoundRobin);
    let sglang =
        SglangConfig::new(SglangConfigInput { num_pages: 400, ..SglangConfigInput::default() }).expect("valid");
    assert!(
        warning(PoolConfig { engine: sglang.into(), ..vllm.clone() }).is_some_and(|text| text.contains("`engines`"))
    );
    assert_eq!(warning(vllm), None);
    let text = serde_json::to_string(&report(None).metrics).expect("it is JSON");
    assert!(!text.contains(Counter::EncoderItems.info().name), "no images, no such counters");
}

#[test]
fn sessions_have_the_turns_of_their_conversation() {
    let conversations =
        Conversations { turns: vec![vec![(10, 2), (20, 3)], vec![(5, 1)]], prompts: Vec::new(), in_order: true };
    let mix = RequestMix { conversations: Some(conversations.into()), ..small() };
    let report = on_one_engine(vec![synthetic("w", Arrivals::Burst { count: 3, over_ns: 3 * S }, mix)]);
    let rows: Vec<_> = report.requests.iter().map(|r| (r.session, r.turn, r.prompt_tokens, r.max_tokens)).collect();
    assert_eq!(rows, [(0, 0, 10, 2), (0, 1, 32, 3), (1, 0, 5, 1), (2, 0, 10, 2), (2, 1, 32, 3)]);
}
