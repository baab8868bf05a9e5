//! Clients that give up, cancel, retry, and name LoRA adapters.

use std::collections::BTreeMap;

use vcr_tests::{Folder, Serve, frontend_model, vllm_rs};

use crate::Outputs;

/// Every step takes 5 ms, so time limits end requests in the middle of answers on every target.
const CLIENTS: &str = r#"//! Claim: clients decide alike on all targets.
let c = cluster(#{ engines: pool(#{
    engine: engine(#{ num_gpu_blocks: 2_001, max_loras: 4 }), latency: fixed(#{ step: "5ms" }),
}) });
let r = run(#{ cluster: c, workloads: [
    burst(#{
        name: "cancelled", count: 6, prompt_tokens: 64, output_tokens: 1_000,
        cancel: #{ share: 0.5, after_tokens: uniform(5, 20) }, deadline: "2s",
    }),
    burst(#{
        name: "timed-out", count: 3, prompt_tokens: 32, output_tokens: 1_000,
        timeout: "300ms", retry: #{ max_attempts: 3, backoff: "50ms" },
    }),
    burst(#{
        name: "in-time", count: 2, prompt_tokens: 32, output_tokens: 20,
        first_token_timeout: "1s", timeout: "3s", retry: #{ max_attempts: 3, backoff: "50ms" },
    }),
    burst(#{ name: "adapters", count: 8, prompt_tokens: 32, output_tokens: 8, adapters: #{ count: 4, first: 1 } }),
    burst(#{ name: "stops", count: 4, prompt_tokens: 32, output_tokens: 40, stop_after: 12 }),
] });
expect(r, "timeouts{workload:timed-out}", "count == 9");
expect(r, "client_retries", "count == 6");
expect(r, "completed{workload:in-time}", "count == 2");
expect(r, "completed{workload:adapters}", "count == 8");
expect(r, "output_tokens{workload:stops}", "count == 48");
expect(r, "wasted_tokens", "count > 100");
if has(r, "wasted_prompt_tokens") { expect(r, "wasted_prompt_tokens", "count > 300"); }
"#;

/// Number of requests by workload, ending and adapter.
fn endings(outputs: &Outputs) -> BTreeMap<[String; 5], usize> {
    let mut endings = BTreeMap::new();
    for row in &outputs.requests {
        let ending = ["workload", "session", "attempt", "adapter", "status"].map(|key| row[key].to_string());
        *endings.entry(ending).or_default() += 1;
    }
    endings
}

/// Output tokens of each request that its client cancelled at a number of tokens.
fn cancelled(outputs: &Outputs) -> BTreeMap<String, u64> {
    let cut = outputs.requests.iter().filter(|row| row["status"] == "cancelled");
    cut.map(|row| (row["session"].to_string(), row["output_tokens"].as_u64().expect("a number"))).collect()
}

#[test]
fn clients_decide_alike_in_virtual_and_in_real_time() {
    let folder = Folder::with(CLIENTS);
    let simulated = Outputs::of(&folder, "virtual", &[]);
    assert!((1..6).contains(&cancelled(&simulated).len()), "{:?}", cancelled(&simulated));
    for target in ["live", "serve"] {
        let measured = Outputs::of(&folder, target, &[]);
        assert_eq!(endings(&measured), endings(&simulated), "{target}");
        // A client cancels when it gets the message with the decisive token. This message may contain further
        // tokens.
        let (received, wanted) = (cancelled(&measured), cancelled(&simulated));
        assert!(received.keys().eq(wanted.keys()), "{target}: {received:?} {wanted:?}");
        assert!(received.values().zip(wanted.values()).all(|(received, wanted)| received >= wanted), "{received:?}");
        let run = measured.run();
        assert!(run["target"]["absent"]["wasted_prompt_tokens"].is_string(), "{target}");
        // Cancelled requests cause no further load: the run takes half a second of steps, not five.
        let steps = run["engines"][0]["steps"].as_u64().expect("engines count their steps");
        assert!((200..700).contains(&steps), "{steps} on {target}");
    }
}

/// A real frontend loads its adapters into the engines when it starts.
#[test]
fn the_frontend_of_vllm_serves_adapters_and_clients_that_give_up() {
    let folder = Folder::with(CLIENTS);
    let simulated = Outputs::of(&folder, "virtual", &[]);
    // The oldest release here has a frontend without adapters.
    for release in vcr_tests::releases().iter().filter(|release| **release != "0.27.1") {
        let (Some(binary), Some(model)) = (vllm_rs(release), frontend_model()) else { return };
        let target = format!("frontend(#{{ binary: \"{}\", model: \"{}\" }})", binary.display(), model.display());
        let measured = Outputs::of(&folder, &target, &[]);
        assert_eq!(endings(&measured), endings(&simulated), "{release}");
    }
}

/// A server's adapters have the server's own names.
#[test]
fn adapters_of_a_server_are_models_by_name() {
    let folder = Folder::with(CLIENTS);
    let engine = ["--num-gpu-blocks", "2001", "--latency", "fixed(#{ step: \"5ms\" })", "--max-loras", "4"];
    let modules = ["--lora-modules", "en=en", "fr=fr", "es=es", "de=de", "it=it"];
    let server = Serve::start(&[&engine[..], &modules].concat());
    let run = |options: &str| folder.run(&["--target", &format!("http(\"http://{}\"{options})", server.address())]);
    run("").failed(2, &["has no LoRA adapter `adapter-1`, which a workload uses", "adapters: [\"sql\", \"chat\"]"]);
    run(", #{ adapters: [\"en\", \"fr\"] }").failed(2, &["has no name for the LoRA adapter 2"]);
    run(", #{ adapters: \"en\" }").failed(2, &["invalid `adapters`: expected a list of names, or a text with {}"]);
    let _ = run(", #{ adapters: [\"en\", \"fr\", \"es\", \"de\", \"it\"] }").ended(0);
}

/// An engine without adapters refuses their requests on every target that knows this.
#[test]
fn engines_without_adapters_reject_requests_that_name_one() {
    let folder = Folder::with(&CLIENTS.replace(", max_loras: 4", "").replace(
        "expect(r, \"completed{workload:adapters}\", \"count == 8\");",
        "expect(r, \"rejected{workload:adapters}\", \"count == 8\");",
    ));
    for target in ["virtual", "live"] {
        let _ = Outputs::of(&folder, target, &[]);
    }
}
