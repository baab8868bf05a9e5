//! `vcr play` behind real frontends of vLLM.
//!
//! Each test runs with the frontend of every release that has been fetched for
//! it: those of [`FRONTENDS`], or of all lines where `VCR_ALL_LINES` is set.

use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use vcr_tests::{
    Frontend, FrontendOptions, Play, free_port, hostile_guest, json_tokens, releases, shipped_guest, wait_until,
};

/// Answers of development routes, such as `/sleep`.
fn dev() -> FrontendOptions {
    FrontendOptions { env: vec![("VLLM_SERVER_DEV_MODE".to_owned(), "1".to_owned())], ..FrontendOptions::default() }
}

/// A frontend and engines that serve.
fn served(version: &str, options: &FrontendOptions, args: &[&str]) -> Option<(Frontend, Play)> {
    let mut frontend = Frontend::start(version, options)?;
    let mut all = vec!["--max-model-len", "4096"];
    let engines = options.engines.to_string();
    all.extend(["--data-parallel-size", &engines]);
    all.extend(args);
    let play = Play::start(&frontend.handshake_address(), &all);
    frontend.wait_until_it_serves();
    Some((frontend, play))
}

/// Runs a check with each release.
fn with_each(options: &FrontendOptions, args: &[&str], check: impl Fn(&str, &Frontend, &Play)) {
    for version in releases() {
        eprintln!("vLLM {version}");
        if let Some((frontend, play)) = served(version, options, args) {
            check(version, &frontend, &play);
        }
    }
}

/// Whether a release is of this line or a later one.
fn is_from(version: &str, line: u32) -> bool {
    version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok()).expect("a version has parts") >= line
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().expect("a completion has a text")
}

#[test]
fn completions_and_chats_whole_and_streamed() {
    with_each(&FrontendOptions::default(), &[], |version, frontend, play| {
        let answer = frontend.complete(&json!("Hello world"), &json!({"max_tokens": 7}));
        assert_eq!(answer["usage"]["completion_tokens"], 7);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        let streamed = frontend.stream_completion(&json!("Hello world"), &json!({"max_tokens": 7}));
        assert_eq!(streamed.text, text(&answer), "the same prompt gives the same text");
        let line = version.rsplit_once('.').expect("a version has parts").0;
        // What vllm-rs of 0.31 and later sends tells them apart only with an adapter.
        let names = if is_from(version, 31) { "0.31 to 0.33" } else { line };
        assert!(play.log().contains(names), "it knows the line: {}", play.log());

        let chat = frontend.chat("Hi", &json!({"max_tokens": 5}));
        assert_eq!(chat["choices"][0]["message"]["role"], "assistant");
        let more = json!({"max_tokens": 5, "stream_options": {"include_usage": true}});
        let streamed = frontend.stream_chat("Hi", &more);
        assert_eq!(chat["choices"][0]["message"]["content"], json!(streamed.text));
        assert_eq!(
            (streamed.finish_reason.as_deref(), &streamed.usage["completion_tokens"]),
            (Some("length"), &json!(5))
        );
        assert!(streamed.events.len() >= 6, "token by token");

        let seeded = |seed: u64| {
            text(&frontend.complete(&json!("Hello world"), &json!({"max_tokens": 7, "seed": seed}))).to_owned()
        };
        assert_eq!(seeded(5), seeded(5));
        assert_ne!(seeded(5), seeded(6));
        wait_until("all is idle", || frontend.metric("vllm:num_requests_running") == 0.0);
        assert_eq!(frontend.metric("vllm:generation_tokens_total"), 7.0 * 6.0 + 5.0 * 2.0);
    });
}

#[test]
fn logprobs_of_outputs_and_prompts() {
    with_each(&FrontendOptions::default(), &[], |_, frontend, _| {
        let answer =
            frontend.complete(&json!("Hello world"), &json!({"max_tokens": 4, "logprobs": 3, "temperature": 0}));
        let logprobs = &answer["choices"][0]["logprobs"];
        let own = logprobs["token_logprobs"].as_array().expect("one for each token");
        assert_eq!(own.len(), 4);
        for (own, top) in own.iter().zip(logprobs["top_logprobs"].as_array().expect("one map for each token")) {
            let best = top.as_object().expect("a map").values().filter_map(Value::as_f64).fold(f64::MIN, f64::max);
            assert_eq!(own.as_f64(), Some(best), "greedy takes the likeliest");
        }
        let chat = frontend.chat("Hi", &json!({"max_tokens": 3, "logprobs": true, "top_logprobs": 2}));
        let content = chat["choices"][0]["logprobs"]["content"].as_array().expect("one for each token");
        assert!(
            content.len() == 3
                && content.iter().all(|token| token["top_logprobs"].as_array().is_some_and(|top| top.len() == 2))
        );
        let answer = frontend.complete(&json!([1, 2, 3, 4]), &json!({"max_tokens": 1, "prompt_logprobs": 1}));
        let prompt = answer["choices"][0]["prompt_logprobs"].as_array().expect("one for each token");
        assert_eq!((prompt.len(), &prompt[0]), (4, &Value::Null));
    });
}

/// Stops of the engine and of the frontend.
#[test]
fn texts_end_where_they_are_told() {
    with_each(&FrontendOptions::default(), &["--output-tokens", "9"], |_, frontend, play| {
        let answer = frontend.complete(&json!("Hello world"), &json!({"max_tokens": 50}));
        assert_eq!(
            (&answer["choices"][0]["finish_reason"], &answer["usage"]["completion_tokens"]),
            (&json!("stop"), &json!(10))
        );
        let answer = frontend.complete(&json!("Hello world"), &json!({"max_tokens": 50, "min_tokens": 20}));
        assert_eq!(answer["usage"]["completion_tokens"], 21);
        let answer = frontend.complete(&json!("Hello world"), &json!({"max_tokens": 30, "ignore_eos": true}));
        assert_eq!(
            (&answer["choices"][0]["finish_reason"], &answer["usage"]["completion_tokens"]),
            (&json!("length"), &json!(30))
        );
        // A stop text is the frontend's: it ends the stream and aborts the rest.
        let long = text(&answer).to_owned();
        let stop: String = long.chars().skip(long.chars().count() / 2).take(4).collect();
        let more = json!({"max_tokens": 30, "ignore_eos": true, "stop": stop});
        let stopped = frontend.complete(&json!("Hello world"), &more);
        assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
        assert!(long.starts_with(text(&stopped)) && text(&stopped).len() < long.len());
        assert!(!play.log().contains("ERROR"), "{}", play.log());
    });
}

#[test]
fn a_prefix_is_found_again() {
    with_each(&FrontendOptions::default(), &["--block-size", "16"], |_, frontend, _| {
        let prompt: Vec<u32> = (1000..1100).collect();
        frontend.complete(&json!(prompt), &json!({"max_tokens": 1}));
        frontend.complete(&json!(prompt), &json!({"max_tokens": 1}));
        wait_until("the hits are counted", || frontend.metric("vllm:prefix_cache_hits_total") == 96.0);
        frontend.complete(&json!(prompt), &json!({"max_tokens": 1, "cache_salt": "mine"}));
        wait_until("the queries are counted", || frontend.metric("vllm:prefix_cache_queries_total") == 300.0);
        assert_eq!(frontend.metric("vllm:prefix_cache_hits_total"), 96.0, "a salt keeps others out");
    });
}

/// Structured output is served from the token source; the shipped guest knows
/// what JSON is, and the frontend's parser must be content with it.
#[test]
fn structured_output_and_tools() {
    let Some(tokens) = json_tokens() else { return };
    let Some(guest) = shipped_guest("json-tokens") else { return };
    let guest = guest.to_str().expect("a path in text");
    let options = FrontendOptions {
        args: ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"].map(str::to_owned).to_vec(),
        ..FrontendOptions::default()
    };
    with_each(&options, &["--tokens", guest, "--tokens-config", &tokens.to_string()], |_, frontend, _| {
        let schema = json!({
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": false,
        });
        let format = json!({"type": "json_schema", "json_schema": {"name": "trip", "schema": schema}});
        let chat = frontend.chat("Where to?", &json!({"max_tokens": 300, "response_format": format}));
        let content = chat["choices"][0]["message"]["content"].as_str().expect("it says something");
        let trip: Value = serde_json::from_str(content).unwrap_or_else(|error| panic!("{error}: {content}"));
        assert!(trip["city"].is_string() && trip["days"].is_i64(), "{trip}");
        assert_eq!(chat["choices"][0]["finish_reason"], "stop");

        // From 0.33 on only a strict tool has its schema sent.
        for is_strict in [true, false] {
            let tool = json!({"name": "go", "parameters": schema, "strict": is_strict});
            let tool = json!({"type": "function", "function": tool});
            let choice = json!({"type": "function", "function": {"name": "go"}});
            let chat = frontend.chat("Go!", &json!({"max_tokens": 300, "tools": [tool], "tool_choice": choice}));
            let call = &chat["choices"][0]["message"]["tool_calls"][0]["function"];
            assert_eq!(call["name"], "go", "{chat}");
            let arguments: Value =
                serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("it is JSON");
            let has_all = arguments["city"].is_string() && arguments["days"].is_i64();
            assert!(has_all || !is_strict && arguments.is_object(), "{arguments}");
        }
    });
}

#[test]
fn a_client_that_goes_away_aborts_its_request() {
    with_each(&FrontendOptions::default(), &["--inter-token-latency", "5ms"], |_, frontend, play| {
        let body = json!({"prompt": "Hello world", "max_tokens": 4000, "ignore_eos": true});
        let mut events = frontend.stream("/v1/completions", &body);
        assert!(events.next().is_some());
        drop(events);
        let ended = play.wait_for("reason=Abort");
        assert!(ended.contains("ended"), "{ended}");
        wait_until("nothing runs", || frontend.metric("vllm:num_requests_running") == 0.0);
        assert_eq!(frontend.complete(&json!("Next"), &json!({"max_tokens": 2}))["usage"]["completion_tokens"], 2);
    });
}

#[test]
fn sleeping_pausing_and_resetting() {
    for version in releases() {
        // Said, since no request comes before that would show it.
        let line = version.rsplit_once('.').expect("a version has parts").0;
        let Some((frontend, play)) = served(version, &dev(), &["--vllm-line", line]) else { return };
        let post = |path: &str| frontend.post(path, &json!({}));
        assert_eq!(post("/reset_prefix_cache").status, 200);
        assert_eq!(post("/sleep?level=1").status, 200);
        assert_eq!(frontend.get("/is_sleeping").ok()["is_sleeping"], true);
        assert_eq!(post("/wake_up").status, 200, "what it returns is a matter of the line");
        assert_eq!(frontend.get("/is_sleeping").ok()["is_sleeping"], false);
        assert_eq!(post("/pause?mode=keep").status, 200);
        assert_eq!(frontend.get("/is_paused").ok()["is_paused"], true);
        assert_eq!(post("/resume").status, 200);
        assert_eq!(frontend.get("/is_paused").ok()["is_paused"], false);
        assert_eq!(post("/reset_mm_cache").status, 200);
        let called = frontend.post("/collective_rpc", &json!({"method": "anything"})).ok();
        assert_eq!(called["results"], json!([null]));
        if is_from(version, 33) {
            assert_eq!(post("/pause?mode=abort").status, 200);
            let refused = frontend.post("/v1/completions", &json!({"prompt": "Hi", "max_tokens": 2}));
            assert_eq!(refused.status, 503, "{}", refused.body);
            assert_eq!(post("/resume").status, 200);
        }
        assert_eq!(frontend.complete(&json!("Next"), &json!({"max_tokens": 2}))["usage"]["completion_tokens"], 2);
        assert!(!play.log().contains("WARN") || is_from(version, 33), "{}", play.log());
        let told = frontend.get("/version").ok();
        assert_eq!(told["version"], format!("{line}.0"));
    }
}

#[test]
fn adapters_are_loaded_and_used() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("a path in text");
    let mut options = dev();
    options.env.push(("VLLM_ALLOW_RUNTIME_LORA_UPDATING".to_owned(), "1".to_owned()));
    options.env.push(("VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES".to_owned(), path.to_owned()));
    with_each(&options, &["--max-loras", "2"], |_, frontend, _| {
        let load = json!({"lora_name": "mine", "lora_path": path});
        let answer = frontend.post("/v1/load_lora_adapter", &load);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let plain = frontend.complete(&json!("Hello world"), &json!({"max_tokens": 5}));
        let adapted = frontend.complete(&json!("Hello world"), &json!({"max_tokens": 5, "model": "mine"}));
        assert_ne!(text(&plain), text(&adapted));
        assert_eq!(frontend.post("/v1/unload_lora_adapter", &json!({"lora_name": "mine"})).status, 200);
        let unknown = frontend.post("/v1/completions", &json!({"prompt": "Hi", "model": "mine"}));
        assert_eq!(unknown.status, 404, "{}", unknown.body);
    });
}

#[test]
fn prefill_on_one_engine_and_decode_on_another() {
    for version in releases() {
        let port = vcr_tests::free_port().to_string();
        let options = FrontendOptions::default();
        // Said, since 0.31 and later look alike.
        let line = version.rsplit_once('.').expect("a version has parts").0;
        let args = ["--vllm-line", line, "--side-channel-port", &port];
        let Some((prefill, _prefill_engine)) = served(version, &options, &args) else {
            return;
        };
        let Some((decode, decode_engine)) = served(version, &options, &["--kv-cache-transfer-latency", "20ms"]) else {
            return;
        };
        let prompt: Vec<u32> = (1000..1100).collect();
        let ask = json!({"do_remote_decode": true, "do_remote_prefill": false});
        let computed = prefill.complete(&json!(prompt), &json!({"max_tokens": 1, "kv_transfer_params": ask}));
        let params = &computed["kv_transfer_params"];
        assert_eq!(
            (&params["do_remote_prefill"], &params["remote_port"]),
            (&json!(true), &json!(port.parse::<u16>().expect("it is one")))
        );
        assert_eq!(params["remote_registration_generation"].is_u64(), is_from(version, 33));
        wait_until("the blocks are held", || prefill.metric("vllm:kv_cache_usage_perc") > 0.0);
        let answer = decode.complete(&json!(prompt), &json!({"max_tokens": 5, "kv_transfer_params": params}));
        assert_eq!(answer["usage"]["completion_tokens"], 5);
        assert_eq!(decode.metric("vllm:prompt_tokens_total"), 100.0);
        assert!(text(&answer).starts_with(text(&computed)), "the same content gives the same text");
        // Something must happen for the frontend to hear of it.
        prefill.complete(&json!("Next"), &json!({"max_tokens": 1}));
        wait_until("the blocks are free", || prefill.metric("vllm:kv_cache_usage_perc") == 0.0);
        assert!(!decode_engine.log().contains("WARN"), "{}", decode_engine.log());
    }
}

#[test]
fn two_engines_and_waves() {
    for is_moe in [false, true] {
        let options = FrontendOptions { engines: 2, is_moe, ..dev() };
        with_each(&options, &["--inter-token-latency", "5ms"], |_, frontend, play| {
            // In several waves, with idle time in between.
            for _ in 0..2 {
                std::thread::scope(|scope| {
                    let ask = |index: u32| {
                        move || {
                            let answer = frontend.complete(&json!([7, 8, index]), &json!({"max_tokens": 40}));
                            assert_eq!(answer["usage"]["completion_tokens"], 40);
                        }
                    };
                    for index in 0..6 {
                        scope.spawn(ask(index));
                    }
                });
                std::thread::sleep(Duration::from_millis(50));
            }
            let started = |rank: &str| {
                play.log()
                    .lines()
                    .filter(|line| line.contains("started") && line.contains(&format!("rank={rank} ")))
                    .count()
            };
            assert_eq!(started("0") + started("1"), 12);
            assert!(started("0") >= 2 && started("1") >= 2, "both get some: {}", play.log());
            let called = frontend.post("/collective_rpc", &json!({"method": "anything"})).ok();
            assert_eq!(called["results"].as_array().map(Vec::len), Some(2), "each engine answers");
        });
    }
}

#[test]
fn what_fails_in_the_engine_is_an_error_for_the_client() {
    let faults = ["--fault", "error:prompt=7", "--fault", "error:prompt=8,after=3", "--fault", "dead:prompt=9,after=2"];
    with_each(&FrontendOptions::default(), &faults, |version, frontend, play| {
        let ask = |len: u32| {
            frontend.post("/v1/completions", &json!({"prompt": (100..100 + len).collect::<Vec<_>>(), "max_tokens": 6}))
        };
        assert_eq!(ask(6).status, 200);
        for len in [7, 8] {
            let failed = ask(len);
            assert_eq!(failed.status, 500, "{}", failed.body);
        }
        // Too long for this engine, and told so.
        let long = frontend.post("/v1/completions", &json!({"prompt": vec![5; 4096], "max_tokens": 6}));
        assert_eq!(long.status, 400, "{version}: {}", long.body);
        assert_eq!(ask(6).status, 200, "others are not concerned");
        assert_eq!(frontend.get("/health").status, 200);
        assert_eq!(ask(9).status, 500);
        play.wait_for("a fault ends the engine");
        wait_until("the frontend knows that its engine is dead", || frontend.get("/health").status == 503);
    });
}

/// A guest that fails in the middle of an answer, and is replaced: the client
/// sees nothing of it, and the metrics do.
#[test]
fn a_fallback_goes_on_where_a_guest_fails() {
    let Some(guest) = hostile_guest() else { return };
    let guest = guest.to_str().expect("a path in text");
    let metrics = format!("127.0.0.1:{}", free_port());
    let args = ["--latency", guest, "--latency-config", r#"{"wrong": "loop", "after": 3}"#]
        .into_iter()
        .chain(["--latency-fallback", "fixed(#{ step: \"1ms\" })", "--metrics-address", &metrics])
        .collect::<Vec<_>>();
    with_each(&FrontendOptions::default(), &args, |_, frontend, play| {
        assert!(play.log().contains("guest hostile: a latency model, sha256 "), "{}", play.log());
        let answer = frontend.post("/v1/completions", &json!({"prompt": [1, 2, 3], "max_tokens": 8}));
        assert_eq!(answer.status, 200, "{}", answer.body);
        play.wait_for("guest hostile of engine 0 failed, its fallback goes on: ");
        let told = scraped(&metrics);
        assert!(told.contains(r#"vcr_guest_failures_total{guest="hostile",engine="0"} 1"#), "{told}");
    });
}

/// What the engines' metrics say.
fn scraped(address: &str) -> String {
    let told = ureq::get(format!("http://{address}/metrics")).call().expect("it is served");
    told.into_body().read_to_string().expect("it is text")
}

/// A metric of all engines.
fn sum_of(scraped: &str, name: &str) -> f64 {
    let values = scraped.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// A frontend spreads its requests by load. The router of the engines looks at
/// the prompts: those that begin alike are computed by one engine, and all
/// answers are those of a single engine.
#[test]
fn a_router_gives_prompts_that_begin_alike_to_one_engine() {
    let Some(guest) = shipped_guest("prefix-affinity") else { return };
    let guest = guest.to_str().expect("a path in text");
    let metrics = format!("127.0.0.1:{}", free_port());
    let options = FrontendOptions { engines: 2, ..FrontendOptions::default() };
    let args = ["--router", guest, "--router-fallback", "least-loaded", "--metrics-address", &metrics];
    with_each(&options, &args, |_, frontend, play| {
        assert!(play.log().contains("guest prefix-affinity: a router, sha256 "), "{}", play.log());
        let prompt = |group: u32, turn: u32| -> Vec<u32> {
            (0..100).map(|place| 1000 * (group + 1) + place).chain([turn]).collect()
        };
        // Neither the groups nor the turns fit the number of engines, so that no
        // spreading in turns does the same.
        for turn in 0..5 {
            for group in 0..3 {
                let answer = frontend.complete(&json!(prompt(group, turn)), &json!({"max_tokens": 3}));
                assert_eq!(answer["usage"]["completion_tokens"], 3);
            }
        }
        wait_until("all are counted", || sum_of(&scraped(&metrics), "vcr_requests_routed_total") == 15.0);
        let told = scraped(&metrics);
        assert_eq!(sum_of(&told, "vcr_prefix_cache_hits_total"), 3.0 * 4.0 * 96.0, "{told}");
        assert!(sum_of(&told, "vcr_requests_routed_away_total") > 0.0, "{told}");
        assert_eq!(sum_of(&told, "vcr_requests_refused_total"), 0.0);
        wait_until("the frontend counts nothing as running", || {
            frontend.metric("vllm:num_requests_running") == 0.0
                && frontend.metric("vllm:generation_tokens_total") == 45.0
        });
        assert!(!play.log().contains("ERROR"), "{}", play.log());
    });
}

/// Who goes away is not computed for, wherever that was.
#[test]
fn a_stream_that_is_closed_is_aborted_where_it_is_computed() {
    let metrics = format!("127.0.0.1:{}", free_port());
    let options = FrontendOptions { engines: 2, ..FrontendOptions::default() };
    let router = ["--router", "round-robin", "--inter-token-latency", "5ms", "--metrics-address", &metrics];
    with_each(&options, &router, |_, frontend, _| {
        let body = json!({"prompt": "Hello world", "max_tokens": 4000, "ignore_eos": true});
        for _ in 0..4 {
            let mut events = frontend.stream("/v1/completions", &body);
            assert!(events.next().is_some());
        }
        wait_until("they are aborted", || sum_of(&scraped(&metrics), "vcr_requests_aborted_total") == 4.0);
        wait_until("nothing runs", || sum_of(&scraped(&metrics), "vcr_requests_running") == 0.0);
    });
}

/// What the router refuses is an error that the client may answer by trying
/// again.
#[test]
fn a_router_that_refuses_is_told_to_the_client() {
    let metrics = format!("127.0.0.1:{}", free_port());
    let options = FrontendOptions { engines: 2, ..FrontendOptions::default() };
    let args = ["--router", "prefix_affinity(#{ max_waiting: 0 })", "--max-num-seqs", "1"]
        .into_iter()
        .chain(["--inter-token-latency", "20ms", "--metrics-address", &metrics])
        .collect::<Vec<_>>();
    with_each(&options, &args, |version, frontend, _| {
        let body = json!({"prompt": [1, 2, 3], "max_tokens": 25, "ignore_eos": true});
        let ask = || frontend.post("/v1/completions", &body);
        let answers: Vec<_> = std::thread::scope(|scope| {
            let asked: Vec<_> = (0..10).map(|_| scope.spawn(ask)).collect();
            asked.into_iter().map(|asked| asked.join().expect("it is answered")).collect()
        });
        // Two run at once, and one more waits at each engine.
        let (served, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
        assert!(served.len() >= 2 && refused.len() >= 4, "{answers:?}");
        assert!(refused.iter().all(|answer| answer.status >= 400), "{refused:?}");
        // Older frontends do not read an engine's reasons.
        let is_told = |answer: &&vcr_tests::Answer| answer.body.to_string().contains("too much to do");
        assert!(!is_from(version, 33) || refused.iter().all(is_told), "{refused:?}");
        wait_until("they are counted", || {
            sum_of(&scraped(&metrics), "vcr_requests_shed_total") == refused.len() as f64
        });
    });
}

#[test]
fn a_restarted_frontend_gets_its_engine_back() {
    for version in releases() {
        let port = vcr_tests::free_port();
        let options = FrontendOptions { handshake_port: Some(port), ..FrontendOptions::default() };
        let Some((frontend, play)) = served(version, &options, &["--inter-token-latency", "5ms"]) else { return };
        let body = json!({"prompt": "Hello world", "max_tokens": 4000, "ignore_eos": true});
        let mut events = frontend.stream("/v1/completions", &body);
        assert!(events.next().is_some());
        drop(frontend);
        play.wait_for("waiting for a frontend to come back");
        let Some(mut again) = Frontend::start(version, &options) else { return };
        again.wait_until_it_serves();
        assert_eq!(again.complete(&json!("Next"), &json!({"max_tokens": 2}))["usage"]["completion_tokens"], 2);
        assert_eq!(again.metric("vllm:num_requests_running"), 0.0, "what the old one wanted is forgotten");
    }
}

#[test]
fn a_stop_signal_drains_or_aborts() {
    for version in releases() {
        for (timeout, reason) in [("30s", "length"), ("0s", "abort")] {
            let args = ["--inter-token-latency", "10ms", "--shutdown-timeout", timeout];
            let Some((frontend, mut play)) = served(version, &FrontendOptions::default(), &args) else { return };
            let body = json!({"prompt": "Hello world", "max_tokens": 60, "ignore_eos": true});
            let mut events = frontend.stream("/v1/completions", &body);
            assert!(events.next().is_some());
            play.terminate();
            let reasons: Vec<_> =
                events.filter_map(|event| event["choices"][0]["finish_reason"].as_str().map(str::to_owned)).collect();
            assert_eq!(reasons, [reason], "vLLM {version}");
            assert!(play.wait().success(), "a signal is no failure");
        }
    }
}

/// The events are read by a subscriber that shares nothing with vcr.
#[test]
fn kv_events_reach_an_independent_subscriber() {
    let Some(python) = vcr_tests::python_packages() else { return };
    for version in releases() {
        let port = vcr_tests::free_port();
        let endpoint = format!("tcp://*:{port}");
        let topic = ["--kv-events-topic", "kv@{engine}@{model}", "--engine-id", "e0", "--model-name", "sim"];
        let args = ["--enable-kv-cache-events", "--kv-events-endpoint", &endpoint, "--num-gpu-blocks", "300"];
        let args = [&args[..], &topic[..]].concat();
        let Some((frontend, _play)) = served(version, &FrontendOptions::default(), &args) else { return };
        let mut subscriber = python.run("tests/frontends/kv_subscriber.py", &[&format!("tcp://127.0.0.1:{port}")]);
        // It prints a line as soon as it hears anything.
        let mut index = 0;
        wait_until("the subscriber hears nothing", || {
            index += 1;
            frontend.complete(&json!(vec![index; 20]), &json!({"max_tokens": 1}));
            !subscriber.lines().is_empty()
        });
        frontend.complete(&json!((1..=40).collect::<Vec<_>>()), &json!({"max_tokens": 1}));
        wait_until("the subscriber has heard of the blocks", || {
            subscriber.lines().iter().any(|batch| {
                let event = &batch["events"][0];
                event["type"] == "BlockStored" && event["token_ids"] == json!((1..=32).collect::<Vec<_>>())
            })
        });
        let lines = subscriber.lines();
        let batch = lines.iter().rfind(|batch| batch["events"][0]["token_ids"][0] == 1).expect("it was just there");
        let event = &batch["events"][0];
        assert_eq!(batch["topic"], "kv@e0@sim");
        assert_eq!((&event["block_size"], &event["medium"], &batch["rank"]), (&json!(16), &json!("GPU"), &json!(0)));
        if is_from(version, 29) {
            // vLLM's own name of a block of the tokens 1 to 16, without a seed.
            assert_eq!(event["block_hashes"][0], json!(0x137b_b037_547f_4caf_u64));
        }
    }
}

#[test]
fn options_that_cannot_be_used_are_told() {
    let run = |args: &[&str]| {
        let output = std::process::Command::new(vcr_tests::vcr()).arg("play").args(args).output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let mut list = tempfile::NamedTempFile::with_suffix(".jsonl").expect("a temporary file");
    writeln!(list, "{{\"output_token_ids\": [1, 2]}}\n{{\"output_token_ids\": [1, -2]}}").expect("it is writable");
    let list = list.path().to_str().expect("a path in text");
    for (args, wanted) in [
        (&["--vllm-line", "0.26"][..], "one of 0.27 to 0.33"),
        (&["--handshake-address", "nonsense"], "nonsense cannot be used"),
        (&["--num-gpu-blocks", "1"], "`num_gpu_blocks` must be at least 2"),
        (&["--max-num-batched-tokens", "10"], "is smaller than `max_num_seqs`"),
        (&["--latency", "fixed(#{ stp: \"1ms\" })"], "stp"),
        (&["--latency", "no-such-guest.wasm"], "no-such-guest.wasm"),
        (&["--latency", "oci://localhost:1/a:1"], "names no digest"),
        (&["--latency", "fixed(#{ step: \"1ms\" })", "--latency-fallback", "7"], "must be a latency model"),
        (
            &["--latency", "fixed(#{ step: \"1ms\" })", "--latency-fallback", "fixed(#{ step: \"1ms\" })"],
            "only guests take a fallback",
        ),
        (&["--tokens", "echo", "--tokens-fallback"], "only guests take a fallback"),
        (&["--failure-injector-fallback"], "--failure-injector"),
        (&["--router", "prefix-afinity"], "did you mean"),
        (&["--router", "prefix_affinity(#{ load_factor: 0 })"], "`load_factor` must be 1 to 1e6"),
        (&["--router", "least-loaded", "--router-config", "{}"], "only guests take a configuration"),
        (&["--router", "least-loaded", "--router-fallback", "round-robin"], "only guests take a fallback"),
        (&["--router-fallback", "round-robin"], "--router"),
        (&["--inter-token-latency", "10"], "has no unit"),
        (&["--inter-token-latency", "10ms", "--latency", "7"], "cannot be used with"),
        (&["--fault", "eror:rate=1"], "there is no `eror`"),
        (&["--tokens", "nothing"], "no such source and no such file"),
        (&["--tokens", list], "jsonl:2: "),
        (&["--output-tokens", "\"10ms\""], "--output-tokens"),
        (&["--failure-injection-rate", "2"], "must be from 0 to 1"),
        (&["--failure-injection-rate", "0.5", "--failure-types", "x"], "must be error, abort"),
        (&["--time-scale", "0"], "--time-scale must be more than 0"),
        (&["--enable-kv-cache-events", "--no-enable-prefix-caching"], "needs prefix caching"),
    ] {
        let (code, said) = run(args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(wanted), "{args:?}: {said}");
    }
}
