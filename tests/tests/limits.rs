//! Inputs that would use all memory, disk or time are refused, and the error states the numbers.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use vcr_tests::{Folder, Said, vcr};

/// Two engines that each run 256 requests, with steps of 10 ms.
const CLUSTER: &str = r#"let c = cluster(#{ engines: pool(#{ engines: 2, latency: fixed(#{ step: "10ms" }) }) });"#;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory is writable");
    encoder.finish().expect("memory is writable")
}

/// `head` and then `gib` GiB of `filling`, compressed to a few MB.
fn bomb(head: &[u8], filling: u8, gib: usize) -> Vec<u8> {
    let part = gzip(&vec![filling; 64 << 20]);
    [gzip(head), part.repeat(gib * 16)].concat()
}

fn run_of(workload: &str, more: &str) -> String {
    format!("{CLUSTER}\nrun(#{{ cluster: c, workloads: [ {workload} ]{more} }});")
}

#[test]
fn packed_input_is_looked_at_before_it_is_unpacked() {
    let folder = Folder::new();
    folder.write("zeros.jsonl.gz", bomb(b"", 0, 10));
    let tokenizer = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "u": 1}, "unk_token": "u"}}"#;
    folder.write("tokenizer.json", tokenizer);
    let too_long = "line 1 is longer than 64.00 MiB";
    folder.vcr(&["inspect", "steps", "zeros.jsonl.gz"]).failed(2, &["zeros.jsonl.gz", too_long]);
    let dataset = ["inspect", "summarize", "--from", "dataset", "--tokenizer", "tokenizer.json", "zeros.jsonl.gz"];
    folder.vcr(&dataset).failed(2, &["zeros.jsonl.gz", too_long]);
    folder.vcr(&["replay", "zeros.jsonl.gz"]).failed(2, &["zeros.jsonl.gz", "cannot tell the format"]);
    // The capture is checked before any engine waits for a frontend.
    let playback = ["play", "--handshake-address", "tcp://127.0.0.1:9", "--playback", "zeros.jsonl.gz"];
    folder.vcr(&playback).failed(2, &["zeros.jsonl.gz", "cannot tell the format"]);
}

#[test]
fn packed_input_is_unpacked_up_to_a_limit() {
    let folder = Folder::new();
    let meta = b"{\"kind\":\"meta\",\"format\":\"vcr.capture\",\"version\":1}\n";
    folder.write("capture.jsonl.gz", bomb(meta, b'x', 3));
    let playback = ["play", "--handshake-address", "tcp://127.0.0.1:9", "--playback", "capture.jsonl.gz"];
    folder.vcr(&playback).failed(2, &["capture.jsonl.gz", "of packed data unpack to more than 1.", "unpack the file"]);
}

#[test]
fn a_trace_that_takes_more_memory_than_there_may_be_is_refused() {
    let folder = Folder::new();
    let row = br#"{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}"#;
    let rows = [&row[..], b"\n"].concat().repeat(400_000);
    folder.write("rows.jsonl.gz", gzip(&rows).repeat(5));
    let command = ["replay", "rows.jsonl.gz", "--memory-limit", "100MiB"];
    folder.vcr(&command).failed(2, &["rows.jsonl.gz", "of memory, and its limit is 100.00 MiB"]);
}

#[test]
fn a_run_that_needs_more_memory_than_there_is_does_not_begin() {
    let needs = |workload: &str, more: &str, needles: &[&str]| {
        let said = Folder::with(&run_of(workload, more)).run(&["--memory-limit", "2GiB"]);
        said.failed(2, &[&["error: test.rhai:2:1: ", "the limit is 2.00 GiB", "--memory-limit"], needles].concat());
    };
    let open =
        |kind: &str| format!("{kind}(#{{ rate: 1000000, duration: \"1h\", prompt_tokens: 9, output_tokens: 1 }})");
    needs(&open("poisson"), "", &["3600000000 requests need at least 1."]);
    needs(&open("constant"), ", max_time: \"30s\"", &["30000000 requests need at least "]);
    let burst = "burst(#{ count: 100000000, prompt_tokens: 9, output_tokens: 1 })";
    needs(burst, "", &["100000000 requests need at least "]);
    let replay =
        ["replay", "--input-tokens", "9", "--output-tokens", "1", "--request-rate", "9", "--memory-limit", "2GiB"];
    let said = Folder::new().vcr(&[&replay[..], &["--request-count", "100000000"]].concat());
    said.failed(2, &["100000000 requests need at least ", "the limit is 2.00 GiB", "hint: ask for fewer requests"]);
    Folder::new().vcr(&["replay", "--memory-limit", "0B"]).failed(2, &["--memory-limit", "more than 0 bytes"]);
}

/// The number of waiting requests is not known beforehand.
#[test]
fn a_run_that_takes_more_memory_than_it_may_ends() {
    let load = "poisson(#{ rate: 100000, duration: \"3s\", prompt_tokens: 100, output_tokens: 1 })";
    let said = Folder::with(&run_of(load, "")).run(&["-q", "--memory-limit", "150MB"]);
    said.failed(
        2,
        &["test.rhai:2:1: run `run`: the process takes ", "its limit is 143.05 MiB", "requests have arrived"],
    );
}

#[test]
fn load_above_capacity_is_reported_once_and_changes_nothing() {
    let load = |rate: u32| {
        run_of(&format!("poisson(#{{ rate: {rate}, count: 20000, prompt_tokens: 100, output_tokens: 10 }})"), "")
    };
    // Two engines serve at most 512 requests at once, each for at least 100 ms.
    let folder = Folder::with(&load(20_000));
    let said = folder.run(&[]).ended(0);
    assert_eq!(said.stderr.matches("warning: ").count(), 1, "{}", said.stderr);
    let warning = "run `run`: the load is above the capacity of pool `engines`: at ";
    assert!(said.stderr.contains(warning), "{}", said.stderr);
    for needle in [" requests/s arrive and ", " requests/s are served, ", " requests wait, and the queue keeps growing"]
    {
        assert!(said.stderr.contains(needle), "{}", said.stderr);
    }
    // The summary and the report also state that the load is above the capacity.
    assert!(said.stdout.contains("the load is above the capacity of pool `engines`"), "{}", said.stdout);
    let overload = folder.run(&["--json"]).ended(0).json()["runs"][0]["overload"].take();
    assert_eq!(overload["pool"], "engines");
    assert!(overload["arrivals_per_s"].as_f64() > overload["served_per_s"].as_f64(), "{overload}");
    assert!(overload["waiting_requests"].as_u64() >= Some(1000), "{overload}");
    assert_eq!(folder.run(&["-q"]).ended(0).stderr, "");
    let calm = Folder::with(&load(1000)).run(&[]).ended(0);
    assert!(!calm.stderr.contains("warning"), "{}", calm.stderr);
    assert!(!calm.stdout.contains("above the capacity"), "{}", calm.stdout);
}

#[test]
fn the_values_of_a_script_have_a_size() {
    let refused = |script: &str, needles: &[&str]| Folder::with(script).run(&[]).failed(2, needles);
    let many = "let m = #{};\nfor i in 0..100000 { let a = []; a.pad(19000, i); m[\"k\" + i] = a; }";
    refused(many, &["error: test.rhai:2:", "the values of the script take more than 256.00 MiB"]);
    refused("let a = [];\nfor i in 0..10000000 { a.push(\"x\" + i); }", &["error: test.rhai:2:", "too large"]);
    refused("let a = [];\na.pad(90000, 1);", &["error: test.rhai:2:", "too large"]);
}

/// Parsing 30,000 closures that use a variable once took minutes.
#[test]
fn a_script_has_a_number_of_functions() {
    let closures = |count: usize| -> String {
        std::iter::once("let a = 1;".to_owned()).chain((0..count).map(|i| format!("\nlet f{i} = |x| x + a;"))).collect()
    };
    drop(Folder::with(&closures(1000)).vcr(&["check", "test.rhai"]).ended(0));
    let needles = ["error: test.rhai:1002:", "the script has more than 1000 functions, closures included"];
    Folder::with(&closures(1001)).run(&[]).failed(2, &needles);
}

#[test]
fn a_script_is_nested_up_to_a_limit() {
    const DEPTH: usize = 100_000;
    for [open, inner, close] in
        [["|| ", "1", ""], ["(", "1", ")"], ["[", "", "]"], ["!", "true", ""], ["f(", "1", ")"], ["`${", "1", "}`"]]
    {
        let script = format!("let a = {}{inner}{};", open.repeat(DEPTH), close.repeat(DEPTH));
        let folder = Folder::with(&script);
        for command in ["check", "run"] {
            folder.vcr(&[command, "test.rhai"]).failed(2, &["error: test.rhai:1:", "exceeds maximum complexity"]);
        }
    }
    // Function pointers that contain each other grow without counted operations.
    let curried = "fn f(a) { a }\nlet p = Fn(\"f\");\nfor i in 0..30000 { p = p.curry(i); }";
    Folder::with(curried).run(&[]).failed(2, &["error: test.rhai:3:"]);
}

#[test]
fn a_script_that_never_stops_is_stopped() {
    let endless = format!(
        "{CLUSTER} let w = burst(#{{ count: 1, prompt_tokens: 1, output_tokens: 1 }});\nwhile true {{ run(#{{ cluster: c, \
         workloads: [ w ] }}); }}"
    );
    let said = Folder::with(&endless).run(&["--max-runs", "20"]);
    said.failed(2, &["error: test.rhai:2:14: the scenario makes more than 20 runs", "--max-runs"]);
    let said = Folder::with("loop { print(\"x\"); }").run(&[]).ended(2);
    assert_eq!(said.stderr.lines().filter(|line| *line == "x").count(), 100_000);
    assert!(said.stderr.contains("error: test.rhai:1:"), "it is an error of the script");
    assert!(said.stderr.contains("the script prints more than 100000 lines"), "and says which");
}

/// Naming many runs takes little time.
#[test]
fn runs_of_one_name_are_numbered() {
    let script = format!(
        "{CLUSTER} let w = burst(#{{ count: 1, prompt_tokens: 1, output_tokens: 1 }});\nfor i in 0..3 {{ run(#{{ name: \
         if i == 1 {{ \"run 3\" }} else {{ \"run\" }}, cluster: c, workloads: [ w ] }}); }}\nrun(#{{ cluster: c, workloads: [ w ] }});"
    );
    let report = Folder::with(&script).run(&["--json"]).ended(0).json();
    let names: Vec<_> = report["runs"].as_array().expect("runs").iter().map(|run| run["name"].clone()).collect();
    assert_eq!(names, ["run", "run 3", "run 2", "run 4"]);
}

#[test]
fn devices_and_directories_are_no_input() {
    let folder = Folder::new();
    let device = "it is a character device; expected a regular file or a pipe";
    folder.vcr(&["run", "/dev/zero"]).failed(2, &["/dev/zero: cannot read the scenario", device]);
    folder.vcr(&["run", "."]).failed(2, &["cannot read the scenario: it is a directory; expected a regular file"]);
    folder.vcr(&["replay", "/dev/zero"]).failed(2, &["/dev/zero", device]);
    let synthetic =
        ["replay", "--input-tokens", "9", "--output-tokens", "1", "--request-count", "1", "--request-rate", "1"];
    for option in ["--extra-engine-args", "--autoscale"] {
        folder.vcr(&[&synthetic[..], &[option, "@/dev/zero"]].concat()).failed(2, &[option, "/dev/zero", device]);
    }
    folder.vcr(&["guest", "inspect", "/dev/zero"]).failed(2, &["/dev/zero", device]);
    folder.vcr(&["inspect", "steps", "/dev/zero"]).failed(2, &["/dev/zero", device]);
    folder.vcr(&["inspect", "summarize", "/dev/zero"]).failed(2, &["/dev/zero", device]);
    folder.write("long.rhai", vec![b' '; (1 << 20) + 1]);
    folder.vcr(&["run", "long.rhai"]).failed(2, &["long.rhai", "it is larger than 1.00 MiB"]);
}

#[test]
fn a_fifo_without_a_writer_is_named() {
    let folder = Folder::new();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("there is mkfifo").success());
    let mut command = Command::new(vcr());
    command.args(["run", "fifo", "-q"]).current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut waiting = command.spawn().expect("the binary starts");
    let mut notice = String::new();
    let mut stderr = BufReader::new(waiting.stderr.take().expect("it is piped"));
    stderr.read_line(&mut notice).expect("it is text");
    assert_eq!(notice, "waiting for a writer of FIFO `fifo`\n");
    std::fs::write(&fifo, run_of("burst(#{ count: 1, prompt_tokens: 1, output_tokens: 1 })", "")).expect("it is read");
    assert!(waiting.wait().expect("it ends").success());
}

/// Inputs may come from a shell's `<(command)` or `|`.
#[test]
fn pipes_are_input() {
    let folder = Folder::with(&run_of("trace(#{ path: \"/dev/stdin\" })", ""));
    let row = br#"{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}"#;
    folder.write("rows.jsonl.gz", gzip(&[&row[..], b"\n"].concat()));
    for line in [
        "cat rows.jsonl.gz | $VCR run <(cat test.rhai)",
        "zcat rows.jsonl.gz | $VCR replay /dev/stdin",
        "$VCR inspect summarize <(cat rows.jsonl.gz)",
    ] {
        let said = Said::of(Command::new("bash").args(["-c", line]).current_dir(folder.path()).env("VCR", vcr()));
        assert_eq!(said.code, 0, "{line}:\n{}", said.stderr);
    }
}
