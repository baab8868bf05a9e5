//! Inputs that documented commands name.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use vcr_tests::{Folder, Said, built_guest, byte_tokenizer, component, root, self_signed, shipped_guest, vcr};

/// Options that are followed by the name of an output.
const OUTPUTS: [&str; 9] =
    ["-o", "--output", "--out", "--path", ">", "--report-json", "--report-jsonl", "--sweep-out", "--playback-report"];

/// The user's home, for commands that write there.
pub(crate) const HOME: &str = "home";

/// Folders of the repository that commands name.
const OF_THE_REPOSITORY: [&str; 4] = ["scenarios", "guests", "tests", "docs"];

/// Guests of readers, which the pages build, and shipped guests that accept the same configs.
const OWN_GUESTS: [(&str, &str); 3] = [
    ("my-router.wasm", "prefix-affinity"),
    ("shortest.wasm", "prefix-affinity"),
    ("brief.wasm", "shortest-prompt-first"),
];

/// Replaces paths of readers' guests in a line by paths in the working folder, because `guests` is the repository's
/// folder.
pub(crate) fn with_own_guests(line: &str) -> String {
    OWN_GUESTS.iter().fold(line.to_owned(), |line, (name, _)| line.replace(&format!("guests/dist/{name}"), name))
}

/// All inputs, with the names that the pages use.
pub(crate) struct Pantry {
    folder: Folder,
    programs: Folder,
}

/// The folder in which one command runs.
pub(crate) struct Scratch<'a> {
    folder: Folder,
    programs: &'a Path,
}

impl Scratch<'_> {
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The folder with the `vcr` binary.
    pub(crate) fn programs(&self) -> &Path {
        self.programs
    }
}

impl Pantry {
    pub(crate) fn new() -> Self {
        let programs = Folder::new();
        symlink(vcr(), programs.path().join("vcr")).expect("the folder is writable");
        let pantry = Self { folder: Folder::new(), programs };
        pantry.add_traces_and_captures();
        pantry.add_reports();
        pantry.add_recordings();
        pantry.add_observations();
        pantry.add_measurements();
        pantry.add_guests();
        pantry.add_shards();
        pantry.add_certificates();
        pantry.add_model();
        pantry.add_plan();
        pantry.add_workload_of_aiperf();
        pantry
    }

    /// A new folder with the inputs that a command names.
    pub(crate) fn folder_for(&self, line: &str) -> Scratch<'_> {
        let folder = Folder::new();
        for name in OF_THE_REPOSITORY {
            symlink(root().join(name), folder.path().join(name)).expect("the folder is writable");
        }
        // Folders in the user's home.
        for place in [".local/share/bash-completion/completions", ".zfunc", ".config/fish/completions"] {
            fs::create_dir_all(folder.path().join(HOME).join(place)).expect("the folder is writable");
        }
        let words: Vec<&str> = line.split(|char: char| char.is_whitespace() || char == '\'' || char == '"').collect();
        for (index, word) in words.iter().enumerate() {
            let before = index.checked_sub(1).map_or("", |before| words[before]);
            let name = word.trim_start_matches('@').trim_start_matches("model=").split('/').next().unwrap_or_default();
            let from = self.folder.path().join(name);
            let is_input = !name.is_empty() && !OUTPUTS.contains(&before) && before != "new" && from.exists();
            let to = folder.path().join(name);
            if is_input && !to.exists() {
                let copied = Command::new("cp").arg("-r").arg(&from).arg(&to).status().expect("there is `cp`");
                assert!(copied.success(), "{name}");
            }
        }
        Scratch { folder, programs: self.programs.path() }
    }

    fn vcr(&self, args: &[&str]) -> Said {
        self.folder.vcr(args).ended(0)
    }

    fn copy(&self, from: &str, to: &str) {
        fs::copy(self.folder.path().join(from), self.folder.path().join(to)).expect("the folder is writable");
    }

    fn add_traces_and_captures(&self) {
        let rows = (0..40).map(|index| {
            let row = json!({"timestamp": 250 * index, "input_length": 1100 + index, "output_length": 20,
                "hash_ids": [1, 2 + index % 4, 100 + index]});
            format!("{row}\n")
        });
        let trace: String = rows.collect();
        self.folder.write("trace.jsonl", &trace);
        self.folder.write("conversation_trace.jsonl", &trace);
        let turn = |start: f64, ids: &[u32]| json!({"type": "s", "t": start, "model": "m", "in": 64 * ids.len(), "out": 20, "api_time": 1.0, "hash_ids": ids});
        let plays = (0..3).map(|play| {
            let requests = [turn(0.0, &[1]), turn(3.0, &[1, 2]), turn(9.0, &[1, 2, 3])];
            let play =
                json!({"id": format!("play-{play}"), "block_size": 64, "hash_id_scope": "local", "requests": requests});
            format!("{play}\n")
        });
        fs::create_dir_all(self.folder.path().join("agents")).expect("the folder is writable");
        self.folder.write("agents/plays.jsonl", plays.collect::<String>());
        let request = |id, arrival_tick| {
            json!({"id": id, "prompt_tokens": 32, "max_output_tokens": 8, "priority": 1,
            "arrival_tick": arrival_tick})
        };
        let config = json!({"total_kv_pages": 20, "page_size_tokens": 16, "max_active": 3,
            "prefill_tokens_per_tick": 128, "decode_width": 2});
        let ticks = json!({"config": config, "requests": [request("a", 0), request("b", 4)]});
        self.folder.write("ticks.json", ticks.to_string());
        self.folder.write("engine.json", r#"{"num_gpu_blocks": 8192, "speedup_ratio": 2}"#);
        for name in ["capture.jsonl", "capture.jsonl.zst", "demo.jsonl", "day.jsonl.zst"] {
            let _ = self.vcr(&["inspect", "gen-demo", "-o", name, "--requests", "60"]);
        }
        self.copy("capture.jsonl", "day.jsonl");
        self.copy("capture.jsonl", "before.jsonl");
        self.copy("capture.jsonl", "after.jsonl");
    }

    fn add_certificates(&self) {
        let engine = self_signed(self.folder.path(), "127.0.0.1", "engine");
        let authority = self.folder.path().join("authority.pem");
        std::fs::copy(engine.certificate, authority).expect("a folder of tests is writable");
    }

    fn add_model(&self) {
        let config = root().join("tests/recordings/h100/capture/model/qwen3-14b/config.json");
        fs::copy(config, self.folder.path().join("config.json")).expect("the folder is writable");
    }

    /// Adds a workload of aiperf, and a scenario with it.
    fn add_workload_of_aiperf(&self) {
        let phases = "phases: [{name: profiling, type: poisson, rate: 10, duration: 2s}]";
        let benchmark = format!("{{dataset: {{isl: 50, osl: 5}}, {phases}}}");
        self.folder.write("aiperf.yaml", format!("schemaVersion: '2.0'\nbenchmark: {benchmark}\n"));
        let cluster = "cluster(#{ engines: pool(#{ latency: polynomial(#{}) }) })";
        let run = format!("run(#{{ cluster: {cluster}, workloads: workload_file(\"aiperf.yaml\") }});\n");
        self.folder.write("aiperf.rhai", run);
    }

    /// Adds the inputs of a plan, and its answer.
    fn add_plan(&self) {
        let load = "rate: 20\nrequests: 200\nprompt_tokens: 800\noutput_tokens: 100\n";
        let space = "space: {tensor_parallel: [1, 2], max_num_seqs: [64], prefill_decode: []}\n";
        let asked = format!("model: Qwen/Qwen3-8B\ngpu: h100\nslo: ttft.p95 < 1s\nlatency: roofline\n{load}{space}");
        self.folder.write("plan.yaml", asked);
        let _ = self.vcr(&["plan", "plan.yaml", "--quiet", "--out", "plan"]);
    }

    /// Adds the shards of a sweep to a separate folder, and copies of them to the main folder.
    fn add_shards(&self) {
        let scenario = root().join("scenarios/failure_drill.rhai");
        for shard in ["0/2", "1/2"] {
            let sweep = ["--sweep", "rate=8..32..8", "--sweep-out", "shards/grid.csv", "--shard", shard, "-q"];
            let _ = self.vcr(&[&["run", scenario.to_str().expect("a path in UTF-8")], &sweep[..]].concat());
        }
        for name in ["grid.0-of-2.shard", "grid.1-of-2.shard"] {
            self.copy(&format!("shards/{name}"), name);
        }
    }

    /// Adds files in the formats of other tools, and the outputs of runs.
    fn add_reports(&self) {
        let request = json!({"request_id": "a", "prompt_tokens": 5, "output_tokens": 3, "time_to_first_token_ms": 1.5,
            "inter_token_latency_ms": 2, "request_start_time": 1_700_000_001.25, "request_latency": 0.5});
        let benchmark = json!({"requests": {"successful": [request]}, "config": {"strategy": {"type_": "poisson"}}});
        let metadata = json!({"guidellm_version": "0.6.1"});
        let report = json!({"metadata": metadata, "args": {"model": "m"}, "benchmarks": [benchmark]});
        self.folder.write("report.json", report.to_string());
        let attribute = |name: &str, value: u32| json!({"key": name, "value": {"intValue": value}});
        let attributes = [attribute("gen_ai.usage.input_tokens", 12), attribute("gen_ai.usage.output_tokens", 5)];
        let span = json!({"traceId": "0a", "spanId": "0b", "name": "llm_request", "attributes": attributes,
            "startTimeUnixNano": "1000000000", "endTimeUnixNano": "2000000000"});
        let spans = json!({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]});
        self.folder.write("spans.json", spans.to_string());
        self.folder.write("tokenizer.json", byte_tokenizer().to_string());
        let _ = self.vcr(&["guest", "vocabulary", "tokenizer.json", "-o", "vocabulary.json"]);
        let scenario = root().join("scenarios/pd_burst.rhai");
        for out in ["out", "other-out", "before", "after"] {
            let _ = self.vcr(&["run", scenario.to_str().expect("a path in UTF-8"), "--quiet", "--out", out]);
        }
        let _ = self.vcr(&["pack", scenario.to_str().expect("a path in UTF-8"), "--quiet", "-o", "bug.vcr"]);
    }

    /// Adds simulated measurements of two loads, and a model that is fitted to one of them.
    fn add_measurements(&self) {
        let scenario = r#"let e = engine(#{ num_gpu_blocks: 27_000 });
let gpu = trained_physics(#{ coefficients: "blis.json", model: "llama-3.1-8b", gpu: "h100-sxm" });
let w = poisson(#{ rate: param("rate", "8/s"), count: 60, prompt_tokens: lognormal(400, 350), output_tokens: lognormal(80, 50) });
run(#{ workloads: [w], cluster: cluster(#{ engines: pool(#{ engine: e, latency: gpu }) }) });
"#;
        fs::create_dir(self.folder.path().join("loads")).expect("the folder is writable");
        let blis = root().join("guests/trained-physics/blis-h100.json");
        fs::copy(blis, self.folder.path().join("blis.json")).expect("the folder is writable");
        self.copy("blis.json", "fit.json");
        self.folder.write("measured.rhai", scenario);
        for (rate, table, mapped) in [("8/s", "requests.csv", "low.csv"), ("12/s", "other-load.csv", "high.csv")] {
            let rate = format!("rate={rate}");
            let outputs = ["--force", "--requests", "run.jsonl", "--out", "measured", "--files", "steps"];
            let _ = self.vcr(&[&["run", "measured.rhai", "-q", "-e", &rate], &outputs[..]].concat());
            let text = fs::read_to_string(self.folder.path().join("run.jsonl")).expect("it was written");
            let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
            let csv = |titles: &str, ms_per_unit: f64| {
                let line = |row: &Value| {
                    let time = |name: &str| row[name].as_f64().expect("a time") / ms_per_unit;
                    let (ttft, e2e) = (time("ttft_ms"), time("e2e_ms"));
                    format!("{},{},{},{ttft},{e2e}\n", row["arrival_ms"], row["prompt_tokens"], row["output_tokens"])
                };
                format!(
                    "arrival_ms,prompt_tokens,output_tokens,{titles}\n{}",
                    rows.iter().map(line).collect::<String>()
                )
            };
            self.folder.write(table, csv("ttft_ms,e2e_ms", 1.0));
            self.folder.write(&format!("loads/{table}"), csv("ttft_ms,e2e_ms", 1.0));
            self.folder.write(mapped, csv("first,total", 1e3));
        }
        let folder = self.folder.path();
        fs::copy(folder.join("measured/steps.jsonl"), folder.join("steps.jsonl")).expect("it was written");
        let _ = self.vcr(&["inspect", "convert", "requests.csv", "-o", "recorded.jsonl.zst"]);
        // A scenario of the reader's own, with any model.
        fs::copy(root().join("docs/tutorials/first.rhai"), self.folder.path().join("capacity.rhai"))
            .expect("the folder is writable");
        self.folder.write("gates.toml", "[gates]\n\"itl mean\" = \"< 40%\"\n");
        let _ = self.vcr(&["fit", "requests.csv", "--engine", "num_gpu_blocks: 27_000", "-o", "model.json"]);
    }

    /// Adds observations of two systems that differ only by noise, and files from which observations can be made.
    fn add_observations(&self) {
        for (name, shift) in [("stable.jsonl", 0_u64), ("canary.jsonl", 17)] {
            let line = |index: u64| {
                let ttft_ns = 50_000_000 + (index + shift) % 97 * 100_000;
                let line = json!({"observation": 1, "request_id": format!("r{index}"), "ok": true, "token_ids": [index, 7],
                    "latency_ns": ttft_ns + 200_000_000, "ttft_ns": ttft_ns, "tenant": "chat", "route": "east"});
                format!("{line}\n")
            };
            self.folder.write(name, (0..400).map(line).collect::<String>());
        }
        self.folder.write("policy.toml", self.vcr(&["gate", "--print-policy"]).stdout);
        let data = json!({"model": "m", "choices": [{"index": 0, "delta": {"content": "Hello"}}]});
        let chunk =
            |at_ms: u32, data: &Value| format!("{}\n", json!({"request_id": "a", "at_ms": at_ms, "data": data}));
        self.folder.write("chunks.jsonl", chunk(20, &data) + &chunk(31, &json!("[DONE]")));
        self.folder.write("answers.csv", "id,total,answer\na,0.5,yes\nb,0.75,no\n");
    }

    fn add_recordings(&self) {
        let from = root().join("tests/recordings/vllm-scheduler");
        for (name, to) in
            [("fcfs-preempt", "recordings/fcfs-preempt"), ("mixed-00", "captures/burst"), ("mixed-01", "captures/mine")]
        {
            let to = self.folder.path().join(to);
            fs::create_dir_all(to.parent().expect("it lies in a folder")).expect("the folder is writable");
            let copied = Command::new("cp").arg("-r").arg(from.join(name)).arg(to).status().expect("there is `cp`");
            assert!(copied.success(), "{name}");
        }
    }

    fn add_guests(&self) {
        for (name, shipped) in OWN_GUESTS {
            let Some(path) = shipped_guest(shipped) else { return };
            fs::copy(path, self.folder.path().join(name)).expect("the folder is writable");
        }
        let wit = "package vcr:guest@0.9.0; interface latency { answer: func() -> u32; } \
                   world latency-model { export latency; }";
        let text = "(module (func (export \"vcr:guest/latency@0.9.0#answer\") (result i32) (i32.const 1)))";
        self.folder.write("newer.wasm", component(wit, text));
        for (name, world) in
            [("my-model", "latency-model"), ("my-guest", "latency-model"), ("my-policy", "scheduler-policy")]
        {
            let _ = self.vcr(&["guest", "new", name, "--world", world]);
        }
        let Some(policy) = shipped_guest("shortest-prompt-first") else { return };
        let dist = self.folder.path().join("my-policy/dist");
        fs::create_dir_all(&dist).expect("the folder is writable");
        fs::copy(policy, dist.join("my-policy.wasm")).expect("the folder is writable");
        let project = self.folder.path().join("my-model");
        // Without a compiler, commands that need the guest cannot be tested.
        let _ = built_guest(&project, &project.join("dist"));
    }
}
