//! Commands that end before their work is done: results so far are kept, drafts are removed, and the exit code
//! gives the reason.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use vcr_tests::{Folder, vcr, wait_until};

/// Linux's flag for opening a file without waiting.
const O_NONBLOCK: i32 = 0o4000;

/// One run that ends, and one that takes years.
const ENDLESS: &str = r#"
let c = cluster(#{ engines: pool(#{ engines: 2, engine: engine(#{}), latency: fixed(#{ step: "10ms" }) }) });
let short = burst(#{ count: 5, prompt_tokens: 100, output_tokens: 10 });
let long = closed_loop(#{ concurrency: 4, duration: "50000h", prompt_tokens: 100, output_tokens: 50 });
run(#{ name: "short", cluster: c, workloads: [ short ] });
run(#{ name: "long", cluster: c, workloads: [ long ] });
run(#{ name: "never", cluster: c, workloads: [ short ] });
"#;

fn start(folder: &Folder, args: &[&str]) -> Child {
    let mut command = Command::new(vcr());
    command.args(args).current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("the binary starts")
}

fn signal(process: &Child, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(process.id().to_string()).status();
    assert!(status.expect("there is `kill`").success(), "the process has ended before");
}

/// Waits for the process to end. Returns the exit code and standard error.
fn ended(mut process: Child) -> (Option<i32>, String) {
    let mut said = String::new();
    let mut stderr = process.stderr.take().expect("it is piped");
    stderr.read_to_string(&mut said).expect("it is text");
    (process.wait().expect("it ends").code(), said)
}

/// Names in a folder, including drafts.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Returns `true` if the second run has written steps.
fn is_under_way(out: &Path) -> bool {
    let drafts = names(out).into_iter().find(|name| name.starts_with(".vcr-drafts-"));
    let part = drafts.map(|drafts| out.join(drafts).join("steps.jsonl.1"));
    part.and_then(|part| fs::metadata(part).ok()).is_some_and(|part| part.len() > 0)
}

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn a_run_that_is_stopped_writes_what_there_is() {
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let folder = Folder::with(ENDLESS);
        let out = folder.path().join("out");
        let files = ["--files", "report,requests,steps,trace"];
        let process = start(&folder, &[&["run", "test.rhai", "--out", "out"], &files[..]].concat());
        wait_until("the run is under way", || is_under_way(&out));
        signal(&process, name);
        let (ended, said) = ended(process);
        assert_eq!(ended, Some(code), "{said}");
        assert!(said.contains(&format!("stopped by SIG{name}: 1 run was complete, `long` ended at ")), "{said}");
        assert!(said.contains("wrote report.json, requests.jsonl, steps.jsonl, trace.json to out"), "{said}");
        assert_eq!(names(&out), [".vcr-run", "report.json", "requests.jsonl", "steps.jsonl", "trace.json"]);
        let report = json(&out.join("report.json"));
        assert_eq!(report["partial"]["stopped_by"], format!("SIG{name}"));
        assert_eq!((&report["passed"], &report["runs"][0]["partial"]), (&Value::Bool(false), &Value::Null));
        assert_eq!((&report["runs"][1]["name"], &report["runs"][1]["partial"]), (&"long".into(), &true.into()));
        assert!(report["runs"][2].is_null());
        assert!(json(&out.join("trace.json"))["traceEvents"].as_array().is_some_and(|events| !events.is_empty()));
        for file in ["requests.jsonl", "steps.jsonl"] {
            let text = fs::read_to_string(out.join(file)).expect("it is there");
            let runs: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect();
            assert!(runs.iter().any(|line| line["of"] == "short") && runs.iter().any(|line| line["of"] == "long"));
        }
    }
}

#[test]
fn the_second_signal_ends_a_command_at_once() {
    // The file is a pipe without a writer, so the command cannot end cleanly.
    let blocked = format!("{}\ntrace(#{{ path: \"pipe\" }});\n", ENDLESS.replace("50000h", "10s"));
    let folder = Folder::with(&blocked);
    let pipe = Command::new("mkfifo").arg(folder.path().join("pipe")).status();
    assert!(pipe.expect("there is `mkfifo`").success());
    let out = folder.path().join("out");
    let process = start(&folder, &["run", "test.rhai", "--out", "out"]);
    wait_until("the run is under way", || is_under_way(&out));
    // A pipe can be opened this way only while it is being read. Before that, the first signal would end the run.
    let mut writing = fs::OpenOptions::new();
    writing.write(true).custom_flags(O_NONBLOCK);
    let mut writer = None;
    wait_until("the pipe is read", || {
        writer = writing.open(folder.path().join("pipe")).ok();
        writer.is_some()
    });
    for name in ["INT", "TERM"] {
        signal(&process, name);
    }
    let (code, said) = ended(process);
    drop(writer);
    assert_eq!(code, Some(143), "{said}");
    assert!(said.contains("stopped by SIGTERM; unfinished files were removed"), "{said}");
    assert_eq!(names(&out), [""; 0]);
}

#[test]
fn a_timeout_ends_a_script_that_does_not() {
    // Each iteration takes long enough that the limit of operations is far away.
    let looping = "loop { let a = []; a.pad(10000, 0); }";
    let caught = format!("{ENDLESS}\n").replace(
        "run(#{ name: \"long\"",
        "while true { try { let a = []; a.pad(10000, 0); } catch { } }\nrun(#{ name: \"long\"",
    );
    for (script, has_results) in [(looping, false), (caught.as_str(), true)] {
        let folder = Folder::with(script);
        let said = folder.run(&["--out", "out", "--timeout", "2s"]).ended(124);
        assert!(said.stderr.contains("stopped by --timeout"), "{}", said.stderr);
        let report = folder.path().join("out/report.json");
        assert_eq!(report.exists(), has_results, "{}", said.stderr);
        if has_results {
            assert_eq!(json(&report)["partial"]["stopped_by"], "--timeout");
        }
    }
    for wrong in ["0s", "soon", "-1s"] {
        Folder::new().vcr(&[&format!("--timeout={wrong}"), "run", "x"]).failed(2, &["--timeout"]);
    }
}

#[test]
fn a_replay_that_is_stopped_writes_what_there_is() {
    let folder = Folder::new();
    let load = ["--input-tokens", "900", "--output-tokens", "50", "--request-count", "300000", "--request-rate", "500"];
    let heavy = ["--num-workers", "64", "--router-mode", "kv_router"];
    // The replay begins after the warning that this argument causes.
    let args =
        ["--report-json", "r.json", "--report-jsonl", "r.jsonl", "--extra-engine-args", r#"{"bootstrap_port": 7}"#];
    let mut process = start(&folder, &[&["replay"], &load[..], &heavy, &args].concat());
    let mut warning = [0; 8];
    process.stderr.as_mut().expect("it is piped").read_exact(&mut warning).expect("it warns");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(names(folder.path()).len(), 2, "there are drafts");
    signal(&process, "TERM");
    let (code, said) = ended(process);
    assert_eq!(code, Some(143), "{said}");
    assert!(said.contains("stopped by SIGTERM at ") && said.contains("these results are partial"), "{said}");
    assert_eq!(names(folder.path()), ["r.json", "r.jsonl"]);
    assert_eq!(json(&folder.path().join("r.json"))["vcr"]["partial"]["stopped_by"], "SIGTERM");
}

#[test]
fn finished_points_of_a_sweep_are_kept() {
    let folder = Folder::new();
    let load = ["--input-tokens", "900", "--output-tokens", "20000", "--request-count", "1", "--request-rate", "500"];
    let heavy = ["--num-workers", "64", "--router-mode", "kv_router", "--threads", "1"];
    let args = ["--sweep", "request_count=1,300000,2", "--sweep-out", "sweep.csv", "--timeout", "4s"];
    let said = folder.vcr(&[&["replay"], &load[..], &heavy, &args].concat()).ended(124);
    assert!(said.stderr.contains("stopped by --timeout: 1 of 3 runs of the sweep are done"), "{}", said.stderr);
    assert!(said.stderr.contains("the same command continues from there"), "{}", said.stderr);
    assert_eq!(names(folder.path()), ["sweep.csv.points"]);
    let _ = folder.vcr(&["merge", "sweep.csv.points", "--partial", "-o", "sweep.csv"]).ended(0);
    let table = fs::read_to_string(folder.path().join("sweep.csv")).expect("it is there");
    assert_eq!(table.lines().count(), 2);
}

/// Commands without results leave no files behind.
#[test]
fn other_commands_leave_no_drafts() {
    let folder = Folder::new();
    let process = start(&folder, &["inspect", "gen-demo", "-o", "demo.jsonl", "--requests", "100000000"]);
    wait_until("it has begun", || !names(folder.path()).is_empty());
    signal(&process, "INT");
    let (code, said) = ended(process);
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("stopped by SIGINT; unfinished files were removed"), "{said}");
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn live_commands_end_in_order_after_their_time() {
    let folder = Folder::new();
    let frontend = format!("tcp://127.0.0.1:{}", vcr_tests::free_port());
    let engines = format!("tcp://127.0.0.1:{}", vcr_tests::free_port());
    let play = ["play", "--handshake-address", &frontend, "--decode-step-time", "1ms", "--timeout", "1s"];
    let _ = folder.vcr(&play).ended(124);
    let link = ["--frontend-handshake", &frontend, "--engine-handshake", &engines];
    let _ = folder.vcr(&[&["record", "--out", "c.jsonl", "--timeout", "1s"], &link[..]].concat()).ended(124);
}
