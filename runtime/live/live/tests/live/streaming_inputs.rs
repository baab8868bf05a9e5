//! Streaming inputs: prompts that come in parts, with outputs in between.

use super::*;

fn part(id: &str, prompt: &[u32], max_tokens: u32, resumable: bool) -> Request {
    Request::Add(Box::new(EngineCoreRequest { resumable, ..request(id, prompt, params(max_tokens)) }))
}

#[test]
fn parts_of_a_prompt_are_answered_one_after_the_other() {
    let bench = Bench::new(config());
    bench.send(part("a", &prompt(40), 5, true));
    let first = bench.collect(&["a"]).remove(0);
    assert_eq!((first.tokens.len(), first.finish), (5, Some(FinishReason::Length)));
    let waits = bench.wait_for("it waits", |snapshot| snapshot.num_running == 0 && snapshot.num_waiting == 1);
    assert_eq!(waits.counters.requests, 1);
    bench.send(part("a", &prompt(30), 3, true));
    let second = bench.collect(&["a"]).remove(0);
    assert_eq!((second.tokens.len(), second.finish), (3, Some(FinishReason::Length)));
    assert!(second.outputs.iter().all(|output| output.prefill_stats.is_none()), "it is the same request");
    // The end of the input has no outputs, and frees the ID.
    bench.send(part("a", &[1], 1, false));
    bench.wait_for("it has ended", |snapshot| snapshot.num_waiting == 0);
    let mut conversation = prompt(40);
    conversation.extend(&first.tokens[..4]);
    conversation.extend(prompt(30));
    conversation.extend(&second.tokens[..2]);
    conversation.push(1);
    bench.add("a", &conversation, 1);
    let one = bench.collect(&["a"]).remove(0);
    let stats = one.outputs[0].prefill_stats.as_ref().expect("the first output has them");
    // The last token of each answer is dropped; 76 tokens are 4 full blocks of 16.
    assert_eq!((stats.num_prompt_tokens, stats.num_local_cached_tokens), (77, 64));
}

#[test]
fn parts_that_come_early_wait_for_their_turn() {
    let bench = Bench::new(LiveConfig { latency: constant(5_000_000), ..config() });
    bench.send(part("a", &prompt(20), 4, true));
    bench.send(part("a", &prompt(10), 2, true));
    bench.send(part("a", &[1], 1, false));
    assert_eq!(bench.collect(&["a"]).remove(0).tokens.len(), 4);
    assert_eq!(bench.collect(&["a"]).remove(0).tokens.len(), 2);
    let is_over = |snapshot: &Snapshot| snapshot.counters.generation_tokens == 6 && snapshot.num_running == 0;
    assert_eq!(bench.wait_for("it has ended", is_over).counters.malformed, 0);
    assert_eq!(bench.run("a", &prompt(20), 2).len(), 2, "the name is free again");
}

#[test]
fn a_request_that_waits_for_input_can_be_aborted_and_a_part_refused() {
    let mut config = config();
    config.engine = engine_config(EngineConfigInput { max_model_len: Some(64), ..config.engine.stated() });
    let bench = Bench::new(config);
    bench.send(part("a", &prompt(20), 1, true));
    bench.collect(&["a"]);
    bench.send(Request::Abort(vec!["a".to_owned()]));
    bench.wait_for("it was aborted", |snapshot| snapshot.counters.aborted == 1 && snapshot.num_waiting == 0);
    bench.send(part("b", &prompt(20), 1, true));
    bench.collect(&["b"]);
    bench.send(part("b", &prompt(50), 1, true));
    let refused = bench.collect(&["b"]).remove(0);
    assert_eq!(refused.finish, Some(FinishReason::Error));
    let message = refused.outputs[0].error.clone().expect("it says why").message;
    assert!(message.contains("max_model_len"), "{message}");
    bench.wait_for("it has ended", |snapshot| snapshot.num_waiting == 0);
    // A request for an embedding has no outputs between parts.
    let mut media = request("c", &prompt(20), params(2));
    media.resumable = true;
    media.prompt_token_ids = Some(Vec::new());
    bench.send(Request::Add(Box::new(media)));
    assert_eq!(bench.collect(&["c"]).remove(0).finish, Some(FinishReason::Error));
}
