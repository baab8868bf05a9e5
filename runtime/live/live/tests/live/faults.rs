//! Injected faults.

use super::*;

fn with(faults: &[&str]) -> LiveConfig {
    LiveConfig { faults: faults.iter().map(|fault| fault.parse().expect("it is a fault")).collect(), ..config() }
}

#[test]
fn requests_fail_at_once_or_in_the_middle() {
    let bench =
        Bench::new(with(&["error:request=early", "error:request=later,after=3", "error:request=cut,reason=length"]));
    for (id, tokens, finish) in
        [("early", 1, FinishReason::Error), ("later", 3, FinishReason::Error), ("cut", 1, FinishReason::Length)]
    {
        bench.add(id, &prompt(20), 10);
        let one = bench.collect(&[id]).remove(0);
        assert_eq!((one.tokens.len(), one.finish), (tokens, Some(finish)), "{id}");
    }
    assert_eq!(bench.run("good", &prompt(20), 10).len(), 10);
    let snapshot = bench.wait_for("they are counted", |snapshot| snapshot.counters.faults == 3);
    assert_eq!((snapshot.num_running, snapshot.kv_cache_usage), (0, 0.0), "failed requests leave nothing behind");
}

#[test]
fn a_stalled_engine_goes_on_where_it_stood() {
    let bench = Bench::new(with(&["stall:for=300ms,request=a,after=2"]));
    let began = Instant::now();
    let text = bench.run("a", &prompt(20), 5);
    assert_eq!(text.len(), 5);
    assert!(began.elapsed() >= Duration::from_millis(300));
}

#[test]
fn a_dying_engine_says_so_and_may_come_back() {
    let bench = Bench::new(with(&["dead:request=killer,after=1"]));
    bench.add("killer", &prompt(20), 10);
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < end, "it never said so");
        let message = bench.frontend.receive(PATIENCE).expect("it works").expect("it comes");
        if message.decode() == Ok(EngineMessage::Dead) {
            break;
        }
    }
    bench.wait_for("it is gone", |snapshot| snapshot.state == EngineState::Crashed);
    bench.nothing_comes();

    let bench = Bench::new(with(&["crash:request=killer,restart=10ms"]));
    bench.add("killer", &prompt(20), 10);
    bench.wait_for("it waits for a new frontend", |snapshot| snapshot.state == EngineState::Connecting);
}

#[test]
fn messages_are_dropped_doubled_and_late() {
    let bench = Bench::new(with(&["drop:count=1", "duplicate:nth=2,count=1"]));
    bench.add("a", &prompt(20), 5);
    let one = bench.collect(&["a"]).remove(0);
    let text = Bench::new(config()).run("a", &prompt(20), 5);
    assert_eq!(one.tokens, [&text[1..2], &text[1..5]].concat(), "the first is lost, the second comes twice");

    let in_order_of_coming = |fault: &str| {
        let bench = Bench::new(with(&[fault]));
        bench.add("a", &prompt(20), 5);
        let mut outputs: Vec<EngineCoreOutput> = Vec::new();
        while outputs.len() < 5 {
            outputs.extend(bench.next().outputs);
        }
        let last = outputs.iter().position(|output| output.finish_reason.is_some());
        (outputs.into_iter().flat_map(|output| output.new_token_ids).collect::<Vec<_>>(), last)
    };
    assert_eq!(in_order_of_coming("late:by=200ms,nth=2,count=1"), (text.clone(), Some(4)), "the order stays");
    let overtaken = [text[0], text[2], text[3], text[4], text[1]];
    assert_eq!(in_order_of_coming("reorder:by=200ms,nth=2,count=1"), (overtaken.to_vec(), Some(3)));
}

/// Two frames of one output have different times, so the test undoes the fault at every offset in turn: the message
/// is intact at exactly one of them.
#[test]
fn a_corrupt_message_differs_in_one_byte() {
    // With this seed, the fault does not change a byte of a time.
    let first_frame = |config| {
        let bench = Bench::new(LiveConfig { seed: 1, ..config });
        bench.add("a", &prompt(20), 1);
        bench.frontend.receive(PATIENCE).expect("it works").expect("it comes")
    };
    let without_times = |message: &FrontendMessage| match message.decode() {
        Ok(EngineMessage::Outputs(mut outputs)) => {
            outputs.timestamp = 0.0;
            outputs
                .outputs
                .iter_mut()
                .flat_map(|output| output.events.iter_mut().flatten())
                .for_each(|event| event.timestamp = 0.0);
            Some(outputs)
        }
        _ => None,
    };
    let whole = without_times(&first_frame(config()));
    assert!(whole.is_some());
    let mut corrupt = first_frame(with(&["corrupt:count=1"]));
    assert_ne!(without_times(&corrupt), whole);
    let mut restores = Vec::new();
    for place in 0..corrupt.frames[0].len() {
        corrupt.frames[0][place] ^= 0x55;
        if without_times(&corrupt) == whole {
            restores.push(place);
        }
        corrupt.frames[0][place] ^= 0x55;
    }
    assert_eq!(restores.len(), 1, "{restores:?}");
}

/// Ends outside of a step, and answers to utility calls, use the same connection.
#[test]
fn nothing_overtakes_a_late_message() {
    let bench = Bench::new(with(&["late:by=300ms,count=1"]));
    bench.add("a", &prompt(20), 1);
    bench.wait_for("it has ended in the engine", |snapshot| snapshot.counters.generation_tokens == 1);
    bench.send(Request::Add(Box::new(EngineCoreRequest {
        prompt_embeds: Some(Tensor::of_f32(&[1], [0.0])),
        ..request("refused", &prompt(20), params(1))
    })));
    let call_id = Integer::from(7u64);
    let method = "is_sleeping".to_owned();
    bench.send(Request::Utility(UtilityCall { client_index: 0, call_id, method, args: Vec::new() }));
    let ids = |outputs: EngineCoreOutputs| outputs.outputs.into_iter().map(|output| output.request_id);
    let order: Vec<String> = [bench.next(), bench.next()].into_iter().flat_map(ids).collect();
    assert_eq!(order, ["a", "refused"]);
    assert_eq!(bench.answer(), Ok(false.into()));
}

#[test]
fn a_slow_socket_and_a_slow_start_take_their_time() {
    let began = Instant::now();
    let bench = Bench::new(with(&["slow-start:by=200ms", "slow-socket:bandwidth=10kB/s"]));
    assert!(began.elapsed() >= Duration::from_millis(200));
    let began = Instant::now();
    assert_eq!(bench.run("a", &prompt(20), 5).len(), 5);
    // Five messages of some 500 bytes each.
    assert!(began.elapsed() >= Duration::from_millis(100), "{:?}", began.elapsed());
}

#[test]
fn utility_calls_fail_by_name() {
    let bench = Bench::new(with(&["utility-failure:method=sleep"]));
    assert!(bench.call("sleep", vec![]).unwrap_err().starts_with("Call to sleep method failed"));
    assert_eq!(bench.call("is_sleeping", vec![]), Ok(false.into()));
}

#[test]
fn faults_and_times_change_while_it_runs() {
    let bench = Bench::new(config());
    let handle = bench.handle();
    assert!(handle.command(None, &Command::AddFault("error".parse().expect("it is a fault"))));
    bench.wait_for("it is in force", |snapshot| snapshot.faults == ["error"]);
    bench.add("a", &prompt(20), 5);
    assert_eq!(bench.collect(&["a"]).remove(0).finish, Some(FinishReason::Error));
    assert!(handle.command(Some(0), &Command::ClearFaults));
    bench.wait_for("it is over", |snapshot| snapshot.faults.is_empty());
    assert_eq!(bench.run("b", &prompt(20), 5).len(), 5);
    assert!(!handle.command(Some(9), &Command::ClearFaults), "there is no engine 9");

    let slow = Command::SetLatency { factory: constant(50_000_000), name: "slow".to_owned() };
    handle.command(None, &slow);
    bench.wait_for("it is in force", |snapshot| snapshot.latency == "slow");
    let began = Instant::now();
    bench.run("c", &prompt(20), 4);
    assert!(began.elapsed() >= Duration::from_millis(200));
    handle.command(None, &Command::SetTimeScale(1000.0));
    bench.wait_for("it is in force", |snapshot| snapshot.time_scale == 1000.0);
    bench.run("d", &prompt(20), 400);

    handle.command(None, &Command::SetPaused(true));
    bench.wait_for("it is paused", |snapshot| snapshot.is_paused);
    bench.add("e", &prompt(20), 2);
    bench.nothing_comes();
    handle.command(None, &Command::SetPaused(false));
    assert_eq!(bench.collect(&["e"]).remove(0).tokens.len(), 2);
}

#[test]
fn an_injector_decides_by_what_it_hears() {
    use vcr_core::fault::{FailureInjector, FaultAction, FaultBatch, FaultError, FaultEvent};
    struct FailsAfter(u32);
    impl FailureInjector for FailsAfter {
        fn decide(&mut self, batch: &FaultBatch<'_>, actions: &mut Vec<FaultAction>) -> Result<(), FaultError> {
            for event in batch.events {
                match *event {
                    FaultEvent::Emitted { slot, output_tokens } if output_tokens == self.0 => {
                        actions.push(FaultAction::FailRequest { slot });
                    }
                    FaultEvent::Utility { method: "profile" } => actions.push(FaultAction::FailUtility),
                    _ => {}
                }
            }
            Ok(())
        }
    }
    let mut config = config();
    config.injector = Some(Arc::new(|_| Ok(Box::new(FailsAfter(3)))));
    let bench = Bench::new(config);
    bench.add("a", &prompt(20), 10);
    let one = bench.collect(&["a"]).remove(0);
    assert_eq!((one.tokens.len(), one.finish), (3, Some(FinishReason::Error)));
    assert_eq!(bench.run("b", &prompt(20), 2).len(), 2);
    assert!(bench.call("profile", vec![]).is_err());
    assert_eq!(bench.call("is_sleeping", vec![]), Ok(false.into()));
}

/// A rejected request never occupies a slot. So it uses up no rule that counts requests, and an injector sees no
/// slot without an end.
#[test]
fn a_rejected_request_uses_up_neither_faults_nor_slots_nor_outputs() {
    use std::sync::Mutex;
    use vcr_core::fault::{FailureInjector, FaultAction, FaultBatch, FaultError, FaultEvent};
    #[derive(Default)]
    struct Records(Arc<Mutex<Vec<String>>>);
    impl FailureInjector for Records {
        fn decide(&mut self, batch: &FaultBatch<'_>, _: &mut Vec<FaultAction>) -> Result<(), FaultError> {
            let mut events = self.0.lock().expect("nothing panics while it holds this");
            for event in batch.events {
                match *event {
                    FaultEvent::Arrived { slot, request_id, .. } => events.push(format!("{slot} arrived {request_id}")),
                    FaultEvent::Ended { slot } => events.push(format!("{slot} ended")),
                    _ => {}
                }
            }
            Ok(())
        }
    }
    let events = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&events);
    let mut config = with(&["error:count=1,after=2"]);
    config.injector = Some(Arc::new(move |_| Ok(Box::new(Records(Arc::clone(&shared))))));
    config.tokens.choice = TokenChoice::Listed(Arc::new(TokenList {
        in_turn: vec![vec![11, 12, 13], vec![21, 22, 23]],
        ..TokenList::default()
    }));
    let bench = Bench::new(config);
    bench.add("too long", &prompt(5000), 3);
    assert_eq!(bench.collect(&["too long"]).remove(0).finish, Some(FinishReason::Error));
    assert_eq!(bench.wait_for("it is refused", |snapshot| snapshot.counters.refused == 1).counters.faults, 0);
    bench.add("a", &prompt(20), 3);
    let one = bench.collect(&["a"]).remove(0);
    assert_eq!((one.tokens, one.finish), (vec![11, 12], Some(FinishReason::Error)));
    assert_eq!(bench.run("b", &prompt(20), 3), [21, 22, 23]);
    bench.stop().expect("it ends well");
    let events = events.lock().expect("the engine has ended");
    assert_eq!(events[..3], ["0 arrived a", "0 ended", "0 arrived b"]);
}

/// As in vLLM, waiting clients are told that the engine has failed.
#[test]
fn an_engine_that_cannot_go_on_says_so() {
    struct Fails;
    impl LatencyModel for Fails {
        fn price(&mut self, _: &StepBatch<'_>, _: &mut Vec<u64>) -> Result<(), LatencyError> {
            Err(LatencyError { model: "fails".to_owned(), reason: "on purpose".to_owned() })
        }
    }
    let bench = Bench::new(LiveConfig { latency: Arc::new(|_| Ok(Box::new(Fails))), ..config() });
    bench.add("a", &prompt(20), 10);
    let message = bench.frontend.receive(PATIENCE).expect("it works").expect("it comes");
    assert_eq!(message.decode(), Ok(EngineMessage::Dead));
    let error = bench.stop().expect_err("it failed").to_string();
    assert!(error.contains("fails") && error.contains("on purpose"), "{error}");
}

/// The frontends of the engines that end with the failed engine are also told.
#[test]
fn an_engine_that_cannot_go_on_takes_the_others_with_it() {
    struct Fails;
    impl LatencyModel for Fails {
        fn price(&mut self, _: &StepBatch<'_>, _: &mut Vec<u64>) -> Result<(), LatencyError> {
            Err(LatencyError { model: "fails".to_owned(), reason: "on purpose".to_owned() })
        }
    }
    let mut config = LiveConfig {
        latency: Arc::new(|plugin_context| match plugin_context.engine {
            Some(1) => Ok(Box::new(Fails)),
            _ => Ok(Box::new(Constant(3_600_000_000_000))),
        }),
        ..config()
    };
    config.identity.num_ranks = 3;
    let bench = Bench::new(config);
    bench.add("waits at engine 0", &prompt(20), 10);
    bench.wait_for("it runs", |snapshot| snapshot.num_running == 1);
    bench.send_to(1, add("fails at engine 1", &prompt(20), 10));
    assert_eq!(bench.deaths(3), 3, "each says so");
    let error = bench.stop().expect_err("one failed").to_string();
    assert!(error.contains("on purpose"), "{error}");
}

#[test]
fn a_bug_of_an_engine_leaves_nobody_waiting() {
    struct Panics;
    impl LatencyModel for Panics {
        fn price(&mut self, _: &StepBatch<'_>, _: &mut Vec<u64>) -> Result<(), LatencyError> {
            panic!("on purpose")
        }
    }
    let mut config = LiveConfig { latency: Arc::new(|_| Ok(Box::new(Panics))), ..config() };
    config.identity.num_ranks = 2;
    let bench = Bench::new(config);
    bench.add("a", &prompt(20), 10);
    assert_eq!(bench.deaths(2), 2);
    let error = bench.stop().expect_err("one panicked").to_string();
    assert_eq!(error, "engine 0 panicked; this is a bug of vcr");
}

/// A frontend that counted on the engine would wait for it.
#[test]
fn an_engine_that_cannot_be_made_never_joins_its_frontend() {
    let folder = tempfile::tempdir().expect("there is room");
    let fails: LatencyFactory =
        Arc::new(|_| Err(LatencyError { model: "fails".to_owned(), reason: "on purpose".to_owned() }));
    let mut config = LiveConfig { latency: fails, ..config() };
    config.identity.handshake_address = ipc(folder.path(), "nobody");
    let error = LiveEngines::start(config).expect("threads start").wait().expect_err("it cannot be made").to_string();
    assert!(error.contains("on purpose"), "{error}");
}

impl Bench {
    /// Receives messages until `expected` engines have reported that they are dead. No request may end in the
    /// meantime.
    fn deaths(&self, expected: usize) -> usize {
        let mut deaths = 0;
        while deaths < expected {
            let Some(message) = self.frontend.receive(PATIENCE).expect("it works") else { break };
            match message.decode().expect("it is a message") {
                EngineMessage::Dead => deaths += 1,
                EngineMessage::Outputs(outputs) => {
                    let is_end = |output: &EngineCoreOutput| output.finish_reason.is_some();
                    assert!(!outputs.outputs.iter().any(is_end), "{outputs:?}");
                }
            }
        }
        deaths
    }
}
