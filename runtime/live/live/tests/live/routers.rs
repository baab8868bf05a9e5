//! Requests that a router gives to another engine than the one they arrived at.

use std::sync::Mutex;

use vcr_core::route::{Choice, EndedRequest, RouteError, RouteRequest, Router, WorkerLoad};
use vcr_wire::Protocol as _;

use super::*;

#[derive(Default)]
struct Seen {
    queries: Vec<(RouteRequest<'static>, Vec<WorkerLoad>)>,
    ended: Vec<EndedRequest>,
}

/// Chooses engines by a function, and records its inputs.
struct Scripted<F> {
    choose: F,
    seen: Arc<Mutex<Seen>>,
}

impl<F: FnMut(&[WorkerLoad]) -> Choice + Send> Router for Scripted<F> {
    fn route(&mut self, query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        let query = RouteRequest { block_hashes: &[], ..*query };
        self.seen.lock().expect("no holder panicked").queries.push((query, workers.to_vec()));
        Ok((self.choose)(workers))
    }

    fn needs_overlap(&self) -> bool {
        true
    }

    fn needs_ended(&self) -> bool {
        true
    }

    fn ended(&mut self, request: &EndedRequest) {
        self.seen.lock().expect("no holder panicked").ended.push(*request);
    }
}

/// Chooses the last engine that takes requests.
fn last(workers: &[WorkerLoad]) -> Choice {
    Choice::Worker(workers[workers.len() - 1].worker)
}

/// Two engines; `choose` selects one of them for each request.
fn routed(choose: fn(&[WorkerLoad]) -> Choice) -> (LiveConfig, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let of_router = Arc::clone(&seen);
    let mut config = config();
    config.identity.num_ranks = 2;
    config.router = Some(Arc::new(move |_| Ok(Box::new(Scripted { choose, seen: Arc::clone(&of_router) }))));
    (config, seen)
}

/// The engines that the router could choose from at its last query.
fn workers_seen(seen: &Mutex<Seen>) -> Vec<u32> {
    let seen = seen.lock().expect("no holder panicked");
    seen.queries.last().expect("it was asked").1.iter().map(|load| load.worker).collect()
}

impl Bench {
    /// Waits until the router knows all engines.
    fn serving(config: LiveConfig, coordinator: bool) -> Self {
        let bench = Self::with(config, 1, coordinator);
        bench.wait_for_all("they serve", |all| all.iter().all(|one| one.state == EngineState::Serving));
        bench
    }

    /// Waits until `are_so` holds for the snapshots of all engines, and returns the snapshots.
    fn wait_for_all(&self, what: &str, are_so: impl Fn(&[Snapshot]) -> bool) -> Vec<Snapshot> {
        let end = Instant::now() + PATIENCE;
        loop {
            let snapshots = self.handle().snapshots();
            if are_so(&snapshots) {
                return snapshots;
            }
            assert!(Instant::now() < end, "{what}: {snapshots:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The frontend sees the request at the engine to which it was sent.
#[test]
fn another_engine_computes_and_streams_by_the_one_that_was_asked() {
    let (config, seen) = routed(last);
    let bench = Bench::serving(LiveConfig { latency: constant(1_000_000), ..config }, false);
    bench.add("a", &prompt(20), 5);
    let (mut tokens, mut messages) = (0, 0);
    while tokens < 5 {
        let message = bench.next();
        assert_eq!((message.engine_index, message.outputs[0].request_id.as_str()), (0, "a"));
        tokens += message.outputs[0].new_token_ids.len();
        messages += 1;
    }
    assert_eq!(messages, 5, "token by token");
    bench.send_to(1, add("b", &prompt(20), 2));
    assert_eq!(bench.next().engine_index, 1, "what stays where it is goes the short way");
    bench.next();
    let snapshots = bench.wait_for_all("it is counted", |all| {
        all[0].counters.routed_away == 1 && all[1].counters.generation_tokens == 7
    });
    let counts = |snapshot: &Snapshot| {
        let counters = snapshot.counters;
        (counters.requests, counters.generation_tokens, counters.routed, counters.routed_away)
    };
    assert_eq!((counts(&snapshots[0]), counts(&snapshots[1])), ((0, 0, 0, 1), (2, 7, 2, 0)));
    let numbers: Vec<u64> =
        seen.lock().expect("no holder panicked").queries.iter().map(|(query, _)| query.id).collect();
    assert_eq!(numbers, [1, 2]);
}

/// A frontend cannot see which engine computes a request.
#[test]
fn answers_are_the_same_wherever_they_are_computed() {
    let (config, _) = routed(last);
    let all = [Bench::serving(config, false), Bench::new(super::config())].map(|bench| {
        let mut first = request("a", &prompt(40), params(6));
        first.sampling_params.as_mut().expect("it has some").logprobs = Some(2);
        bench.send(Request::Add(Box::new(first)));
        let first = bench.collect(&["a"]).remove(0);
        let wrong = bench.run_refused("long", &prompt(4096));
        (first.tokens, first.outputs.iter().map(|output| output.new_logprobs.is_some()).collect::<Vec<_>>(), wrong)
    });
    assert_eq!(all[0], all[1]);
}

impl Bench {
    /// Sends a request that is refused, and returns the error message.
    fn run_refused(&self, id: &str, prompt: &[u32]) -> String {
        self.add(id, prompt, 5);
        let refused = self.collect(&[id]).remove(0);
        assert_eq!(refused.finish, Some(FinishReason::Error));
        refused.outputs[0].error.clone().expect("it says why").message
    }
}

#[test]
fn an_abort_follows_the_request() {
    let (config, seen) = routed(last);
    let bench = Bench::serving(LiveConfig { latency: constant(2_000_000), ..config }, false);
    bench.add("a", &prompt(20), 2000);
    bench.next();
    bench.send(Request::Abort(vec!["a".to_owned()]));
    let snapshots = bench.wait_for_all("it is aborted", |all| all[1].counters.aborted == 1 && all[1].num_running == 0);
    assert_eq!(snapshots[0].counters.aborted, 0, "it is counted once");
    while bench.frontend.receive(MOMENT).expect("it works").is_some() {}
    bench.add("a", &prompt(20), 3);
    let again = bench.collect(&["a"]).remove(0);
    assert_eq!(again.finish, Some(FinishReason::Length), "the name is free again");
    let seen = seen.lock().expect("no holder panicked");
    let ended = seen.ended.first().expect("the router is notified");
    assert_eq!((ended.id, ended.worker, ended.failed), (1, 1, true));
}

/// Delegated requests count as requests in progress.
#[test]
fn a_second_request_of_a_name_that_is_away_is_dropped() {
    let (config, seen) = routed(last);
    let bench = Bench::serving(LiveConfig { latency: constant(2_000_000), ..config }, false);
    bench.add("a", &prompt(20), 10);
    bench.add("a", &prompt(20), 10);
    assert_eq!(bench.collect(&["a"]).remove(0).tokens.len(), 10);
    bench.wait_for("it was counted", |snapshot| snapshot.counters.malformed == 1);
    assert_eq!(seen.lock().expect("no holder panicked").queries.len(), 1, "the router is not asked twice");
}

#[test]
fn what_the_router_refuses_may_be_tried_again() {
    let (config, _) = routed(|_| Choice::Refuse);
    let bench = Bench::serving(config, false);
    bench.add("a", &prompt(20), 5);
    let refused = bench.collect(&["a"]).remove(0);
    assert_eq!(refused.finish, Some(FinishReason::Error));
    let error = refused.outputs[0].error.clone().expect("it says why");
    assert_eq!((error.code.as_str(), error.retryable), ("overloaded", true));
    let counters = bench.wait_for("it is counted", |snapshot| snapshot.counters.shed == 1).counters;
    assert_eq!((counters.requests, counters.refused), (0, 1));
}

/// The router sees the current caches and the requests in transit.
#[test]
fn the_router_knows_caches_and_loads() {
    let (config, seen) = routed(last);
    let bench = Bench::serving(config, false);
    let overlaps = || -> Vec<u32> {
        let seen = seen.lock().expect("no holder panicked");
        seen.queries.last().expect("it was asked").1.iter().map(|load| load.cached_prompt_blocks).collect()
    };
    bench.run("a", &prompt(100), 1);
    assert_eq!(overlaps(), [0, 0]);
    bench.run("b", &prompt(100), 1);
    assert_eq!(overlaps(), [0, 6], "of blocks of 16 tokens");
    bench.run("c", &prompt(40), 1);
    assert_eq!(overlaps(), [0, 2]);
    let reset = UtilityCall {
        client_index: 0,
        call_id: Integer::from(7u64),
        method: "reset_prefix_cache".to_owned(),
        args: vec![true.into()],
    };
    bench.send_to(1, Request::Utility(reset));
    assert_eq!(bench.answer(), Ok(true.into()));
    bench.run("d", &prompt(100), 1);
    assert_eq!(overlaps(), [0, 0]);
    let seen = seen.lock().expect("no holder panicked");
    let (query, loads) = &seen.queries[1];
    assert_eq!((query.prompt_tokens, query.max_tokens, query.block_size_tokens), (100, 1, 16));
    assert_eq!((loads[0].max_running_requests, loads[1].worker), (256, 1));
}

#[test]
fn the_router_knows_the_last_step_and_requests_whose_kv_is_on_its_way() {
    let (mut config, seen) = routed(last);
    config.latency = constant(3_000_000);
    config.transfer.latency_ns = 3_600_000_000_000;
    let bench = Bench::serving(config, false);
    bench.run("a", &prompt(20), 1);
    bench.wait_for_all("its step is known", |all| all[1].counters.generation_tokens == 1);
    bench.send(transfer::with_kv("loads", &prompt(100), 2, transfer::remote(1, "x")));
    bench.wait_for_all("it waits for its KV", |all| all[1].num_waiting == 1 && all[1].kv_cache_usage > 0.0);
    bench.run("b", &prompt(20), 1);
    bench.send(Request::Abort(vec!["loads".to_owned()]));
    let seen = seen.lock().expect("no holder panicked");
    let loads: Vec<[u32; 2]> =
        seen.queries.iter().map(|(_, loads)| [0, 1].map(|index| loads[index].loading_requests)).collect();
    assert_eq!(loads, [[0, 0], [0, 0], [0, 1]]);
    let steps: Vec<[bool; 2]> =
        seen.queries.iter().map(|(_, loads)| [0, 1].map(|index| loads[index].last_step_ns >= 3_000_000)).collect();
    assert_eq!(steps, [[false, false], [false, true], [false, true]]);
}

#[test]
fn requests_on_their_way_count_as_waiting() {
    let (config, seen) = routed(last);
    let bench = Bench::serving(LiveConfig { latency: constant(50_000_000), ..config }, false);
    let ids = ["a", "b", "c", "d"];
    for id in ids {
        bench.add(id, &prompt(20), 1);
    }
    bench.collect(&ids);
    let seen = seen.lock().expect("no holder panicked");
    let requests: Vec<u32> =
        seen.queries.iter().map(|(_, loads)| loads[1].running_requests + loads[1].waiting_requests).collect();
    assert_eq!(requests, [0, 1, 2, 3]);
}

/// A request on a lost engine fails with that reason, and the engine gets no further requests.
#[test]
fn an_engine_that_is_gone_gets_nothing() {
    let (config, seen) = routed(last);
    let bench = Bench::serving(LiveConfig { latency: constant(2_000_000), ..config }, false);
    bench.add("a", &prompt(20), 2000);
    bench.next();
    let crash: FaultRule = "crash:at=1ms".parse().expect("it is a fault");
    bench.handle().command(Some(1), &Command::AddFault(crash));
    let lost = bench.collect(&["a"]).remove(0);
    assert_eq!(lost.finish, Some(FinishReason::Error));
    let error = lost.outputs.last().and_then(|output| output.error.clone()).expect("it says why");
    assert_eq!((error.code.as_str(), error.retryable), ("engine_lost", true));
    assert!(error.message.contains("engine 1"), "{}", error.message);
    assert_eq!(bench.run("b", &prompt(20), 3).len(), 3);
    assert_eq!(workers_seen(&seen), [0]);
}

#[test]
fn an_engine_that_is_paused_gets_nothing_until_it_goes_on() {
    let (config, seen) = routed(last);
    let bench = Bench::serving(config, false);
    bench.handle().command(Some(1), &Command::SetPaused(true));
    bench.wait_for_all("it is paused", |all| all[1].is_paused);
    assert_eq!(bench.run("a", &prompt(20), 2).len(), 2);
    assert_eq!(workers_seen(&seen), [0]);
    bench.handle().command(Some(1), &Command::SetPaused(false));
    bench.wait_for_all("it goes on", |all| !all[1].is_paused);
    assert_eq!(bench.run("b", &prompt(20), 2).len(), 2);
    assert_eq!(workers_seen(&seen), [0, 1]);
}

/// The router is not asked if no engine can be chosen. The request waits where it arrived.
#[test]
fn where_all_are_paused_requests_wait_where_they_came_to() {
    let (config, seen) = routed(last);
    let bench = Bench::serving(config, false);
    bench.handle().command(None, &Command::SetPaused(true));
    bench.wait_for_all("they are paused", |all| all.iter().all(|one| one.is_paused));
    bench.add("a", &prompt(20), 2);
    bench.wait_for("it waits", |snapshot| snapshot.num_waiting == 1);
    bench.handle().command(None, &Command::SetPaused(false));
    assert_eq!(bench.collect(&["a"]).remove(0).tokens.len(), 2);
    assert!(seen.lock().expect("no holder panicked").queries.is_empty());
}

#[test]
fn engines_that_are_stopped_abort_what_is_away() {
    let (config, _) = routed(last);
    let bench = Bench::serving(LiveConfig { latency: constant(2_000_000), ..config }, false);
    bench.add("a", &prompt(20), 2000);
    bench.next();
    bench.handle().shut_down();
    assert_eq!(bench.collect(&["a"]).remove(0).finish, Some(FinishReason::Abort));
    bench.stop().expect("they end well");
}

/// No request waits for removed engines, and the next frontend sees all engines as new.
#[test]
fn a_frontend_that_comes_back_finds_nothing_of_the_one_before() {
    let folder = tempfile::tempdir().expect("there is room");
    let (mut config, _) = routed(last);
    config.identity.handshake_address = ipc(folder.path(), "handshake");
    config.latency = constant(1_000_000);
    let engines = LiveEngines::start(config).expect("threads start");
    let rules = VllmMinor::V0_33.rules();
    for life in ["first", "second"] {
        let frontend = listen(folder.path(), life, 2).accept(PATIENCE).expect("the engines come");
        for (rank, id) in [(0, "a"), (1, "b")] {
            frontend.send(0, rank, &add(id, &prompt(20), 4000), &[], rules).expect("it is sent");
        }
        let mut seen = [false; 2];
        while seen != [true; 2] {
            let message = frontend.receive(PATIENCE).expect("it works").expect("it comes");
            let EngineMessage::Outputs(outputs) = message.decode().expect("it is a message") else { panic!("dead") };
            for output in &outputs.outputs {
                assert_eq!((output.error.as_ref(), output.finish_reason), (None, None));
                seen[usize::from(output.request_id == "b")] = true;
            }
        }
        drop(frontend);
        let lives = if life == "first" { 1 } else { 2 };
        let end = Instant::now() + PATIENCE;
        let is_idle = |one: &Snapshot| one.counters.frontends_lost == lives && one.state == EngineState::Connecting;
        while !engines.handle().snapshots().iter().all(is_idle) {
            assert!(Instant::now() < end, "{:?}", engines.handle().snapshots());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    engines.handle().shut_down();
    engines.wait().expect("they end well");
}

/// A router that fails ends all engines, as a failed latency model does.
#[test]
fn a_router_that_fails_ends_the_engines() {
    struct Failing;
    impl Router for Failing {
        fn route(&mut self, _query: &RouteRequest<'_>, _workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
            Err(RouteError { router: "failing".to_owned(), reason: "it never works".to_owned() })
        }
    }
    let (mut config, _) = routed(last);
    config.router = Some(Arc::new(|_| Ok(Box::new(Failing))));
    let mut bench = Bench::serving(config, false);
    bench.add("a", &prompt(20), 5);
    let error = bench.engines.take().expect("they run").wait().expect_err("it has failed");
    assert_eq!(error.to_string(), "router `failing` failed: it never works");
}

/// With a coordinator: the computing engine reports the counts and the waves.
#[test]
fn waves_belong_to_the_engine_that_computes() {
    let (config, _) = routed(last);
    let bench = Bench::serving(config, true);
    bench.add("a", &prompt(20), 3);
    assert_eq!(bench.collect(&["a"]).remove(0).tokens.len(), 3);
    let end = Instant::now() + PATIENCE;
    let (mut started, mut completed) = (None, None);
    while started.is_none() || completed.is_none() {
        assert!(Instant::now() < end, "{started:?} {completed:?}");
        let Some(message) = bench.frontend.receive_as_coordinator(PATIENCE).expect("it works") else { continue };
        started = started.or(message.start_wave.map(|wave| (message.engine_index, wave)));
        completed = completed.or(message.wave_complete.map(|wave| (message.engine_index, wave)));
    }
    assert_eq!((started, completed), (Some((1, 0)), Some((1, 0))));
}
