//! Invalid input, floods of requests, and disconnected frontends.

use super::*;
use vcr_wire::Protocol as _;

#[test]
fn a_message_that_is_none_is_counted_and_others_go_on() {
    let bench = Bench::new(config());
    let frames: [&[&[u8]]; 7] = [
        &[b"\x00", b"\xc1garbage"],
        &[b"\x00"],
        &[b"\x09", b"\x90"],
        &[b"\x01", b"\x81\x01\x02"],
        &[b"\x03", b"\x92\x00\x01"],
        &[b"", b""],
        &[b"\x02", b"\x92\x00\xc0"],
    ];
    for frames in frames {
        bench.frontend.send_frames(0, 0, frames).expect("it is sent");
    }
    assert_eq!(bench.run("a", &prompt(20), 3).len(), 3);
    let counters = bench.wait_for("it was counted", |snapshot| snapshot.counters.malformed >= 7).counters;
    assert_eq!(counters.malformed, 7);
}

/// The frontend waits for an answer.
#[test]
fn a_request_that_cannot_be_decoded_is_answered() {
    let bench = Bench::new(config());
    let mut payload = Vec::new();
    add("a", &prompt(20), 3).encode(&mut payload, bench.rules);
    let cut = &payload[..payload.len() / 2];
    bench.frontend.send_frames(0, 0, [&[0][..], cut]).expect("it is sent");
    let refused = bench.collect(&["a"]).remove(0);
    let error = refused.outputs[0].error.clone().expect("it says why");
    assert!(error.message.contains("cannot be decoded"), "{}", error.message);
}

#[test]
fn what_cannot_be_simulated_is_refused_with_a_reason() {
    let bench = Bench::new(config());
    type Case<'a> = (&'a str, &'a dyn Fn(&mut EngineCoreRequest), &'a str);
    let cases: [Case<'_>; 5] = [
        ("embeds", &|request| request.prompt_embeds = Some(Tensor::of_f32(&[1], [0.0])), "embeddings"),
        ("neither", &|request| request.sampling_params = None, "neither sampling nor pooling"),
        ("empty", &|request| request.prompt_token_ids = None, "the prompt is empty"),
        ("long", &|request| request.prompt_token_ids = Some(prompt(4096)), "max_model_len"),
        ("lora", &|request| request.lora_request = Some(LoraRequest { int_id: 1, ..Default::default() }), "LoRA"),
    ];
    for (id, change, wanted) in cases {
        let mut request = request(id, &prompt(20), params(3));
        change(&mut request);
        bench.send(Request::Add(Box::new(request)));
        let refused = bench.collect(&[id]).remove(0);
        assert_eq!(refused.finish, Some(FinishReason::Error));
        let message = refused.outputs[0].error.clone().expect("it says why").message;
        assert!(message.contains(wanted), "{id}: {message}");
    }
    let counters = bench.wait_for("it was counted", |snapshot| snapshot.counters.refused == 5).counters;
    assert_eq!(counters.requests, 0);
}

#[test]
fn a_second_request_of_a_name_does_not_disturb_the_first() {
    let bench = Bench::new(LiveConfig { latency: constant(2_000_000), ..config() });
    bench.add("a", &prompt(20), 20);
    bench.next();
    bench.add("a", &prompt(30), 5);
    let first = bench.collect(&["a"]).remove(0);
    assert_eq!(first.tokens.len(), 19, "one came before");
    bench.wait_for("it was counted", |snapshot| snapshot.counters.malformed == 1);
    assert_eq!(bench.run("a", &prompt(20), 2).len(), 2, "the name is free again");
}

/// At the limit, requests wait at their sender and none is lost.
#[test]
fn a_flood_waits_at_its_sender() {
    let mut config = config();
    config.limits = Limits { max_requests: 50, max_waiting_messages: 10, ..Limits::default() };
    config.latency = constant(200_000);
    let bench = Bench::new(config);
    let ids: Vec<String> = (0..2000).map(|index| format!("r{index}")).collect();
    for id in &ids {
        bench.add(id, &prompt(20), 2);
    }
    let mut ended = 0;
    while ended < ids.len() {
        ended += bench.next().outputs.iter().filter(|output| output.finish_reason.is_some()).count();
        let snapshot = &bench.handle().snapshots()[0];
        assert!(snapshot.num_running + snapshot.num_waiting <= 50);
    }
    let counters = bench.wait_for("all are counted", |snapshot| snapshot.counters.requests == 2000).counters;
    assert!(counters.full > 0 && counters.refused == 0, "{counters:?}");
}

/// No request ends while the engine is paused, and the call that resumes it arrives after the flood. So requests
/// beyond the limit are refused.
#[test]
fn a_paused_engine_at_its_limit_can_be_resumed() {
    let mut config = config();
    config.limits = Limits { max_requests: 5, ..Limits::default() };
    let bench = Bench::new(config);
    bench.call("pause_scheduler", vec!["keep".into(), false.into()]).expect("it is paused");
    let ids: Vec<String> = (0..20).map(|index| format!("r{index}")).collect();
    for id in &ids {
        bench.add(id, &prompt(20), 2);
    }
    bench.send(Request::Utility(UtilityCall {
        client_index: 0,
        call_id: Integer::from(7u64),
        method: "resume_scheduler".to_owned(),
        args: vec![],
    }));
    let (mut refused, mut completed) = (0, 0);
    while refused + completed < ids.len() {
        for output in bench.next().outputs {
            match output.finish_reason {
                Some(FinishReason::Error) => refused += 1,
                Some(_) => completed += 1,
                None => {}
            }
        }
    }
    assert_eq!((refused, completed), (15, 5));
}

#[test]
fn a_shutdown_aborts_or_waits() {
    let slow = || LiveConfig { latency: constant(5_000_000), ..config() };
    let bench = Bench::new(slow());
    bench.add("a", &prompt(20), 2000);
    bench.next();
    bench.handle().shut_down();
    assert_eq!(bench.collect(&["a"]).remove(0).finish, Some(FinishReason::Abort));
    bench.stop().expect("it ends well");

    let bench = Bench::new(LiveConfig { shutdown_timeout_ns: 60_000_000_000, ..slow() });
    bench.add("a", &prompt(20), 20);
    bench.next();
    bench.handle().shut_down();
    bench.wait_for("it drains", |snapshot| snapshot.state == EngineState::Draining);
    bench.add("late", &prompt(20), 20);
    let mut both = bench.collect(&["a", "late"]);
    assert_eq!(both.remove(0).finish, Some(FinishReason::Length), "it was waited for");
    assert_eq!(both.remove(0).finish, Some(FinishReason::Abort), "it came too late");
    bench.stop().expect("it ends well");
}

/// The requests of the lost frontend are dropped, and a new frontend at the same address gets the engine back.
#[test]
fn a_frontend_that_comes_back_finds_its_engine() {
    let folder = tempfile::tempdir().expect("there is room");
    let mut config = config();
    config.identity.handshake_address = ipc(folder.path(), "handshake");
    config.latency = constant(1_000_000);
    let engines = LiveEngines::start(config).expect("threads start");
    for life in ["first", "second"] {
        let frontend = listen(folder.path(), life, 1).accept(PATIENCE).expect("the engine comes");
        let rules = VllmMinor::V0_33.rules();
        frontend.send(0, 0, &add("a", &prompt(20), 4000), &[], rules).expect("it is sent");
        let message = frontend.receive(PATIENCE).expect("it works").expect("it comes");
        let EngineMessage::Outputs(outputs) = message.decode().expect("it is a message") else { panic!("dead") };
        assert_eq!(outputs.outputs[0].prefill_stats.as_ref().expect("it is the first").num_cached_tokens, 0);
        drop(frontend);
    }
    let end = Instant::now() + PATIENCE;
    while engines.handle().snapshots()[0].counters.frontends_lost < 2 {
        assert!(Instant::now() < end, "{:?}", engines.handle().snapshots());
        std::thread::sleep(Duration::from_millis(5));
    }
    engines.handle().shut_down();
    engines.wait().expect("it ends well");
}

/// An older frontend's requests have another meaning. A newer frontend's requests only have more fields.
#[test]
fn an_older_frontend_is_refused_and_a_newer_one_served() {
    for (len, is_served) in [(19, false), (20, true), (25, true)] {
        let bench = Bench::new(config());
        let mut payload = Vec::new();
        add("a", &prompt(20), 2).encode(&mut payload, bench.rules);
        // The payload starts with the header of an array of 22 elements, the last of which are nil.
        assert_eq!(payload[..3], [0xdc, 0, 22]);
        payload[2] = len;
        if len < 22 {
            payload.truncate(payload.len() - usize::from(22 - len));
        } else {
            payload.extend(std::iter::repeat_n(0xc0, usize::from(len - 22)));
        }
        bench.frontend.send_frames(0, 0, [&[0][..], &payload]).expect("it is sent");
        let one = bench.collect(&["a"]).remove(0);
        assert_eq!(one.tokens.len(), if is_served { 2 } else { 0 }, "{len} elements");
        if !is_served {
            let message = one.outputs[0].error.clone().expect("it says why").message;
            assert!(message.contains("older than vLLM 0.27") && message.contains("19 elements"), "{message}");
        }
    }
}
