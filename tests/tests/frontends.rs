//! The engine's end of the protocol, tested with real vLLM frontends: an engine that repeats each prompt, one token
//! per message.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use vcr_tests::{FRONTENDS, Frontend, FrontendOptions};
use vcr_wire::{
    EngineCoreEvent, EngineCoreOutput, EngineCoreRequest, EngineGreeting, EngineLink, EngineLinkConfig, EventType,
    FinishReason, Integer, LogprobRows, PrefillStats, Protocol, ReadyResponse, Received, Request, SchedulerStats,
    StepEncoder, StepEnd, Transport, VersionEvidence, VllmMinor,
};

/// Long enough even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const TEXT: &str = "Once upon a time";
/// A request with this priority gets one token, and then none.
const FOREVER: i64 = 7;

/// A request, and the possible versions of the frontend, judged by all its messages so far.
type Seen = (Request, VersionEvidence);

fn minor_of(version: &str) -> VllmMinor {
    let (minor, _) = version.rsplit_once('.').expect("a version has three parts");
    minor.parse().expect("a version that is known")
}

/// A frontend with one echoing engine, and the requests that the engine gets.
fn echo(version: &str) -> Option<(Frontend, Receiver<Seen>)> {
    let mut frontend = Frontend::start(version, &FrontendOptions::default())?;
    let minor = minor_of(version);
    let config = EngineLinkConfig { timeout: PATIENCE, ..EngineLinkConfig::new(frontend.handshake_address(), 0) };
    let greeting = EngineGreeting::hello(&Transport::new(), config).expect("the frontend is there");
    assert_eq!(greeting.init().addresses.inputs.len(), 1);
    let ready = ReadyResponse {
        max_model_len: 4096,
        num_gpu_blocks: 1000,
        block_size: 16,
        vllm_version: version.to_owned(),
        max_num_seqs: 64,
        max_num_batched_tokens: 2048,
        instance_id: "echo".to_owned(),
        ..ReadyResponse::default()
    };
    let engine = greeting.ready(&ready).expect("it says READY");
    let (sender, seen) = channel();
    thread::spawn(move || serve(engine, minor, &sender));
    frontend.wait_until_it_serves();
    Some((frontend, seen))
}

fn serve(mut engine: EngineLink, minor: VllmMinor, seen: &Sender<Seen>) {
    let rules = minor.rules();
    let mut step = StepEncoder::new(rules);
    let mut frame = Vec::new();
    let stats = SchedulerStats::of_version(rules);
    while let Some(received) = engine.inputs.receive(PATIENCE).expect("the library works") {
        let Received::Request { request, .. } = received else { return };
        if let Request::Add(add) = &request {
            let prompt = add.prompt_token_ids.as_ref().expect("a prompt");
            let tokens = if add.priority == FOREVER { &prompt[..1] } else { &prompt[..] };
            for (index, token) in tokens.iter().enumerate() {
                if index == 0 {
                    step.output(&first_output(&add.request_id, *token, prompt.len() as u64));
                } else {
                    let finish = (index + 1 == prompt.len()).then_some((FinishReason::Length, None));
                    step.tokens(&add.request_id, &[*token], finish);
                }
                frame.clear();
                let scheduler_stats = Some(&stats);
                let end = StepEnd { timestamp: 10.0 + index as f64, scheduler_stats, ..StepEnd::default() };
                step.finish(end, &mut frame);
                engine.outputs.send(0, &frame).expect("it is sent");
            }
        }
        let evidence = engine.inputs.line_evidence().expect("the first message is ADD");
        if seen.send((request, evidence)).is_err() {
            return;
        }
    }
}

/// The first output of a request has its events, and here also the logprob of its token.
fn first_output(request_id: &str, token: u32, prompt_tokens: u64) -> EngineCoreOutput {
    let rows = LogprobRows { width: 2, token_ids: vec![token, 5], logprobs: vec![-0.25, -1.5], ranks: vec![1] };
    let event = |kind, timestamp| EngineCoreEvent { kind, timestamp };
    EngineCoreOutput {
        request_id: request_id.to_owned(),
        new_token_ids: vec![token],
        new_logprobs: Some(rows.sampled()),
        events: Some(vec![event(EventType::Queued, 9.0), event(EventType::Scheduled, 9.5)]),
        prefill_stats: Some(PrefillStats {
            num_prompt_tokens: prompt_tokens,
            num_computed_tokens: prompt_tokens,
            ..PrefillStats::default()
        }),
        ..EngineCoreOutput::default()
    }
}

fn next_add(seen: &Receiver<Seen>) -> (EngineCoreRequest, VersionEvidence) {
    match seen.recv_timeout(PATIENCE).expect("a request comes") {
        (Request::Add(request), evidence) => (*request, evidence),
        other => panic!("a request was expected, but this is {other:?}"),
    }
}

/// Runs a check with the frontend of each release.
fn on_each(check: impl Fn(&Frontend, &Receiver<Seen>)) {
    for version in FRONTENDS {
        let Some((frontend, seen)) = echo(version) else { continue };
        check(&frontend, &seen);
    }
}

#[test]
fn compat_toml_names_these_frontends() {
    let tested = VllmMinor::ALL.into_iter().filter_map(|minor| minor.rules().tested.as_deref());
    assert_eq!(tested.collect::<Vec<_>>(), FRONTENDS);
}

#[test]
fn a_whole_answer_comes_with_counts_and_logprobs() {
    on_each(|frontend, seen| {
        let more = json!({"max_tokens": 100, "temperature": 0, "seed": 7, "logprobs": 1});
        let answer = frontend.complete(&json!(TEXT), &more);
        let choice = &answer["choices"][0];
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(TEXT), &json!("length")), "{answer}");
        assert_eq!(choice["logprobs"]["token_logprobs"][0], -0.25);
        let tokens = json!(4);
        assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&tokens, &tokens));

        let (request, _) = next_add(seen);
        assert_eq!(request.prompt_token_ids.map(|prompt| prompt.len()), Some(4));
        let params = request.sampling_params.expect("it samples");
        assert_eq!((params.max_tokens, params.temperature, params.logprobs), (Some(100), 0.0, Some(1)));
        assert_eq!((params.eos_token_id, params.seed), (Some(151_645), Some(Integer::from(7_u64))));
    });
}

#[test]
fn a_token_a_message_arrives_as_a_token_an_event() {
    on_each(|frontend, _| {
        let answer = frontend.stream_completion(&json!(TEXT), &json!({"max_tokens": 100}));
        assert_eq!((answer.text.as_str(), answer.finish_reason.as_deref()), (TEXT, Some("length")));
        assert!(answer.events.len() >= 4, "{:?}", answer.events);

        let usage = json!({"stream_options": {"include_usage": true}});
        let chat = frontend.stream_chat(TEXT, &usage);
        assert!(chat.text.contains(TEXT), "the template is said again, too: {}", chat.text);
        assert_eq!(chat.usage["completion_tokens"], chat.usage["prompt_tokens"], "{}", chat.usage);
    });
}

#[test]
fn a_client_that_leaves_aborts_its_request() {
    on_each(|frontend, seen| {
        let mut events = frontend.stream("/v1/completions", &json!({"prompt": TEXT, "priority": FOREVER}));
        let first = events.next().expect("the first token comes");
        assert_eq!(first["choices"][0]["text"], "Once");
        let (request, _) = next_add(seen);
        drop(events);
        let (aborted, _) = seen.recv_timeout(PATIENCE).expect("the frontend notices");
        assert_eq!(aborted, Request::Abort(vec![request.request_id]));
    });
}

#[test]
fn requests_tell_the_line_of_their_frontend() {
    for (version, oldest, newest) in [
        ("0.27.1", VllmMinor::V0_27, VllmMinor::V0_27),
        ("0.30.0", VllmMinor::V0_30, VllmMinor::V0_30),
        ("0.33.0", VllmMinor::V0_31, VllmMinor::V0_33),
    ] {
        let Some((frontend, seen)) = echo(version) else { continue };
        let _: Value = frontend.complete(&json!(TEXT), &json!({}));
        let (_, evidence) = next_add(&seen);
        assert_eq!((evidence.oldest, evidence.newest), (oldest, newest), "{version}");
    }
}

/// Engines of a mixture of experts run in waves, which this frontend starts.
#[test]
fn a_mixture_of_experts_has_a_coordinator() {
    for version in FRONTENDS {
        for is_moe in [false, true] {
            let options = FrontendOptions { engines: 2, is_moe, ..FrontendOptions::default() };
            let Some(frontend) = Frontend::start(version, &options) else { continue };
            let config =
                EngineLinkConfig { timeout: PATIENCE, ..EngineLinkConfig::new(frontend.handshake_address(), 0) };
            let second = EngineLinkConfig { rank: 1, ..config.clone() };
            let transport = Transport::new();
            let other = thread::spawn({
                let transport = transport.clone();
                move || EngineGreeting::hello(&transport, second).map(|_| ())
            });
            let greeting = EngineGreeting::hello(&transport, config).expect("the frontend is there");
            assert_eq!(greeting.init().addresses.coordinator_input.is_some(), is_moe, "{version}");
            other.join().expect("it does not panic").expect("the frontend is there");
        }
    }
}
