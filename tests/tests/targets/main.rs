//! The same scenarios in virtual time, on live engines, behind servers, and behind vLLM's own frontend.

mod bad_input;
mod clients;
mod clusters;
mod disaggregated;
mod engines;
mod faults;
mod recordings;
mod servers;
mod shipped;
mod steps;

use serde_json::Value;
use vcr_tests::Folder;

/// Engines whose steps all take the same time, and a workload of sessions with shared prefixes.
const SCENARIO: &str = r#"//! Claim: targets run the same requests.
let engines = param("engines", 1);
let target = cluster(#{ engines: pool(#{
    engines: engines,
    engine: engine(#{ num_gpu_blocks: 2_001, max_model_len: 8_192 }),
    latency: fixed(#{ step: "5ms" }),
    router: "round-robin",
}) });
let result = run(#{ cluster: target, workloads: [
    // Sessions start one after the other, so that cache hits do not depend on single milliseconds.
    constant(#{
        name: "chat", rate: "12/s", count: 12, prompt_tokens: uniform(40, 200), output_tokens: uniform(4, 20),
        shared_prefix_tokens: 160, prefix_groups: 2, turns: uniform(1, 3), think_time: "20ms",
    }),
    closed_loop(#{ name: "loop", concurrency: 2, count: 8, prompt_tokens: 96, output_tokens: 10 }),
] });
expect(result, "completed_ratio", "value == 100%");
expect(result, "ttft", "p50 > 1ms");
if has(result, "prefix_hit_ratio") { expect(result, "prefix_hit_ratio", "value > 20%"); }
if has(result, "preemptions") { expect(result, "preemptions", "count == 0"); }
"#;

struct Outputs {
    report: Value,
    requests: Vec<Value>,
}

impl Outputs {
    /// Runs a folder's `test.rhai` on a target.
    #[track_caller]
    fn of(folder: &Folder, target: &str, args: &[&str]) -> Self {
        let given = ["--target", target, "--out", "out", "--force", "--files", "report,requests"];
        let _ = folder.run(&[&given[..], args].concat()).ended(0);
        Self::read(folder)
    }

    /// Reads a run's files from `out`.
    #[track_caller]
    fn read(folder: &Folder) -> Self {
        let read = |name: &str| std::fs::read_to_string(folder.path().join("out").join(name)).expect("it was written");
        let requests = read("requests.jsonl");
        let requests = requests.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
        Self { report: serde_json::from_str(&read("report.json")).expect("it is JSON"), requests }
    }

    fn run(&self) -> &Value {
        &self.report["runs"][0]
    }

    fn counter(&self, name: &str) -> &Value {
        &self.run()["metrics"]["counters"][name]
    }

    /// Properties of each request, in an order that does not depend on times.
    fn asked(&self) -> Vec<[String; 7]> {
        let keys = ["workload", "session", "turn", "prompt_tokens", "max_tokens", "output_tokens", "status"];
        let mut asked: Vec<_> = self.requests.iter().map(|row| keys.map(|key| row[key].to_string())).collect();
        asked.sort();
        asked
    }
}
