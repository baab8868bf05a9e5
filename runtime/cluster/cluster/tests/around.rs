//! Tests of native routers that refuse and fail, of failure injectors and of token sources.

use std::sync::{Arc, Mutex};

use crate::support::{
    MS, assert_conserved, config, constant, engine, linear, linear_in_batches, link, mix, pool, run, synthetic,
};
use vcr_cluster::metrics::Counter;
use vcr_cluster::observe::Unobserved;
use vcr_cluster::record::{FailReason, Outcome};
use vcr_cluster::{
    Arrivals, Choice, EndedRequest, InjectorFactory, LatencyFactory, LinkSharing, PoolConfig, RequestMix, RouteError,
    RouteRequest, Router, RouterConfig, RouterFactory, RunConfig, TokenConfig, Topology, WorkerLoad, WorkloadConfig,
    simulate,
};
use vcr_core::fault::{FailureInjector, FaultAction, FaultBatch, FaultError, FaultEvent};
use vcr_core::tokens::{
    AcceptedDrafts, BatchTokenSource, TokenAnswer, TokenError, TokenRefusal, TokenRequest, TokenWant,
};

/// Requests of one size that all arrive at once.
fn burst(name: &str, count: u64, prompt_tokens: u32, output_tokens: u32) -> WorkloadConfig {
    let sizes = RequestMix {
        prompt_tokens: constant(prompt_tokens.into()).into(),
        output_tokens: constant(output_tokens.into()).into(),
        ..mix(1.0, 1.0)
    };
    synthetic(name, Arrivals::Burst { count, over_ns: 0 }, sizes)
}

fn one_pool(pool: PoolConfig) -> RunConfig {
    config(Topology::Aggregated(pool), vec![burst("work", 40, 64, 20)])
}

/// A router that answers by a function, and logs the ends of requests.
struct Scripted<F> {
    answer: F,
    log: Arc<Mutex<Vec<EndedRequest>>>,
}

impl<F: FnMut(&RouteRequest<'_>, &[WorkerLoad]) -> Choice + Send> Router for Scripted<F> {
    fn route(&mut self, query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        Ok((self.answer)(query, workers))
    }

    fn needs_ended(&self) -> bool {
        true
    }

    fn ended(&mut self, request: &EndedRequest) {
        self.log.lock().expect("no holder panicked").push(*request);
    }
}

type EndedLog = Arc<Mutex<Vec<EndedRequest>>>;

fn scripted<F>(answer: F) -> (RouterConfig, EndedLog)
where
    F: FnMut(&RouteRequest<'_>, &[WorkerLoad]) -> Choice + Clone + Send + Sync + 'static,
{
    let log = EndedLog::default();
    let of_router = Arc::clone(&log);
    let factory: RouterFactory =
        Arc::new(move |_seed| Ok(Box::new(Scripted { answer: answer.clone(), log: Arc::clone(&of_router) })));
    (RouterConfig::Made(factory), log)
}

#[test]
fn shed_requests_are_counted_apart_and_nothing_is_lost() {
    let (router, log) =
        scripted(|query, _| if query.id.is_multiple_of(4) { Choice::Refuse } else { Choice::Worker(1) });
    let report = run(&one_pool(pool("engines", 2, 2000, router)));
    assert_conserved(&report);
    assert_eq!((report.metrics.count(Counter::Shed), report.metrics.count(Counter::Completed)), (10, 30));
    let shed = report.requests.iter().filter(|record| record.outcome == Outcome::Shed);
    assert!(shed.clone().all(|record| record.prefill_worker.is_none() && record.end_ns == Some(record.arrival_ns)));
    assert_eq!(shed.count(), 10);
    let log = log.lock().expect("no holder panicked");
    assert_eq!(log.len(), 30, "the router is not notified of requests that it refused");
    assert!(log.iter().all(|ended| ended.worker == 1 && ended.output_tokens == 20 && !ended.failed));
    let ttfts = report.requests.iter().filter(|record| record.outcome == Outcome::Completed);
    let ttfts: Vec<Option<u64>> = ttfts.map(|record| Some(record.prefill_end_ns? - record.arrival_ns)).collect();
    assert!(log.iter().all(|ended| ended.ttft_ns.is_some() && ttfts.contains(&ended.ttft_ns)));
}

#[test]
fn both_routers_of_a_split_cluster_hear_of_ends_and_only_the_first_may_refuse() {
    let (prefill, told_prefill) = scripted(|query, _| {
        assert!(query.may_refuse);
        Choice::Worker(0)
    });
    let (decode, told_decode) = scripted(|query, workers| {
        assert!(!query.may_refuse && query.block_hashes.len() == 4 && query.prompt_tokens == 64);
        Choice::Worker(workers[query.id as usize % workers.len()].worker)
    });
    let topology = |decode| Topology::Disaggregated {
        prefill: pool("prefill", 2, 2000, prefill.clone()),
        decode: pool("decode", 2, 2000, decode),
        link: link(None, LinkSharing::Shared),
        conditional: None,
    };
    let report = run(&config(topology(decode), vec![burst("work", 10, 64, 20)]));
    assert_conserved(&report);
    let workers =
        |log: &EndedLog| log.lock().expect("no holder panicked").iter().map(|ended| ended.worker).collect::<Vec<_>>();
    assert_eq!(workers(&told_prefill), [0; 10]);
    let mut of_decode = workers(&told_decode);
    of_decode.sort_unstable();
    assert_eq!(of_decode, [[0; 5], [1; 5]].concat());

    let (refusing, _) = scripted(|_, _| Choice::Refuse);
    let failed = simulate(config(topology(refusing), vec![burst("work", 10, 64, 20)]), &mut Unobserved);
    let text = failed.expect_err("a prompt was computed for it").to_string();
    assert!(text.contains("it refused a request that has been with an engine before"), "{text}");
    assert!(text.contains("for request 0, in front of pool `decode`, at "), "{text}");
}

#[test]
fn a_choice_of_no_engine_and_an_error_end_the_run_and_name_the_pool() {
    let (far, _) = scripted(|_, _| Choice::Worker(2));
    let failed = simulate(one_pool(pool("engines", 2, 2000, far)), &mut Unobserved);
    let text = failed.expect_err("there are two engines").to_string();
    assert_eq!(
        text,
        "router `router` failed: it chose the engine 2, which is not up (for request 0, in front of pool `engines`, at 0 ms \
         of virtual time)"
    );
    let unmade: RouterFactory =
        Arc::new(|_seed| Err(RouteError { router: "mine".to_owned(), reason: "no reason".to_owned() }));
    let failed = simulate(one_pool(pool("engines", 2, 2000, RouterConfig::Made(unmade))), &mut Unobserved);
    let text = failed.expect_err("it cannot be made").to_string();
    assert_eq!(
        text,
        "router `mine` failed: no reason (when it was made, in front of pool `engines`, at 0 ms of virtual time)"
    );
}

/// An injector that answers each call by a function.
struct Planned(fn(&FaultBatch<'_>) -> Vec<FaultAction>);

impl FailureInjector for Planned {
    fn decide(&mut self, batch: &FaultBatch<'_>, actions: &mut Vec<FaultAction>) -> Result<(), FaultError> {
        actions.extend(self.0(batch));
        Ok(())
    }
}

fn failing(plan: fn(&FaultBatch<'_>) -> Vec<FaultAction>) -> PoolConfig {
    let factory: InjectorFactory = Arc::new(move |_seed| Ok(Box::new(Planned(plan))));
    PoolConfig { failures: Some(factory), ..pool("engines", 2, 2000, RouterConfig::RoundRobin) }
}

#[test]
fn an_injector_that_does_nothing_changes_nothing() {
    let plain = run(&one_pool(pool("engines", 2, 2000, RouterConfig::RoundRobin)));
    for latency in [linear(), linear_in_batches()] {
        let watched = run(&one_pool(PoolConfig { latency, ..failing(|_| Vec::new()) }));
        assert_eq!(watched.fingerprint, plain.fingerprint);
    }
}

#[test]
fn injected_failures_end_requests_for_good() {
    let plan = |batch: &FaultBatch<'_>| {
        let failed = batch.events.iter().filter_map(|event| match *event {
            FaultEvent::Emitted { slot, output_tokens: 5 } if slot < 3 => Some(FaultAction::FailRequest { slot }),
            _ => None,
        });
        failed.collect()
    };
    for latency in [linear(), linear_in_batches()] {
        let report = run(&RunConfig { max_retries: 3, ..one_pool(PoolConfig { latency, ..failing(plan) }) });
        assert_conserved(&report);
        let failed: Vec<_> =
            report.requests.iter().filter(|r| r.outcome == Outcome::Failed(FailReason::Injected)).collect();
        assert!(failed.len() >= 6, "three slots of each engine at least, not {}", failed.len());
        assert!(failed.iter().all(|record| record.output_tokens == 5 && record.retries == 0));
        assert_eq!(report.metrics.count(Counter::WastedTokens), 5 * failed.len() as u64);
        assert_eq!(report.metrics.failures["a failure was injected"], failed.len() as u64);
    }
}

#[test]
fn a_stalled_engine_does_nothing_until_it_is_over() {
    let stall = |batch: &FaultBatch<'_>| {
        if batch.step == 3 { vec![FaultAction::Stall { duration_ns: 500 * MS }] } else { vec![] }
    };
    let plain = run(&one_pool(pool("engines", 2, 2000, RouterConfig::RoundRobin)));
    let report = run(&one_pool(failing(stall)));
    assert_conserved(&report);
    assert_eq!(report.metrics.count(Counter::Stalls), 2);
    assert_eq!(report.metrics.count(Counter::Completed), 40);
    assert_eq!(report.duration_ms, plain.duration_ms + 500.0);
    assert_eq!(report.metrics.count(Counter::Steps), plain.metrics.count(Counter::Steps));
    let of_workload = serde_json::to_string(&report.workloads["work"]).expect("a report is JSON");
    assert!(!of_workload.contains(Counter::Stalls.info().name), "engines serve all workloads together");
}

#[test]
fn an_injected_crash_is_a_crash_and_happens_once() {
    let crash = |batch: &FaultBatch<'_>| match batch.step {
        4 => vec![
            FaultAction::Crash { restart_after_ns: Some(50 * MS) },
            FaultAction::Stall { duration_ns: MS },
            FaultAction::DropMessage,
        ],
        _ => Vec::new(),
    };
    let lost = run(&one_pool(failing(crash)));
    assert_conserved(&lost);
    assert_eq!(lost.engines.iter().map(|engine| engine.crashes).collect::<Vec<_>>(), [1, 1]);
    assert!(lost.metrics.failures.contains_key("the engine crashed"), "{:?}", lost.metrics.failures);
    assert_eq!(lost.metrics.count(Counter::IgnoredFaults), 4, "a stall of what is dead and a message, twice");
    let again = run(&RunConfig { max_retries: 2, ..one_pool(failing(crash)) });
    assert_conserved(&again);
    assert_eq!(again.metrics.count(Counter::Completed), 40);
}

#[test]
fn an_injector_that_fails_ends_the_run_and_is_named() {
    struct Broken;
    impl FailureInjector for Broken {
        fn decide(&mut self, _: &FaultBatch<'_>, _: &mut Vec<FaultAction>) -> Result<(), FaultError> {
            Err(FaultError { injector: "broken".to_owned(), reason: "it is".to_owned() })
        }
    }
    let factory: InjectorFactory = Arc::new(|_seed| Ok(Box::new(Broken)));
    let failed = simulate(
        one_pool(PoolConfig { failures: Some(factory), ..pool("engines", 1, 2000, RouterConfig::RoundRobin) }),
        &mut Unobserved,
    );
    let text = failed.expect_err("it fails").to_string();
    assert!(text.starts_with("failure injector `broken` failed: it is (engine 0 of pool `engines`, at "), "{text}");
}

const EOS: u32 = 7;

/// A token source that ends each output after the number of tokens given by its prompt's first token.
#[derive(Default)]
struct Ending(Vec<u32>);

impl BatchTokenSource for Ending {
    fn step(
        &mut self,
        started: &[TokenRequest<'_>],
        _ended: &[u32],
        wants: &[TokenWant],
        answer: &mut TokenAnswer,
    ) -> Result<(), TokenError> {
        for request in started {
            assert_eq!((request.prompt.len(), request.eos_token, request.max_tokens), (64, Some(EOS), 20));
            self.0.resize(self.0.len().max(request.slot as usize + 1), 0);
            self.0[request.slot as usize] = request.prompt[0] % 10;
        }
        for want in wants {
            let end = self.0[want.slot as usize];
            let indices = want.first_index..want.first_index + want.count;
            answer.tokens.extend(indices.map(|index| if index == end { EOS } else { 1_000 + index }));
        }
        Ok(())
    }
}

fn ending(latency: LatencyFactory, async_scheduling: bool) -> PoolConfig {
    let tokens = TokenConfig { source: Arc::new(|_seed| Ok(Box::<Ending>::default())), eos_token: Some(EOS) };
    let plain = pool("engines", 2, 2000, RouterConfig::RoundRobin);
    let input = vcr_core::EngineConfigInput { async_scheduling, ..engine_input() };
    let engine = vcr_core::EngineConfig::new(input).expect("a valid engine").into();
    PoolConfig { tokens: Some(tokens), latency, engine, ..plain }
}

/// A token source that refuses the second request of its engine.
struct Refusing(Ending);

impl BatchTokenSource for Refusing {
    fn step(
        &mut self,
        started: &[TokenRequest<'_>],
        ended: &[u32],
        wants: &[TokenWant],
        answer: &mut TokenAnswer,
    ) -> Result<(), TokenError> {
        let refusal = |slot| TokenRefusal { slot, source: "picky".to_owned(), reason: "it is odd".to_owned() };
        let odd = started.iter().map(|request| request.slot).filter(|slot| *slot == 1);
        answer.refusals.extend(odd.map(refusal));
        self.0.step(started, ended, wants, answer)
    }
}

#[test]
fn a_refused_request_ends_the_run_and_is_named() {
    let source: vcr_cluster::TokenFactory = Arc::new(|_seed| Ok(Box::new(Refusing(Ending::default()))));
    let tokens = TokenConfig { source, eos_token: Some(EOS) };
    let pool = PoolConfig { tokens: Some(tokens), ..pool("engines", 2, 2000, RouterConfig::RoundRobin) };
    let text = simulate(one_pool(pool), &mut Unobserved).expect_err("there is no retry").to_string();
    // Engine 0 serves requests 0, 2 and so on.
    let expected = "token source `picky` failed: it refused request 2: it is odd (engine 0 of pool `engines`, at ";
    assert!(text.starts_with(expected), "{text}");
}

/// A token source that accepts two drafts of the first of `every` requests, and never ends an output.
struct Accepting {
    every: Option<u32>,
    seen: u32,
}

impl BatchTokenSource for Accepting {
    fn step(
        &mut self,
        started: &[TokenRequest<'_>],
        _ended: &[u32],
        wants: &[TokenWant],
        answer: &mut TokenAnswer,
    ) -> Result<(), TokenError> {
        for request in started {
            if self.every.is_some_and(|every| self.seen.is_multiple_of(every)) {
                answer.accepted_drafts.push(AcceptedDrafts { slot: request.slot, count: 2 });
            }
            self.seen += 1;
        }
        answer.tokens.extend(wants.iter().flat_map(|want| std::iter::repeat_n(1, want.count as usize)));
        Ok(())
    }
}

#[test]
fn a_token_source_decides_how_many_drafts_of_a_request_are_accepted() {
    // Returns the ends of requests when two run at a time.
    let ends = |every: Option<u32>, acceptance_rates: &[f64], async_scheduling: bool| {
        let source: vcr_cluster::TokenFactory = Arc::new(move |_seed| Ok(Box::new(Accepting { every, seen: 0 })));
        let tokens = TokenConfig { source, eos_token: None };
        let input = vcr_core::EngineConfigInput {
            num_speculative_tokens: 3,
            drafter: vcr_core::Drafter::Eagle,
            max_num_seqs: 2,
            async_scheduling,
            ..engine_input()
        };
        let engine = vcr_core::EngineConfig::new(input).expect("a valid engine").into();
        let acceptance_rates = acceptance_rates.to_vec();
        let plain = pool("engines", 1, 2000, RouterConfig::RoundRobin);
        let report = run(&one_pool(PoolConfig { tokens: Some(tokens), engine, acceptance_rates, ..plain }));
        assert_eq!(report.metrics.count(Counter::Completed), 40);
        report.requests.iter().map(|record| record.last_token_ns).collect::<Vec<_>>()
    };
    for is_async in [false, true] {
        let two = ends(None, &[1.0, 1.0], is_async);
        assert_eq!(ends(Some(1), &[0.0], is_async), two, "the source decides, and no rate");
        let one = ends(None, &[1.0], is_async);
        assert_ne!(one, two);
        // Of two requests that start together, the first ends earlier. The acceptance rates apply to the other.
        let mixed = ends(Some(2), &[1.0], is_async);
        assert!(mixed[0] < mixed[1] && one[0] == one[1], "{mixed:?}");
    }
}

fn engine_input() -> vcr_core::EngineConfigInput {
    let small = engine(2000);
    vcr_core::EngineConfigInput {
        num_gpu_blocks: small.num_gpu_blocks(),
        max_num_batched_tokens: small.max_num_batched_tokens(),
        max_num_seqs: small.max_num_seqs(),
        ..vcr_core::EngineConfigInput::default()
    }
}

#[test]
fn a_token_source_decides_how_long_outputs_are() {
    let lengths = |latency, async_scheduling| {
        let report = run(&one_pool(ending(latency, async_scheduling)));
        assert_eq!(report.metrics.count(Counter::Completed), 40);
        report.requests.iter().map(|record| record.output_tokens).collect::<Vec<_>>()
    };
    let expected = lengths(linear(), false);
    assert!(expected.iter().all(|length| (1..=10).contains(length)), "{expected:?}");
    assert!(expected.iter().any(|length| *length != expected[0]), "prompts differ");
    assert_eq!(lengths(linear_in_batches(), false), expected);
    assert_eq!(lengths(linear(), true), expected, "steps decided in advance give no request more");
}

#[test]
fn tokens_of_a_prefill_pool_are_refused() {
    let prefill = PoolConfig { name: "prefill".to_owned(), ..ending(linear(), false) };
    let topology = Topology::Disaggregated {
        prefill,
        decode: pool("decode", 2, 2000, RouterConfig::RoundRobin),
        link: link(None, LinkSharing::Shared),
        conditional: None,
    };
    let failed = simulate(config(topology, vec![burst("work", 4, 64, 20)]), &mut Unobserved);
    let text = failed.expect_err("it is no use").to_string();
    assert!(text.starts_with("pool `prefill`: `tokens` belongs to the decode pool"), "{text}");
}
