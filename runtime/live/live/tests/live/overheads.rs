//! Delays outside of steps, in real time: only the order of events is checked, not durations.

use super::*;

/// A step takes 2 ms, and each prompt token delays the arrival in the queue by `token_ns`.
fn slow_arrivals(token_ns: u64) -> LiveConfig {
    let overheads = Overheads { arrival_per_prompt_token_ps: token_ns * 1000, ..Overheads::default() };
    LiveConfig { latency: constant(2_000_000), overheads, ..config() }
}

#[test]
fn a_long_prompt_is_overtaken_on_its_way_to_the_queue() {
    let bench = Bench::new(slow_arrivals(2_000_000));
    bench.add("long", &prompt(300), 2);
    bench.add("short", &prompt(2), 3);
    let first = bench.collect(&["short"]).remove(0);
    assert_eq!(first.tokens.len(), 3, "all of it came before any output of the other");
    let late = bench.collect(&["long"]).remove(0);
    assert_eq!((late.tokens.len(), late.finish), (2, Some(FinishReason::Length)));
}

#[test]
fn requests_on_their_way_can_be_aborted() {
    let bench = Bench::new(slow_arrivals(10_000_000_000));
    bench.add("a", &prompt(20), 5);
    bench.send(Request::Abort(vec!["a".to_owned()]));
    bench.wait_for("it is aborted", |snapshot| snapshot.counters.aborted == 1);
    bench.nothing_comes();
}

#[test]
fn a_shutdown_ends_requests_on_their_way() {
    let bench = Bench::new(slow_arrivals(10_000_000_000));
    bench.add("a", &prompt(20), 5);
    // The answer to a call shows that the previous request was accepted.
    bench.call("is_sleeping", Vec::new()).expect("it is answered");
    bench.handle().shut_down();
    assert_eq!(bench.collect(&["a"]).remove(0).finish, Some(FinishReason::Abort));
}

#[test]
fn outputs_leave_in_order_after_their_delay() {
    let overheads = Overheads { output_ns: 30_000_000, ..Overheads::default() };
    let bench = Bench::new(LiveConfig { latency: constant(1_000_000), overheads, ..config() });
    let text = bench.run("a", &prompt(20), 8);
    let plain = Bench::new(config());
    assert_eq!(plain.run("a", &prompt(20), 8), text, "the same tokens in the same order");
}

#[test]
fn a_first_token_is_overtaken_by_requests_that_have_begun() {
    let overheads = Overheads { first_token_ns: 40_000_000, ..Overheads::default() };
    let bench = Bench::new(LiveConfig { latency: constant(1_000_000), overheads, ..config() });
    let plain = Bench::new(config());
    assert_eq!(bench.run("a", &prompt(20), 8), plain.run("a", &prompt(20), 8), "the same tokens in the same order");
    bench.add("long", &prompt(20), 400);
    while bench.next().outputs[0].request_id != "long" {}
    bench.add("one", &prompt(30), 1);
    let mut before = 0;
    while bench.next().outputs.iter().all(|output| output.request_id != "one") {
        before += 1;
    }
    assert!(before > 0, "tokens of the other request left meanwhile");
}

#[test]
fn a_step_takes_as_long_as_its_launch() {
    let overheads = Overheads { prefill_launch_ns: 9_000_000, ..Overheads::default() };
    let bench = Bench::new(LiveConfig { latency: constant(1_000_000), overheads, ..config() });
    bench.run("a", &prompt(20), 8);
    let busy_ns = |busy_ns| bench.wait_for("all steps are counted", |snapshot| snapshot.counters.busy_ns >= busy_ns);
    // The step of the prompt with its launch, and seven decode steps.
    assert_eq!(busy_ns(16_000_000).counters.busy_ns, 16_000_000);
}

fn structured(id: &str) -> Request {
    let json = Value::Map(vec![(Value::from("json_object"), Value::from(true))]);
    let params = SamplingParams { structured_outputs: Some(json.into()), ..params(3) };
    Request::Add(Box::new(request(id, &prompt(20), params)))
}

#[test]
fn requests_with_structured_outputs_wait_for_their_grammar() {
    let grammar_compile_ns = 300_000_000;
    let bench = Bench::new(LiveConfig { grammar_compile_ns, ..config() });
    let start = Instant::now();
    bench.send(structured("a"));
    bench.wait_for("it waits", |snapshot| snapshot.num_running == 0 && snapshot.num_waiting == 1);
    assert_eq!(bench.run("b", &prompt(20), 3).len(), 3);
    assert!(start.elapsed() < Duration::from_nanos(grammar_compile_ns), "others do not wait");
    assert_eq!(bench.collect(&["a"]).remove(0).tokens.len(), 3);
    assert!(start.elapsed() >= Duration::from_nanos(grammar_compile_ns), "it does");
    // A request that is aborted while it waits leaves nothing behind.
    bench.send(structured("c"));
    bench.send(Request::Abort(vec!["c".to_owned()]));
    bench.wait_for("it is gone", |snapshot| snapshot.num_waiting == 0 && snapshot.counters.aborted == 1);
    assert_eq!(bench.run("c", &prompt(20), 2).len(), 2);
}

#[test]
fn without_a_time_for_grammars_nothing_waits() {
    let bench = Bench::new(LiveConfig { latency: constant(200_000_000), ..config() });
    bench.send(structured("a"));
    bench.wait_for("it runs at once", |snapshot| snapshot.num_running == 1 && snapshot.num_waiting == 0);
    assert_eq!(bench.collect(&["a"]).remove(0).tokens.len(), 3);
}
