//! What goes wrong on purpose.

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
fn messages_are_dropped_doubled_late_and_corrupt() {
    let bench = Bench::new(with(&["drop:count=1", "duplicate:nth=2,count=1"]));
    bench.add("a", &prompt(20), 5);
    let one = bench.collect(&["a"]).remove(0);
    let text = Bench::new(config()).run("a", &prompt(20), 5);
    assert_eq!(one.tokens, [&text[1..2], &text[1..5]].concat(), "the first is lost, the second comes twice");

    let bench = Bench::new(with(&["late:by=200ms,nth=2,count=1"]));
    bench.add("a", &prompt(20), 5);
    let mut tokens = Vec::new();
    while tokens.len() < 5 {
        tokens.extend(bench.next().outputs.into_iter().flat_map(|output| output.new_token_ids));
    }
    assert_eq!(tokens, [text[0], text[2], text[3], text[4], text[1]], "others overtake it");

    let bench = Bench::new(with(&["corrupt:count=1"]));
    bench.add("a", &prompt(20), 1);
    let message = bench.frontend.receive(PATIENCE).expect("it works").expect("it comes");
    let other = Bench::new(config());
    other.add("a", &prompt(20), 1);
    let whole = other.frontend.receive(PATIENCE).expect("it works").expect("it comes");
    assert_eq!(message.frames[0].len(), whole.frames[0].len());
    // Timestamps differ, too, but those of the corrupt one may not decode.
    assert_ne!(message.frames[0], whole.frames[0]);
}

#[test]
fn a_slow_socket_and_a_slow_start_take_their_time() {
    let began = Instant::now();
    let bench = Bench::new(with(&["slow-start:by=200ms", "slow-socket:bandwidth=10kB/s"]));
    assert!(began.elapsed() >= Duration::from_millis(200));
    let began = Instant::now();
    assert_eq!(bench.run("a", &prompt(20), 5).len(), 5);
    // Five messages of some 500 bytes.
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

/// A guest says what goes wrong as a rule does.
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

/// As vLLM: whoever waits is told that there is nobody any more.
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
