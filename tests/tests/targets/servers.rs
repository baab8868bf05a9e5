//! Servers that the run did not start: `vcr serve`, and vLLM's own frontend.

use serde_json::json;
use vcr_tests::{Folder, Frontend, FrontendOptions, Play, Serve, frontend_model, self_signed, vllm_rs};

use crate::steps::Logged;
use crate::{Outputs, SCENARIO};

/// Options that give a server the scenario's engines.
const ENGINE: [&str; 6] =
    ["--num-gpu-blocks", "2001", "--max-model-len", "8192", "--latency", "fixed(#{ step: \"5ms\" })"];

#[test]
fn a_server_of_its_own_gets_the_requests_of_virtual_time() {
    let folder = Folder::with(SCENARIO);
    let simulated = Outputs::of(&folder, "virtual", &[]);
    let server = Serve::start(&ENGINE);
    let measured = Outputs::of(&folder, &format!("http://{}", server.address()), &[]);
    assert_eq!(measured.asked(), simulated.asked());
    for counter in ["requests", "completed", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions"] {
        assert_eq!(measured.counter(counter), simulated.counter(counter), "{counter}");
    }
    let run = measured.run();
    assert_eq!((&run["target"]["name"], &run["target"]["prompts"]), (&json!("http"), &json!("token ids")));
    assert!(run["metrics"]["gauges"]["kv_peak_usage"].is_number(), "the server has metrics");
    for unknown in ["queue", "prefill", "step", "steps"] {
        assert!(run["target"]["absent"][unknown].is_string(), "{unknown}");
    }
    assert!(run["metrics"]["counters"]["steps"].is_null(), "unknown is not 0");
    assert!(
        run["target"]["absent_files"]["steps.jsonl"].is_string(),
        "and why there is no step log: {}",
        run["target"]
    );
    assert!(run["workloads"]["chat"]["counters"]["preemptions"].is_null(), "known of all together");
    assert!(run["target"]["absent_of_workloads"]["preemptions"].is_string());
    assert_eq!(run["target"]["notes"], json!(null), "nothing was unusual: {}", run["target"]);
}

/// If a server does not accept token IDs, prompts are texts of the same length with the same shared parts.
#[test]
fn texts_have_exactly_as_many_tokens() {
    let folder = Folder::with(SCENARIO);
    let simulated = Outputs::of(&folder, "virtual", &[]);
    let server = Serve::start(&ENGINE);
    let target = format!("http(\"http://{}\", #{{ prompts: \"text\" }})", server.address());
    let measured = Outputs::of(&folder, &target, &[]);
    assert_eq!(measured.asked(), simulated.asked());
    assert_eq!(measured.run()["target"]["prompts"], "text");
    let hits = measured.counter("cached_tokens").as_u64().expect("it is known");
    let wanted = simulated.counter("cached_tokens").as_u64().expect("it is known");
    assert!(hits >= wanted / 2, "{hits} of {wanted} tokens were found in the cache");
}

#[test]
fn an_assertion_on_what_a_target_cannot_know_is_an_error() {
    let script = SCENARIO
        .replace("expect(result, \"ttft\"", "expect(result, \"steps\", \"count > 0\");\nexpect(result, \"ttft\"");
    let folder = Folder::with(&script);
    let server = Serve::start(&ENGINE);
    let target = format!("http://{}", server.address());
    let said = folder.run(&["--target", &target]);
    said.failed(
        2,
        &[
            "`steps` of the run `run` is not known on the target `http`",
            "known to the server only",
            "if has(result, \"steps\")",
        ],
    );
    let folder = Folder::with(
        &script
            .replace("expect(result, \"steps\"", "if has(result, \"steps\") { expect(result, \"steps\"")
            .replace("> 0\");\nexpect", "> 0\"); }\nexpect"),
    );
    let _ = folder.run(&["--target", &target]).ended(0);
    let _ = folder.run(&[]).ended(0);
}

/// A series of engines that the run cannot see is an error with the reason. Series of requests are available.
#[test]
fn engines_of_others_have_no_series() {
    let server = Serve::start(&ENGINE);
    let target = format!("http://{}", server.address());
    let folder = Folder::with(&format!("{SCENARIO}\nseries(result, \"arrived_per_s\");"));
    let _ = folder.run(&["--target", &target]).ended(0);
    let folder = Folder::with(&format!("{SCENARIO}\nseries(result, \"waiting\");"));
    folder.run(&["--target", &target]).failed(2, &["are not known over time", "external server"]);
}

/// A certificate is accepted if its authority is trusted.
#[test]
fn certificates_are_checked() {
    let folder = Folder::with(SCENARIO);
    let own = self_signed(folder.path(), "127.0.0.1", "own");
    let [certificate, key] = own.paths();
    let server = Serve::start_tls(&[&ENGINE[..], &["--ssl-certfile", certificate, "--ssl-keyfile", key]].concat());
    let url = format!("https://{}", server.address());
    folder.run(&["--target", &url]).failed(2, &["no TLS connection to", "UnknownIssuer", "ca_file"]);
    let target = format!("http(\"{url}\", #{{ ca_file: \"own.pem\" }})");
    let measured = Outputs::of(&folder, &target, &[]);
    assert_eq!(measured.counter("failed"), 0);
}

#[test]
fn keys_and_headers_are_sent() {
    let folder = Folder::with(SCENARIO);
    let server = Serve::start(&[&ENGINE[..], &["--api-key", "secret"]].concat());
    let url = format!("http://{}", server.address());
    folder.run(&["--target", &url]).failed(2, &["HTTP status 401", "api_key_env"]);
    let target = format!("http(\"{url}\", #{{ headers: #{{ \"Authorization\": \"Bearer secret\" }} }})");
    let _ = folder.run(&["--target", &target]).ended(0);
    let target = format!("http(\"{url}\", #{{ api_key_env: \"VCR_TEST_NO_SUCH_KEY\" }})");
    folder.run(&["--target", &target]).failed(2, &["`VCR_TEST_NO_SUCH_KEY`, which is not set"]);
}

/// vLLM's own frontend in front of `vcr play`, both started outside the run.
#[test]
fn the_frontend_of_vllm_over_vcr_play_gets_them() {
    let folder = Folder::with(SCENARIO);
    let simulated = Outputs::of(&folder, "virtual", &[]);
    let Some(mut frontend) = Frontend::start("0.33.0", &FrontendOptions::default()) else { return };
    let _play = Play::start(&frontend.handshake_address(), &ENGINE);
    frontend.wait_until_it_serves();
    let measured = Outputs::of(&folder, &frontend.url(""), &[]);
    assert_eq!(measured.asked(), simulated.asked(), "{}", measured.run()["target"]);
    for counter in ["completed", "cached_tokens", "output_tokens", "preemptions"] {
        assert_eq!(measured.counter(counter), simulated.counter(counter), "{counter}");
    }
}

/// Like [`the_frontend_of_vllm_over_vcr_play_gets_them`], but the run starts and stops the frontend, for each release.
#[test]
fn a_run_starts_and_stops_the_frontend_of_vllm() {
    let folder = Folder::with(SCENARIO);
    let simulated = Outputs::of(&folder, "virtual", &["-e", "engines=2"]);
    for release in vcr_tests::releases() {
        let (Some(binary), Some(model)) = (vllm_rs(release), frontend_model()) else { return };
        let target = format!("frontend(#{{ binary: \"{}\", model: \"{}\" }})", binary.display(), model.display());
        let Logged { outputs: measured, files, .. } = &Logged::of(&folder, &target, &["-e", "engines=2"]);
        assert_eq!(measured.asked(), simulated.asked(), "{release}: {}", measured.run()["target"]);
        assert_eq!(measured.run()["target"]["name"], "frontend");
        let (steps, known) = (measured.counter("steps"), &measured.run()["metrics"]["trends"]["step_ms"]["count"]);
        assert!(steps.as_u64() > Some(50) && known == steps, "engines in this process tell their steps: {known}");
        assert!(files.contains("steps.jsonl"), "{release}: {files:?}");
    }
}

/// Each pool has a frontend, as with vLLM's proxies: prompts go to one, outputs come from the other, and KV moves
/// between the engines.
#[test]
fn a_run_starts_a_frontend_for_each_pool() {
    let folder = Folder::with(
        r#"
        let p = |name, engines| pool(#{
            name: name, engines: engines, engine: engine(#{ num_gpu_blocks: 2_001, max_model_len: 8_192 }),
            latency: fixed(#{ step: "5ms" }), router: "round-robin",
        });
        let c = cluster(#{
            prefill: p.call("prefill", 2), decode: p.call("decode", 1),
            link: link(#{ kv_bytes_per_token: "1KiB", latency: "1ms" }),
        });
        let work = constant(#{ rate: "20/s", count: 12, prompt_tokens: uniform(40, 200), output_tokens: uniform(4, 20) });
        let r = run(#{ cluster: c, workloads: [ work ] });
        expect(r, "completed", "count == 12");
        expect(r, "transfer", "min >= 1ms");
    "#,
    );
    let simulated = Logged::of(&folder, "virtual", &[]);
    let (Some(binary), Some(model)) = (vllm_rs("0.33.0"), frontend_model()) else { return };
    let target = format!("frontend(#{{ binary: \"{}\", model: \"{}\" }})", binary.display(), model.display());
    let logged = Logged::of(&folder, &target, &[]);
    assert_eq!(logged.outputs.asked(), simulated.outputs.asked());
    assert_eq!(logged.emitted("decode"), logged.received());
    assert_eq!(logged.emitted("prefill"), simulated.emitted("prefill"));
    assert!(logged.outputs.requests.iter().all(|row| row["decode_engine"] == "decode 0"));
}

/// Conversations on four engines: a turn finds its past if it is sent to the engine of the previous turn.
const CONVERSATIONS: &str = r#"
let c = cluster(#{ engines: pool(#{
    engines: 4, engine: engine(#{ num_gpu_blocks: 2_001 }), latency: fixed(#{ step: "2ms" }), router: ROUTER,
}) });
run(#{ cluster: c, workloads: [
    closed_loop(#{ concurrency: 3, count: 12, turns: 4, prompt_tokens: 160, output_tokens: 16 }),
] });
"#;

/// A server identifies sessions by a header with the session's ID, or by the cookie in the answer to the previous
/// turn.
#[test]
fn servers_know_sessions_by_header_and_cookie() {
    let folder = Folder::with(&CONVERSATIONS.replace("ROUTER", "\"round-robin\""));
    let hits = |options: &str| {
        let args = ["--data-parallel-size", "4", "--router", "sticky(#{ router: \"round-robin\" })"];
        let server = Serve::start(&[&ENGINE[..], &args, &["--session-cookie", "vcr-session"]].concat());
        let target = format!("http(\"http://{}\"{options})", server.address());
        let measured = Outputs::of(&folder, &target, &[]);
        assert_eq!(measured.counter("completed"), 48, "{options}");
        measured.counter("cached_tokens").as_u64().expect("the server tells")
    };
    let unknown = hits("");
    for options in [", #{ session_header: \"X-Session-Id\" }", ", #{ session_token: \"cookie\" }"] {
        let known = hits(options);
        assert!(known > unknown + 5_000, "{options}: {known} against {unknown} tokens");
    }
    folder
        .run(&["--target", "http(\"http://127.0.0.1:1\", #{ session_token: \"a b\" })"])
        .failed(2, &["invalid `session_token`: expected the name of a header"]);
}

/// Sessions on the engines of a run's own server, and on engines that the run calls directly.
#[test]
fn sessions_stay_with_their_engine_in_real_time() {
    let folder = Folder::with(&CONVERSATIONS.replace("ROUTER", "sticky(#{ router: \"round-robin\" })"));
    let wanted = Outputs::of(&folder, "virtual", &[]).counter("cached_tokens").clone();
    for target in ["live", "serve"] {
        assert_eq!(*Outputs::of(&folder, target, &[]).counter("cached_tokens"), wanted, "{target}");
    }
}
