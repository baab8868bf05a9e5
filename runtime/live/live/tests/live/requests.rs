//! Requests from their arrival to their end.

use vcr_core::Drafter;
use vcr_core::tokens::AcceptedDrafts;

use super::*;

#[test]
fn a_request_streams_to_its_length() {
    let bench = Bench::new(config());
    assert_eq!(bench.frontend.engines[0].tensor_parallel_size, 2);
    bench.add("a", &prompt(20), 5);
    let one = bench.collect(&["a"]).remove(0);
    assert_eq!((one.tokens.len(), one.finish), (5, Some(FinishReason::Length)));
    assert_eq!(one.outputs.len(), 5, "one message a step");
    let first = &one.outputs[0];
    let stats = first.prefill_stats.as_ref().expect("the first output has them");
    assert_eq!((stats.num_prompt_tokens, stats.num_computed_tokens, stats.num_cache_creation_tokens), (20, 20, 16));
    let kinds: Vec<_> = first.events.iter().flatten().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventType::Queued, EventType::Scheduled]);
    assert!(one.outputs[1..].iter().all(|output| output.events.is_none() && output.prefill_stats.is_none()));
}

/// Frontends choose the IDs, so only the content may affect the text.
#[test]
fn the_same_prompt_and_seed_give_the_same_text_whatever_the_name() {
    let bench = Bench::new(config());
    let text = bench.run("a", &prompt(20), 30);
    assert_eq!(bench.run("b-1234", &prompt(20), 30), text);
    assert_ne!(bench.run("c", &prompt(21), 30), text);
    let seeded = |id: &str, seed: u64| {
        let params = SamplingParams { seed: Some(Integer::from(seed)), ..params(30) };
        bench.send(Request::Add(Box::new(request(id, &prompt(20), params))));
        bench.collect(&[id]).remove(0).tokens
    };
    let other = seeded("d", 5);
    assert_ne!(other, text);
    assert_eq!(seeded("e", 5), other);
    // The completions of one call arrive as separate requests.
    assert_ne!(bench.run("1_a", &prompt(20), 30), bench.run("0_a", &prompt(20), 30));
    assert_eq!(bench.run("0_b", &prompt(20), 30), text);
}

#[test]
fn the_next_request_finds_the_prefix_in_the_cache() {
    let bench = Bench::new(config());
    let mut conversation = prompt(64);
    let answer = bench.run("a", &conversation, 40);
    conversation.extend(answer);
    conversation.extend(prompt(10));
    bench.add("b", &conversation, 1);
    let one = bench.collect(&["b"]).remove(0);
    let stats = one.outputs[0].prefill_stats.as_ref().expect("the first output has them");
    // 64 prompt and 39 computed output tokens are 6 full blocks of 16.
    assert_eq!((stats.num_prompt_tokens, stats.num_local_cached_tokens), (114, 96));
}

#[test]
fn stop_tokens_end_a_text_and_are_named() {
    let bench = Bench::new(config());
    let text = bench.run("a", &prompt(20), 30);
    let run = |id: &str, change: &dyn Fn(&mut SamplingParams)| {
        let mut params = params(30);
        change(&mut params);
        bench.send(Request::Add(Box::new(request(id, &prompt(20), params))));
        bench.collect(&[id]).remove(0)
    };
    let at = text.iter().position(|token| *token == text[7]).expect("it is there");
    let stopped = run("b", &|params| params.stop_token_ids = Some(vec![text[7]]));
    assert_eq!((stopped.tokens.as_slice(), stopped.finish), (&text[..=at], Some(FinishReason::Stop)));
    let last = stopped.outputs.last().expect("it ended");
    assert_eq!(last.stop_reason, Some(StopReason::Token(text[7])));
    // The stop token is masked before `min_tokens`, so another token is drawn in its place.
    let longer = run("c", &|params| {
        params.stop_token_ids = Some(vec![text[7]]);
        params.min_tokens = 20;
    });
    assert!(longer.tokens.len() >= 20, "{}", longer.tokens.len());
    // The end-of-text token is never drawn.
    let ended = run("d", &|params| params.eos_token_id = Some(text[3]));
    assert_eq!(ended.finish, Some(FinishReason::Length));
    assert!(!ended.tokens.contains(&text[3]));
    let allowed = run("e", &|params| params.allowed_token_ids = Some(vec![4, 5]));
    assert!(allowed.tokens.iter().all(|token| [4, 5].contains(token)));
}

#[test]
fn a_text_ends_where_the_settings_say() {
    let mut config = config();
    config.tokens.output_tokens = Some(vcr_base::random::Distribution::Constant { value: 9.0 });
    let bench = Bench::new(config);
    let params = SamplingParams { eos_token_id: Some(2), ..params(30) };
    bench.send(Request::Add(Box::new(request("a", &prompt(20), params.clone()))));
    let one = bench.collect(&["a"]).remove(0);
    assert_eq!((one.tokens.len(), one.tokens[9], one.finish), (10, 2, Some(FinishReason::Stop)));
    assert_eq!(one.outputs[9].stop_reason, None, "the end of the text needs no name");
    let longer = SamplingParams { min_tokens: 15, ..params };
    bench.send(Request::Add(Box::new(request("b", &prompt(20), longer))));
    assert_eq!(bench.collect(&["b"]).remove(0).tokens.len(), 16);
    assert_eq!(bench.run("c", &prompt(20), 30).len(), 30, "without an end of text it goes on");
}

#[test]
fn echo_and_lists_give_what_they_hold() {
    let mut echo = config();
    echo.tokens.choice = TokenChoice::Echo;
    let bench = Bench::new(echo);
    let params = SamplingParams { eos_token_id: Some(2), ..params(30) };
    bench.send(Request::Add(Box::new(request("a", &[10, 11, 12], params))));
    let one = bench.collect(&["a"]).remove(0);
    assert_eq!((one.tokens, one.finish), (vec![10, 11, 12, 2], Some(FinishReason::Stop)));

    let mut listed = config();
    let list = TokenList {
        in_turn: vec![vec![1, 2], vec![3]],
        by_prompt: [(vec![7, 7], vec![8, 9])].into_iter().collect(),
        by_digest: [(prompt_digest(&[6]), 1)].into_iter().collect(),
    };
    listed.tokens.choice = TokenChoice::Listed(Arc::new(list));
    let bench = Bench::new(listed);
    assert_eq!(bench.run("a", &[5], 2), [1, 2]);
    assert_eq!(bench.run("b", &[7, 7], 2), [8, 9]);
    assert_eq!(bench.run("c", &[5], 1), [3]);
    assert_eq!(bench.run("d", &[5], 2), [1, 2]);
    assert_eq!(bench.run("e", &[6], 1), [3], "by the digest of its prompt");
}

#[test]
fn logprobs_come_with_every_token_and_for_the_prompt() {
    let bench = Bench::new(config());
    let params = SamplingParams { logprobs: Some(3), prompt_logprobs: Some(0), temperature: 0.0, ..params(4) };
    bench.send(Request::Add(Box::new(request("a", &prompt(20), params.clone()))));
    let one = bench.collect(&["a"]).remove(0);
    for output in &one.outputs {
        let rows = output.new_logprobs.as_ref().expect("they were asked for").rows(&[]).expect("they decode");
        assert_eq!((rows.width, rows.ranks.as_slice()), (4, &[1][..]), "greedy takes the likeliest");
        assert_eq!(rows.token_ids[0], output.new_token_ids[0]);
        assert_eq!(rows.token_ids[1], output.new_token_ids[0]);
    }
    let prompt_rows = one.outputs[0].new_prompt_logprobs_tensors.as_ref().expect("they were asked for");
    let rows = prompt_rows.rows(&[]).expect("they decode");
    assert_eq!(rows.token_ids, prompt(20)[1..]);
    assert!(one.outputs[1..].iter().all(|output| output.new_prompt_logprobs_tensors.is_none()));
    // A prompt with prompt logprobs is computed entirely, cached or not.
    bench.send(Request::Add(Box::new(request("b", &prompt(20), params))));
    let stats = bench.collect(&["b"]).remove(0).outputs[0].prefill_stats.clone().expect("the first output has them");
    assert_eq!(stats.num_cached_tokens, 0);
}

#[test]
fn the_whole_vocabulary_can_be_asked_for() {
    let bench = Bench::new(config());
    let params = SamplingParams { logprobs: Some(-1), ..params(1) };
    bench.send(Request::Add(Box::new(request("a", &prompt(20), params))));
    let one = bench.collect(&["a"]).remove(0);
    let rows = one.outputs[0].new_logprobs.as_ref().expect("they were asked for").rows(&[]).expect("they decode");
    assert_eq!(rows.width, 1001);
    let mut ids = rows.token_ids[1..].to_vec();
    ids.sort_unstable();
    assert_eq!(ids, (0..1000).collect::<Vec<_>>());
}

#[test]
fn an_abort_ends_what_is_under_way_and_nothing_else() {
    let mut config = config();
    config.latency = constant(1_000_000);
    let bench = Bench::new(config);
    bench.add("a", &prompt(20), 2000);
    bench.add("b", &prompt(20), 50);
    bench.next();
    bench.send(Request::Abort(vec!["a".to_owned(), "unknown".to_owned()]));
    let mut tokens = Vec::new();
    let mut since_abort = 0;
    loop {
        let outputs = bench.next().outputs;
        let of = |id: &str| outputs.iter().find(|output| output.request_id == id);
        since_abort = if of("a").is_some() { 0 } else { since_abort + 1 };
        let Some(output) = of("b") else { continue };
        tokens.extend_from_slice(&output.new_token_ids);
        if output.finish_reason.is_some() {
            break;
        }
    }
    assert!(since_abort > 3, "a was aborted long before b ended");
    bench.wait_for("nothing is left", |snapshot| snapshot.num_running == 0 && snapshot.kv_cache_usage == 0.0);
    assert_eq!(bench.handle().snapshots()[0].counters.aborted, 1);
}

#[test]
fn urgent_requests_go_first() {
    let mut config = config();
    config.latency = constant(100_000_000);
    config.engine = engine_config(EngineConfigInput {
        max_num_seqs: 1,
        policy: vcr_core::Policy::Priority,
        max_model_len: Some(4096),
        ..EngineConfigInput::default()
    });
    let bench = Bench::new(config);
    for (id, priority) in [("first", 0), ("late", 5), ("urgent", -5)] {
        let request = EngineCoreRequest { priority, ..request(id, &prompt(20), params(5)) };
        bench.send(Request::Add(Box::new(request)));
        // The request must run before the others arrive.
        bench.wait_for("it has come", |snapshot| snapshot.num_running == 1);
    }
    let mut ended = Vec::new();
    while ended.len() < 3 {
        for output in bench.next().outputs.into_iter().filter(|output| output.finish_reason.is_some()) {
            ended.push(output.request_id);
        }
    }
    assert_eq!(ended, ["first", "urgent", "late"]);
}

#[test]
fn drafts_bring_several_tokens_a_step() {
    for drafter in [Drafter::Ngram, Drafter::Eagle, Drafter::MultiModuleMtp, Drafter::DraftModel] {
        let mut config = config();
        config.engine = engine_config(EngineConfigInput {
            num_speculative_tokens: 3,
            drafter,
            max_model_len: Some(4096),
            ..EngineConfigInput::default()
        });
        config.tokens.acceptance_rates = vec![1.0, 1.0, 0.0];
        let bench = Bench::new(config);
        bench.add("a", &prompt(20), 10);
        let one = bench.collect(&["a"]).remove(0);
        let sizes: Vec<_> = one.outputs.iter().map(|output| output.new_token_ids.len()).collect();
        assert_eq!(sizes, [1, 3, 3, 3], "{drafter:?}: two of three drafts are accepted in each step");
        bench.wait_for("all are counted", |snapshot| {
            (snapshot.counters.draft_tokens, snapshot.counters.accepted_tokens) == (9, 6)
        });
    }
}

#[test]
fn async_scheduling_gives_the_same_text() {
    let text = Bench::new(config()).run("a", &prompt(100), 50);
    let mut config = config();
    config.engine = engine_config(EngineConfigInput {
        async_scheduling: true,
        max_model_len: Some(4096),
        ..EngineConfigInput::default()
    });
    assert_eq!(Bench::new(config).run("a", &prompt(100), 50), text);
}

#[test]
fn embeddings_are_answered_or_refused() {
    let pooling = |id: &str| {
        let request = EngineCoreRequest {
            sampling_params: None,
            pooling_params: Some(PoolingParams::default()),
            ..request(id, &prompt(20), params(1))
        };
        Request::Add(Box::new(request))
    };
    let bench = Bench::new(config());
    bench.send(pooling("a"));
    let refused = bench.collect(&["a"]).remove(0);
    let error = refused.outputs[0].error.clone().expect("it says why");
    assert_eq!((refused.finish, error.code.as_str()), (Some(FinishReason::Error), "validation_error"));
    assert!(error.message.contains("--embedding-dimensions"), "{}", error.message);

    let mut config = config();
    config.tokens.embedding_dimensions = Some(8);
    let bench = Bench::new(config);
    assert_eq!(bench.call("get_supported_tasks", vec![]), Ok(Value::Array(vec!["generate".into(), "embed".into()])));
    bench.send(pooling("a"));
    let one = bench.collect(&["a"]).remove(0);
    assert_eq!((one.finish, one.tokens.len()), (Some(FinishReason::Stop), 0));
    let vector = one.outputs[0].pooling_output.clone().expect("it was asked for");
    assert_eq!((vector.dtype.as_str(), vector.shape.as_slice()), ("float32", &[8][..]));

    let of_dimensions = |id: &str, dimensions| {
        let pooling = PoolingParams { dimensions: Some(dimensions), ..PoolingParams::default() };
        let request = EngineCoreRequest {
            sampling_params: None,
            pooling_params: Some(pooling),
            ..request(id, &prompt(20), params(1))
        };
        bench.send(Request::Add(Box::new(request)));
        bench.collect(&[id]).remove(0).outputs.remove(0)
    };
    let short = of_dimensions("b", 3).pooling_output.expect("it was asked for");
    assert_eq!(short.shape, [3]);
    let refused = of_dimensions("c", 9).error.expect("there are only 8");
    assert!(refused.message.contains("invalid dimensions 9: expected 1 to 8"), "{}", refused.message);
}

#[test]
fn adapters_are_loaded_listed_pinned_and_removed() {
    let mut config = config();
    config.engine =
        engine_config(EngineConfigInput { max_loras: 2, max_model_len: Some(4096), ..EngineConfigInput::default() });
    let bench = Bench::new(config);
    let lora = |id: u64| {
        Value::Array(vec![
            format!("adapter-{id}").as_str().into(),
            id.into(),
            "/adapter".into(),
            Value::Nil,
            false.into(),
            false.into(),
        ])
    };
    let list = || bench.call("list_loras", vec![]);
    assert_eq!(bench.call("add_lora", vec![lora(1)]), Ok(true.into()));
    assert_eq!(bench.call("add_lora", vec![lora(2)]), Ok(true.into()));
    assert_eq!(bench.call("pin_lora", vec![1u64.into()]), Ok(true.into()));
    assert_eq!(list(), Ok(Value::Array(vec![1u64.into(), 2u64.into()])));
    assert_eq!(bench.call("remove_lora", vec![2u64.into()]), Ok(true.into()));
    assert_eq!(bench.call("remove_lora", vec![2u64.into()]), Ok(false.into()));
    assert!(bench.call("pin_lora", vec![2u64.into()]).is_err());
    // A request loads the adapter that it names, and has separate blocks.
    let text = bench.run("plain", &prompt(20), 10);
    let with = EngineCoreRequest {
        lora_request: Some(LoraRequest {
            name: "x".to_owned(),
            int_id: 3,
            path: "/x".to_owned(),
            ..Default::default()
        }),
        ..request("with", &prompt(20), params(10))
    };
    bench.send(Request::Add(Box::new(with)));
    let one = bench.collect(&["with"]).remove(0);
    assert_eq!(one.outputs[0].prefill_stats.as_ref().expect("it is the first").num_cached_tokens, 0);
    assert_ne!(one.tokens, text);
    assert_eq!(list(), Ok(Value::Array(vec![1u64.into(), 3u64.into()])));
}

#[test]
fn several_api_servers_get_their_own() {
    let bench = Bench::with(config(), 2, false);
    let of_client = |id: &str, client_index| {
        Request::Add(Box::new(EngineCoreRequest { client_index, ..request(id, &prompt(20), params(3)) }))
    };
    bench.send(of_client("a", 0));
    bench.send(of_client("b", 1));
    let mut seen = Vec::new();
    while seen.len() < 6 {
        let message = bench.frontend.receive(PATIENCE).expect("it works").expect("it comes");
        let EngineMessage::Outputs(outputs) = message.decode().expect("it is a message") else { panic!("dead") };
        seen.extend(outputs.outputs.iter().map(|output| (message.client, output.request_id.clone())));
    }
    seen.sort();
    let wanted = [(0, "a"), (1, "b")].into_iter().flat_map(|(client, id)| vec![(client, id.to_owned()); 3]);
    assert_eq!(seen, wanted.collect::<Vec<_>>());
    // No request has this client's number, and the engine continues.
    bench.send_to(0, of_client("c", 0));
    bench.collect(&["c"]);
}

#[test]
fn each_step_tells_what_it_did_and_what_is_left() {
    let mut config = config();
    config.stats.iteration_details = true;
    let bench = Bench::new(config);
    bench.add("a", &prompt(40), 2);
    let mut steps = Vec::new();
    loop {
        let message = bench.frontend.receive(PATIENCE).expect("it works").expect("it comes");
        let EngineMessage::Outputs(outputs) = message.decode().expect("it is a message") else { panic!("dead") };
        let stats = outputs.scheduler_stats.expect("each step has them");
        let is_last = outputs.outputs.is_empty();
        steps.push(stats);
        if is_last {
            break;
        }
    }
    assert_eq!(steps.len(), 3, "a prefill, a decode, and the word that all is done");
    let details: Vec<_> = steps.iter().map(|stats| stats.iteration_details.clone()).collect();
    let first = details[0].as_ref().expect("they were asked for");
    assert_eq!((first.num_ctx_requests, first.num_ctx_tokens, first.num_generation_tokens), (1, 40, 0));
    assert_eq!(details[1].as_ref().map(|details| details.num_generation_tokens), Some(1));
    assert!(details[2].is_none());
    assert_eq!((steps[0].num_running_reqs, steps[1].num_running_reqs), (1, 0));
    assert_eq!((steps[0].prefix_cache_stats.queries, steps[1].prefix_cache_stats.queries), (40, 0), "deltas");
}

/// Images are placeholder tokens in the prompt. Their tensors arrive in separate frames, which are not read.
#[test]
fn prompts_with_different_images_share_what_stands_before_them() {
    let bench = Bench::new(config());
    let ask = |id: &str, image: &str| {
        let feature = MmFeature {
            modality: "image".to_owned(),
            identifier: image.to_owned(),
            mm_position: PlaceholderRange { offset: 20, length: 20, ..PlaceholderRange::default() },
            ..MmFeature::default()
        };
        let request = EngineCoreRequest { mm_features: Some(vec![feature]), ..request(id, &[7; 50], params(4)) };
        let aux = [vec![0; 4096], vec![1; 300]];
        bench.frontend.send(0, 0, &Request::Add(Box::new(request)), &aux, bench.rules).expect("it is sent");
        let one = bench.collect(&[id]).remove(0);
        let stats = one.outputs[0].prefill_stats.clone().expect("the first output has them");
        (one.tokens, stats.num_cached_tokens)
    };
    let (cat, cached) = ask("a", "cat");
    assert_eq!(cached, 0);
    assert_eq!(ask("b", "cat"), (cat.clone(), 48));
    let (dog, cached) = ask("c", "dog");
    assert_eq!(cached, 16);
    assert_ne!(dog, cat, "the image is part of the content");
}

/// Gives every request the same token. Refuses prompts that begin with 99, and accepts two draft tokens for prompts
/// that begin with 98.
struct Picky;

impl BatchTokenSource for Picky {
    fn step(
        &mut self,
        started: &[TokenRequest<'_>],
        _ended: &[u32],
        wants: &[TokenWant],
        answer: &mut TokenAnswer,
    ) -> Result<(), TokenError> {
        let unfit = started.iter().filter(|request| request.prompt[0] == 99);
        answer.refusals.extend(unfit.map(|request| TokenRefusal {
            slot: request.slot,
            source: "picky".to_owned(),
            reason: "it begins with 99".to_owned(),
        }));
        let decided = started.iter().filter(|request| request.prompt[0] == 98);
        answer.accepted_drafts.extend(decided.map(|request| AcceptedDrafts { slot: request.slot, count: 2 }));
        answer.tokens.extend(wants.iter().flat_map(|want| std::iter::repeat_n(5, want.count as usize)));
        Ok(())
    }
}

#[test]
fn a_request_that_the_token_source_refuses_ends_alone_and_says_why() {
    let mut config = config();
    config.identity.version = Some(VllmMinor::V0_33);
    config.tokens.choice = TokenChoice::Guest(Arc::new(|_| Ok(Box::new(Picky))));
    let bench = Bench::new(config);
    let unfit = [vec![99], prompt(20)].concat();
    bench.add("a", &prompt(20), 5);
    bench.add("b", &unfit, 5);
    bench.add("c", &prompt(30), 5);
    for one in bench.collect(&["a", "b", "c"]) {
        let is_refused = one.outputs[0].request_id == "b";
        let expected = if is_refused { (0, FinishReason::Error) } else { (5, FinishReason::Length) };
        assert_eq!((one.tokens.len(), one.finish), (expected.0, Some(expected.1)));
        let error = one.outputs.last().and_then(|output| output.error.clone());
        assert_eq!(error.is_some(), is_refused);
        if let Some(error) = error {
            assert_eq!(
                (&*error.code, &*error.message, error.retryable),
                ("validation_error", "it begins with 99", false)
            );
        }
    }
    // The refused request's slot and blocks are free again.
    bench.add("d", &prompt(40), 3);
    assert_eq!(bench.collect(&["d"]).remove(0).tokens, [5, 5, 5]);
    let counted = bench.wait_for("the last request is counted", |snapshot| snapshot.counters.finished[1] == 3);
    assert_eq!((counted.counters.refused, counted.counters.finished[FinishReason::Error as usize]), (1, 1));
    assert_eq!(counted.kv_cache_usage, 0.0);
}

#[test]
fn a_token_source_decides_how_many_drafts_of_a_request_are_accepted() {
    let mut config = config();
    config.engine = engine_config(EngineConfigInput {
        num_speculative_tokens: 3,
        drafter: Drafter::Eagle,
        max_model_len: Some(4096),
        ..EngineConfigInput::default()
    });
    config.tokens.choice = TokenChoice::Guest(Arc::new(|_| Ok(Box::new(Picky))));
    config.tokens.acceptance_rates = vec![1.0];
    let bench = Bench::new(config);
    let sizes = |id: &str, first: u32| {
        bench.add(id, &[vec![first], prompt(20)].concat(), 10);
        let one = bench.collect(&[id]).remove(0);
        one.outputs.iter().map(|output| output.new_token_ids.len()).collect::<Vec<_>>()
    };
    assert_eq!(sizes("a", 98), [1, 3, 3, 3], "two of three drafts are accepted in each step");
    assert_eq!(sizes("b", 9), [1, 2, 2, 2, 2, 1], "the request in its slot has the engine's rates");
    assert_eq!(sizes("c", 98), [1, 3, 3, 3]);
}
