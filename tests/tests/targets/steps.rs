//! Step logs of every target whose engines run in this process.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use vcr_tests::Folder;

use crate::{Outputs, SCENARIO};

/// Targets with step logs.
const TARGETS: [&str; 3] = ["virtual", "live", "serve"];

/// Results of a run that writes all files.
pub(crate) struct Logged {
    pub(crate) outputs: Outputs,
    pub(crate) files: BTreeSet<String>,
    lines: Vec<Value>,
}

impl Logged {
    #[track_caller]
    pub(crate) fn of(folder: &Folder, target: &str, args: &[&str]) -> Self {
        let _ = folder.run(&[&["--target", target, "--out", "out", "--force"][..], args].concat()).ended(0);
        let out = folder.path().join("out");
        let entries = std::fs::read_dir(&out).expect("it was written");
        let names = entries.map(|entry| entry.expect("it can be listed").file_name().display().to_string());
        let text = std::fs::read_to_string(out.join("steps.jsonl")).expect("steps were written");
        let lines = text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
        // The reader accepts every line, and an engine's lines are consecutive.
        let shown = folder.vcr(&["inspect", "steps", "out", "--limit", "5"]).ended(0);
        assert!(shown.stdout.contains("tokens"), "{target}: {}", shown.stdout);
        Self { outputs: Outputs::read(folder), files: names.collect(), lines }
    }

    /// Number of tokens that engines of a pool gave each request, by request number.
    pub(crate) fn emitted(&self, pool: &str) -> BTreeMap<u64, u64> {
        let mut emitted = BTreeMap::new();
        for row in self.of_pool(pool).flat_map(|line| rows(&line["out"])) {
            let id = row[0].as_u64().expect("requests of the run go by their numbers");
            *emitted.entry(id).or_default() += row[1].as_u64().expect("a number of tokens");
        }
        emitted
    }

    fn of_pool(&self, pool: &str) -> impl Iterator<Item = &Value> {
        self.lines.iter().filter(move |line| line["pool"] == pool)
    }

    /// Number of output tokens of each request, by request number.
    pub(crate) fn received(&self) -> BTreeMap<u64, u64> {
        let number = |row: &Value, key: &str| row[key].as_u64().unwrap_or(0);
        self.outputs.requests.iter().map(|row| (number(row, "id"), number(row, "output_tokens"))).collect()
    }

    /// Lines without their times, by engine.
    fn decisions(&self) -> BTreeMap<String, Vec<Value>> {
        let mut decisions: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for line in &self.lines {
            let mut line = line.clone();
            let fields = line.as_object_mut().expect("a line is an object");
            fields.remove("start_ms");
            fields.remove("duration_ms");
            decisions.entry(format!("{} {}", line["pool"], line["engine"])).or_default().push(line);
        }
        decisions
    }
}

fn rows(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// A run produces the same files on every target, and its steps account for every token.
#[test]
fn steps_are_logged_on_every_target() {
    let folder = Folder::with(SCENARIO);
    let simulated = Logged::of(&folder, "virtual", &["-e", "engines=2"]);
    for target in TARGETS {
        let logged = Logged::of(&folder, target, &["-e", "engines=2"]);
        assert_eq!(logged.files, simulated.files, "{target}");
        assert_eq!(logged.emitted("engines"), logged.received(), "{target}");
        assert_eq!(logged.outputs.asked(), simulated.outputs.asked(), "{target}");
        let computed: u64 = logged.lines.iter().flat_map(|line| rows(&line["sched"])).map(|row| tokens(&row[1])).sum();
        let planned: u64 = logged.lines.iter().map(|line| line["tot"].as_u64().unwrap_or(0)).sum();
        assert_eq!(computed, planned, "{target}");
        let run = logged.outputs.run();
        let steps: u64 = rows(&run["engines"]).filter_map(|engine| engine["steps"].as_u64()).sum();
        let applied: Vec<&Value> = logged.lines.iter().filter(|line| line["duration_ms"].is_number()).collect();
        assert_eq!(applied.len() as u64, steps, "{target}");
        assert_eq!(run["metrics"]["trends"]["step_ms"]["count"].as_u64(), Some(steps), "{target}");
        assert!(applied.iter().all(|line| line["duration_ms"] == 5.0), "{target}: each step takes 5 ms");
        for engine in [0, 1] {
            let own: Vec<&Value> = logged.lines.iter().filter(|line| line["engine"] == engine).collect();
            assert_eq!(own[0]["settings"], simulated.lines[0]["settings"], "{target}");
            assert!(own[1..].iter().all(|line| line["settings"].is_null()), "{target}: settings come once");
            // A step begins when the previous one has ended, or later.
            let ends = own.iter().filter_map(|line| Some((line["start_ms"].as_f64()?, line["duration_ms"].as_f64()?)));
            let ends: Vec<(f64, f64)> = ends.collect();
            let in_order = ends.windows(2).all(|pair| pair[1].0 > pair[0].0 + pair[0].1 - 0.001);
            assert!(in_order, "{target}: {ends:?}");
        }
    }
}

fn tokens(value: &Value) -> u64 {
    value.as_u64().expect("a number of tokens")
}

/// If nothing depends on the order of arrival, each line equals that of virtual time: the schedule with its blocks,
/// prefix hits, outputs and KV events.
#[test]
fn requests_one_after_the_other_are_scheduled_as_in_virtual_time() {
    let pools = [
        r#"engines: pool(#{ engine: engine.call(), latency: fixed(#{ step: "2ms" }) })"#,
        r#"prefill: pool(#{ name: "prefill", engine: engine.call(), latency: fixed(#{ step: "2ms" }) }),
           decode: pool(#{ name: "decode", engine: engine.call(), latency: fixed(#{ step: "2ms" }) }),
           link: link(#{ kv_bytes_per_token: "1KiB" })"#,
    ];
    for pools in pools {
        let folder = Folder::with(&format!(
            r#"
            let engine = || engine(#{{ num_gpu_blocks: 101, max_num_seqs: 8, max_num_batched_tokens: 128, max_model_len: 1_500 }});
            let c = cluster(#{{ {pools} }});
            let r = run(#{{ cluster: c, workloads: [ closed_loop(#{{
                concurrency: 1, count: 12, prompt_tokens: uniform(20, 400), output_tokens: uniform(2, 30),
                shared_prefix_tokens: 96, prefix_groups: 2, turns: uniform(1, 3),
            }}) ] }});
            expect(r, "completed_ratio", "value == 100%");
        "#
        ));
        let simulated = Logged::of(&folder, "virtual", &[]).decisions();
        assert!(simulated.values().all(|lines| lines.len() > 12), "{simulated:?}");
        for target in ["live", "serve"] {
            let measured = Logged::of(&folder, target, &[]).decisions();
            assert_eq!(measured.keys().collect::<Vec<_>>(), simulated.keys().collect::<Vec<_>>(), "{target}");
            for (engine, lines) in &measured {
                for (ours, theirs) in lines.iter().zip(&simulated[engine]) {
                    assert_eq!(ours, theirs, "{engine} on {target}");
                }
                assert_eq!(lines.len(), simulated[engine].len(), "{engine} on {target}");
            }
        }
    }
}

/// A burst of equal requests that run one at a time takes the same steps, whichever request is first.
#[test]
fn a_burst_is_scheduled_as_in_virtual_time() {
    let folder = Folder::with(
        r#"
        let c = cluster(#{ engines: pool(#{
            engine: engine(#{ num_gpu_blocks: 65, max_num_seqs: 1, max_num_batched_tokens: 64 }), latency: fixed(#{ step: "2ms" }),
        }) });
        let r = run(#{ cluster: c, workloads: [ burst(#{ count: 8, prompt_tokens: 150, output_tokens: 12 }) ] });
        expect(r, "completed", "count == 8");
    "#,
    );
    // Requests are numbered by their first step, since a server may receive them in any order.
    let scheduled = |logged: &Logged| {
        let mut order = Vec::new();
        let mut steps = Vec::new();
        for line in logged.lines.iter().filter(|line| !line["sched"].is_null()) {
            let rows = rows(&line["sched"]).map(|row| {
                let place = order.iter().position(|id| *id == row[0]).unwrap_or(order.len());
                if place == order.len() {
                    order.push(row[0].clone());
                }
                (place, row.as_array().expect("a row")[1..].to_vec())
            });
            steps.push(rows.collect::<Vec<_>>());
        }
        steps
    };
    let simulated = scheduled(&Logged::of(&folder, "virtual", &[]));
    for target in ["live", "serve"] {
        let logged = Logged::of(&folder, target, &[]);
        assert_eq!(scheduled(&logged), simulated, "{target}");
        assert_eq!(logged.emitted("engines"), logged.received(), "{target}");
    }
}

/// Decode engines give whole outputs, after prefill engines gave one token of each.
#[test]
fn both_pools_log_their_steps() {
    let folder = Folder::with(
        r#"
        let p = |name, engines| pool(#{
            name: name, engines: engines, engine: engine(#{ num_gpu_blocks: 2_001 }), latency: fixed(#{ step: "2ms" }),
        });
        let c = cluster(#{
            prefill: p.call("prefill", 2), decode: p.call("decode", 1), link: link(#{ kv_bytes_per_token: "1KiB" }),
        });
        let work = constant(#{ rate: "50/s", count: 12, prompt_tokens: uniform(40, 200), output_tokens: uniform(4, 20) });
        let r = run(#{ cluster: c, workloads: [ work ] });
        expect(r, "completed", "count == 12");
    "#,
    );
    let simulated = Logged::of(&folder, "virtual", &[]);
    for target in TARGETS {
        let logged = Logged::of(&folder, target, &[]);
        assert_eq!(logged.emitted("prefill"), simulated.emitted("prefill"), "{target}");
        assert_eq!(logged.emitted("decode"), simulated.emitted("decode"), "{target}");
        assert_eq!(logged.received(), simulated.received(), "{target}");
        let engines: BTreeSet<String> =
            logged.lines.iter().map(|line| format!("{} {}", line["pool"], line["engine"])).collect();
        assert_eq!(engines.len(), 3, "{target}: {engines:?}");
    }
}

/// A crashed engine begins a new log, and the steps that it had in flight have no result.
#[test]
fn logs_begin_anew_after_a_crash() {
    let folder = Folder::with(
        r#"
        let c = cluster(#{ engines: pool(#{ engine: engine(#{ num_gpu_blocks: 501 }), latency: fixed(#{ step: "10ms" }) }) });
        let r = run(#{
            cluster: c, retries: 5, workloads: [ burst(#{ count: 4, prompt_tokens: 64, output_tokens: 40 }) ],
            faults: [ crash(#{ at: "200ms", engine: 0, restart_after: "100ms" }) ],
        });
        expect(r, "completed", "count == 4");
        expect(r, "retries", "count >= 4");
    "#,
    );
    for target in TARGETS {
        let logged = Logged::of(&folder, target, &[]);
        let first_lines = logged.lines.iter().filter(|line| line["settings"].is_object());
        assert_eq!(first_lines.map(|line| &line["i"]).collect::<Vec<_>>(), [0, 0], "{target}");
        let emitted = logged.emitted("engines");
        assert!(emitted.values().all(|tokens| *tokens >= 40), "{target}: {emitted:?}");
        let text = std::fs::read_to_string(folder.path().join("out/trace.json")).expect("it was written");
        assert!(text.contains("crash"), "{target}: the trace has the fault");
    }
}

#[test]
fn clusters_behind_a_server_log_their_steps() {
    let folder = Folder::with(
        r#"
        let c = cluster(#{ engines: pool(#{
            engines: 2, engine: engine(#{ engine_type: "sglang", num_pages: 9_000 }), latency: fixed(#{ step: "2ms" }),
            router: kv_router(#{}),
        }) });
        let r = run(#{ cluster: c, workloads: [
            constant(#{ rate: "50/s", count: 12, prompt_tokens: uniform(40, 200), output_tokens: uniform(4, 20) }),
        ] });
        expect(r, "completed", "count == 12");
    "#,
    );
    let simulated = Logged::of(&folder, "virtual", &[]);
    for target in TARGETS {
        let logged = Logged::of(&folder, target, &[]);
        assert_eq!(logged.files, simulated.files, "{target}");
        assert_eq!(logged.emitted("engines"), logged.received(), "{target}");
        assert_eq!(logged.received(), simulated.received(), "{target}");
    }
}
