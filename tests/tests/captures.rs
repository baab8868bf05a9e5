//! `vcr inspect` on captures: it makes, converts, summarizes, shows and compares them.

use std::fs;

use serde_json::{Value, json};
use vcr_tests::{Folder, Serve};

/// A guidellm report with two requests.
const REPORT: &str = r#"{"metadata":{"guidellm_version":"0.6.0"},"args":{"model":"m"},"benchmarks":[{
"config":{"strategy":{"type_":"concurrent","streams":2}},"requests":{"successful":[
{"request_id":"a","prompt_tokens":8,"output_tokens":3,"time_to_first_token_ms":100,"inter_token_latency_ms":10,
 "request_start_time":1700000000.0,"request_latency":0.12},
{"request_id":"b","prompt_tokens":4,"output_tokens":1,"time_to_first_token_ms":50,"inter_token_latency_ms":null,
 "request_start_time":1700000001.5,"request_latency":0.05}]}}]}"#;

#[test]
fn a_demonstration_goes_through_every_command() {
    let folder = Folder::new();
    let _ = folder.vcr(&["inspect", "gen-demo", "-o", "a.jsonl", "--requests", "50", "--speculative"]).ended(0);
    let _ = folder.vcr(&["inspect", "gen-demo", "-o", "b.jsonl.zst", "--requests", "50", "--speculative"]).ended(0);
    let said = folder.vcr(&["inspect", "diff", "a.jsonl", "b.jsonl.zst"]).ended(0);
    assert!(said.stdout.contains("equal: 50 requests matched by the hashes of their prompts"), "{}", said.stdout);
    assert!(!said.stdout.contains("not compared: "), "{}", said.stdout);
    let renamed = fs::read_to_string(folder.path().join("a.jsonl"))
        .expect("a text")
        .replace("\"session\":\"", "\"session\":\"new-");
    folder.write("c.jsonl", renamed);
    let said = folder.vcr(&["inspect", "diff", "a.jsonl", "c.jsonl"]).ended(0);
    assert!(said.stdout.contains("not compared: `session` differs in "), "{}", said.stdout);

    let summary = folder.vcr(&["inspect", "summarize", "b.jsonl.zst", "--json"]).ended(0).json();
    assert_eq!(
        (&summary["requests"], &summary["is_ended"], &summary["broken_off"]),
        (&50.into(), &true.into(), &Value::Null)
    );
    let refused = ["invalid model of the capture, demo: expected sim", "--served-model-name demo"];
    folder.vcr(&["serve", "--playback", "a.jsonl"]).failed(2, &refused);
    let table = folder.vcr(&["inspect", "summarize", "a.jsonl"]).ended(0).stdout;
    for part in
        ["requests: 50: ", "sessions: ", "prompt blocks: ", "  ttft ", "  itl ", "  e2e ", "  queue ", "concurrency"]
    {
        assert!(table.contains(part), "`{part}` is not in:\n{table}");
    }

    let _ = folder.vcr(&["inspect", "perfetto", "a.jsonl", "-o", "t.json"]).ended(0);
    let trace: Value = serde_json::from_slice(&fs::read(folder.path().join("t.json")).expect("a file")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    assert_eq!(events.iter().filter(|event| event["name"] == "decode").count(), 50);
    let _ = folder.vcr(&["inspect", "perfetto", "a.jsonl", "-o", "t.pftrace"]).ended(0);
    let packets = fs::read(folder.path().join("t.pftrace")).expect("a file");
    // Every packet is field 1 of the trace.
    assert_eq!(packets[0], 0x0a);
    assert!(packets.len() < fs::metadata(folder.path().join("t.json")).expect("a file").len() as usize / 2);

    // A scenario that replays the converted file has the same number of tokens.
    let _ = folder.vcr(&["inspect", "convert", "a.jsonl", "--to", "mooncake", "-o", "w.jsonl"]).ended(0);
    let again = folder.vcr(&["inspect", "summarize", "w.jsonl", "--block-size", "16", "--json"]).ended(0).json();
    assert_eq!(
        (&again["prompt_tokens"], &again["output_tokens"]),
        (&summary["prompt_tokens"], &summary["output_tokens"])
    );
    assert_eq!(again["prefixes"]["distinct_blocks"], summary["prefixes"]["distinct_blocks"]);
    assert_eq!((&again["is_workload"], &again["ttft_ns"]), (&true.into(), &Value::Null));

    let said = folder.vcr(&["inspect", "convert", "a.jsonl", "-o", "r.csv"]).ended(0);
    for field in ["block_hashes", "gap_ns"] {
        assert!(said.stderr.contains(&format!("requests lost their `{field}`")), "{}", said.stderr);
    }
    let rows = fs::read_to_string(folder.path().join("r.csv")).expect("a text");
    assert_eq!(rows.lines().count(), 51);
}

#[test]
fn a_report_is_converted_and_summarized() {
    let folder = Folder::new();
    folder.write("report.json", REPORT);
    let said = folder.vcr(&["inspect", "convert", "report.json", "-o", "c.jsonl.gz"]).ended(0);
    assert_eq!(said.stdout, "  c.jsonl.gz: 2 requests, guidellm to capture\n");
    let said = folder.vcr(&["inspect", "summarize", "c.jsonl.gz"]).ended(0);
    let expected = "
  c.jsonl.gz  capture
  m, 1 engine, from guidellm
  requests and their answers

  requests: 2: 2 ended
  tokens: 12 of prompts, 4 of answers; 0 cached (0.00%)
  duration: 1.55s, 0.67 requests/s, 2.58 output tokens/s
  under way: 0.1 on average, 1 at most; 0 preemptions

           mean      p50      p90      p99      max  count
   ttft  75.00ms  100.0ms  100.0ms  100.0ms  100.0ms      2
   itl   10.00ms  10.00ms  10.00ms  10.00ms  10.00ms      2
   e2e   85.00ms  120.0ms  120.0ms  120.0ms  120.0ms      2
  of 2 gaps only means are known
";
    assert_eq!(squeezed(&said.stdout), squeezed(expected), "{}", said.stdout);
    let said = folder.vcr(&["inspect", "summarize", "c.jsonl.gz", "-o", "s.txt"]).ended(0);
    assert_eq!(said.stdout, "");
    let written = fs::read_to_string(folder.path().join("s.txt")).expect("a text");
    assert_eq!(squeezed(&written), squeezed(expected));
}

/// The words of a table, without the padding that aligns its columns.
fn squeezed(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).filter(|words: &Vec<_>| !words.is_empty()).collect()
}

#[test]
fn differences_end_with_code_1_and_are_named() {
    let folder = Folder::new();
    folder.write("a.json", REPORT);
    folder.write("b.json", REPORT.replace("\"output_tokens\":3", "\"output_tokens\":2"));
    let said = folder.vcr(&["inspect", "diff", "a.json", "b.json"]).ended(1);
    for part in
        ["different: 2 requests matched by their names", "`output_tokens` differs in 1 pair", "output_tokens: 3 and 2"]
    {
        assert!(said.stdout.contains(part), "`{part}` is not in:\n{}", said.stdout);
    }
    let found = folder.vcr(&["inspect", "diff", "a.json", "b.json", "--json"]).ended(1).json();
    assert_eq!(
        (&found["rule"], &found["equal"], &found["fields"]["output_tokens"]),
        (&"id".into(), &false.into(), &1.into())
    );
}

/// All commands have the same list of formats and detect them equally, so no command needs a conversion that
/// another one does not.
#[test]
fn every_command_reads_the_report_of_a_load_generator() {
    let folder = Folder::new();
    folder.write("report.json", REPORT);
    let summary = folder.vcr(&["inspect", "summarize", "report.json", "--json"]).ended(0).json();
    assert_eq!(summary["requests"], 2);
    for named in [&[][..], &["--trace-format", "guidellm"]] {
        let _ = folder.vcr(&[&["replay", "report.json", "--report-jsonl", "rows.jsonl", "--force"], named].concat());
        let rows = fs::read_to_string(folder.path().join("rows.jsonl")).expect("a file");
        assert_eq!(rows.lines().count(), 2, "{rows}");
    }
    folder.write(
        "test.rhai",
        "let c = cluster(#{ engines: pool(#{ engines: 1, engine: engine(#{}), latency: fixed(#{ step: \"10ms\" }) }) });
         let r = run(#{ cluster: c, workloads: [ trace(#{ path: \"report.json\", format: \"guidellm\" }) ] });
         expect(r, \"completed\", \"count == 2\");",
    );
    let _ = folder.run(&[]).ended(0);
    let compared = folder.vcr(&["compare", "report.json", "report.json"]).ended(0);
    assert!(compared.stdout.contains("2 requests"), "{}", compared.stdout);
    let mirrored = folder.vcr(&["mirror", "report.json", "--lengths", "-o", "-"]).ended(0);
    assert_eq!(mirrored.stdout.lines().count(), 2, "{}", mirrored.stdout);

    // A capture of another model than the served one is refused.
    folder.write("report.json", REPORT.replace("\"model\":\"m\"", ""));
    let path = folder.path().join("report.json");
    let serve = Serve::start(&["--playback", path.to_str().expect("a path of tests is a text")]);
    let tokens = |prompt: &str| {
        let answer = serve.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 9})).body;
        answer["usage"]["completion_tokens"].clone()
    };
    assert_eq!((tokens("one"), tokens("two")), (json!(3), json!(1)));
}

/// Streams of answers have no prompts that could be repeated. Everything that repeats requests reports this.
#[test]
fn answers_without_prompts_are_for_the_gate_only() {
    let folder = Folder::new();
    folder.write(
        "answers.jsonl",
        "{\"request_id\":\"a\",\"latency_ms\":3,\"response\":{\"text\":\"x\",\"meta_info\":{}}}\n",
    );
    let refused = ["the format responses: answers without the lengths of their prompts", "`vcr gate`"];
    folder.vcr(&["inspect", "summarize", "answers.jsonl"]).failed(2, &refused);
    folder.vcr(&["replay", "answers.jsonl"]).failed(2, &refused);
    folder.vcr(&["play", "--playback", "answers.jsonl"]).failed(2, &refused);
    let mirrored = folder.vcr(&["mirror", "answers.jsonl", "-o", "-"]).ended(0);
    assert_eq!(mirrored.stdout.lines().count(), 1, "{}", mirrored.stdout);
}

#[test]
fn bad_input_names_its_place_and_leaves_no_file() {
    let folder = Folder::new();
    folder.write("report.json", REPORT.replace("\"prompt_tokens\":4", "\"prompt_tokens\":-4"));
    let convert = ["inspect", "convert", "report.json", "-o", "c.jsonl"];
    folder.vcr(&convert).failed(2, &["`report.json`, benchmarks[0].requests.successful[1], field `prompt_tokens`"]);
    assert!(!folder.path().join("c.jsonl").exists());
    let said = folder.vcr(&[&convert[..], &["--lenient"]].concat()).ended(0);
    assert!(said.stderr.contains("warning: 1 item skipped, first: `report.json`, benchmarks[0]"), "{}", said.stderr);
    // An existing file is neither overwritten nor removed.
    folder.vcr(&[&convert[..], &["--lenient"]].concat()).failed(2, &["cannot write `c.jsonl`"]);
    assert!(folder.path().join("c.jsonl").exists());
    folder.write("x.bin", "hello");
    folder.vcr(&["inspect", "summarize", "x.bin"]).failed(2, &["cannot tell the format of `x.bin`", "known: capture"]);
    folder.vcr(&["inspect", "summarize", "missing"]).failed(2, &["cannot read `missing`"]);
    folder.write("d.jsonl", "{\"prompt\":\"a\",\"response\":\"b\"}\n");
    folder.vcr(&["inspect", "convert", "d.jsonl", "-o", "e.jsonl"]).failed(2, &["needs the tokenizer"]);
}

#[test]
fn a_capture_that_breaks_off_says_so() {
    let folder = Folder::new();
    let _ = folder.vcr(&["inspect", "gen-demo", "-o", "a.jsonl", "--requests", "5"]).ended(0);
    let whole = fs::read_to_string(folder.path().join("a.jsonl")).expect("a text");
    let lines: Vec<&str> = whole.lines().collect();
    folder.write("cut.jsonl", format!("{}\n{}", lines[..4].join("\n"), &lines[4][..40]));
    let said = folder.vcr(&["inspect", "summarize", "cut.jsonl"]).ended(0);
    assert!(said.stdout.contains("the file breaks off: in the middle of a line"), "{}", said.stdout);
    assert!(said.stdout.contains("requests: 3"), "{}", said.stdout);
}

/// Writes the first `share` of a file's bytes to another file.
fn cut(folder: &Folder, name: &str, to: &str, share: f64) {
    let whole = fs::read(folder.path().join(name)).expect("a file");
    folder.write(to, &whole[..(whole.len() as f64 * share) as usize]);
}

#[test]
fn a_small_archive_that_is_cut_off_is_read_as_far_as_it_goes() {
    let folder = Folder::new();
    let _ = folder.vcr(&["inspect", "gen-demo", "-o", "a.jsonl.gz", "--requests", "9"]).ended(0);
    cut(&folder, "a.jsonl.gz", "cut.jsonl.gz", 0.6);
    let said = folder.vcr(&["inspect", "summarize", "cut.jsonl.gz"]).ended(0);
    assert!(said.stdout.contains("the file breaks off: in the middle of an archive"), "{}", said.stdout);
    let _ = folder.vcr(&["inspect", "convert", "cut.jsonl.gz", "-o", "whole.jsonl"]).ended(0);
    let _ = folder.vcr(&["inspect", "diff", "cut.jsonl.gz", "whole.jsonl"]).ended(0);
    // A small zstd file has a single block, which is either complete or missing.
    let _ = folder.vcr(&["inspect", "gen-demo", "-o", "a.jsonl.zst", "--requests", "9"]).ended(0);
    cut(&folder, "a.jsonl.zst", "cut.jsonl.zst", 0.6);
    let nothing = "so nothing in it can be read";
    folder.vcr(&["inspect", "summarize", "cut.jsonl.zst"]).failed(2, &["`cut.jsonl.zst`", nothing]);
    folder.write("half.jsonl", r#"{"kind":"meta","format":"vcr.capt"#);
    folder.vcr(&["inspect", "summarize", "half.jsonl"]).failed(2, &["`half.jsonl`", nothing]);
}

/// Six requests on two engines, some of which wait.
const SCENARIO: &str = r#"let e = engine(#{ max_num_seqs: 1, num_gpu_blocks: 64 });
let c = cluster(#{ engines: pool(#{ engines: 2, engine: e, latency: fixed(#{ step: "10ms" }) }) });
let w = burst(#{ count: 3, turns: 2, think_time: "5ms", prompt_tokens: 40, output_tokens: 3 });
run(#{ name: "base", cluster: c, workloads: [ w ] });"#;

#[test]
fn requests_that_vcr_lists_are_read_back() {
    let folder = Folder::with(SCENARIO);
    let report = folder.run(&["--json", "--out", "out"]).ended(0).json();
    let trends = &report["runs"][0]["metrics"]["trends"];
    let in_ms = |summary: &Value, name: &str, field: &str| summary[name][field].as_f64().expect("a time") / 1e6;
    let first = folder.vcr(&["inspect", "summarize", "out/requests.jsonl", "--json"]).ended(0).json();
    assert_eq!((&first["format"], &first["requests"]), (&"requests".into(), &6.into()));
    assert_eq!(first["finished"]["length"], 6);
    assert_eq!((&first["sessions"]["count"], &first["engines"]), (&3.into(), &2.into()));
    for name in ["ttft", "e2e", "queue"] {
        assert_eq!(in_ms(&first, &format!("{name}_ns"), "max"), trends[format!("{name}_ms")]["max"], "{name}");
    }
    // The folder of a run, and every table made from it, can be read.
    for target in ["c.jsonl", "r.csv", "r.parquet"] {
        let _ = folder.vcr(&["inspect", "convert", "out", "-o", target]).ended(0);
        let mut again = folder.vcr(&["inspect", "summarize", target, "--json"]).ended(0).json();
        for name in ["requests", "finished", "ttft_ns", "itl_ns", "e2e_ns", "queue_ns", "output_tokens", "sessions"] {
            assert_eq!(again[name].take(), first[name], "{name} of {target}");
        }
        let _ = folder.vcr(&["inspect", "diff", "out", target]).ended(0);
    }
    // A replayed turn waits for the turn before it, as in the run.
    let script =
        SCENARIO.replace("burst(#{ count: 3, turns: 2, think_time: \"5ms\",", "trace(#{ path: \"c.jsonl\" }); //");
    folder.write("test.rhai", script.replace("c.jsonl\" });", "c.jsonl\" });\n"));
    let again = folder.run(&["--json"]).ended(0).json();
    assert_eq!(again["runs"][0]["metrics"]["trends"]["e2e_ms"], trends["e2e_ms"]);
}

#[test]
fn one_run_of_several_is_named() {
    let folder = Folder::with(&format!(
        "{SCENARIO}\nrun(#{{ name: \"more\", cluster: c, workloads: [ w, burst(#{{ name: \"x\", count: 1, prompt_tokens: 4, output_tokens: 1 }}) ] }});"
    ));
    let _ = folder.run(&["-q", "--out", "out"]).ended(0);
    folder.vcr(&["inspect", "summarize", "out"]).failed(2, &["several runs, such as `base` and `more`", "--of RUN"]);
    let summary = folder.vcr(&["inspect", "summarize", "out", "--of", "more", "--json"]).ended(0).json();
    assert_eq!(summary["requests"], 7);
}

#[test]
fn files_of_ours_are_named_where_they_do_not_fit() {
    let folder = Folder::with(SCENARIO);
    let _ = folder.run(&["-q", "--out", "out"]).ended(0);
    let replay =
        ["replay", "--input-tokens", "64", "--output-tokens", "4", "--request-count", "5", "--request-rate", "9"];
    let files = ["--report-json", "report.json", "--report-jsonl", "rows.jsonl"];
    let _ = folder.vcr(&[&replay[..], &files].concat()).ended(0);
    let sweep = |file| [&replay[..], &["--sweep", "num_workers=1,2", "--sweep-out", file]].concat();
    for table in ["sweep.csv", "sweep.json", "sweep.parquet"] {
        let _ = folder.vcr(&sweep(table)).ended(0);
        folder.vcr(&["inspect", "summarize", table]).failed(2, &[table, "the table of a sweep", "a whole run"]);
    }
    let rows = folder.vcr(&["inspect", "summarize", "rows.jsonl", "--json"]).ended(0).json();
    assert_eq!(
        (&rows["format"], &rows["requests"], &rows["output_tokens"]),
        (&"requests".into(), &5.into(), &20.into())
    );
    for (file, what) in [
        ("out/report.json", "the report of `vcr run`"),
        ("report.json", "the report of `vcr replay`"),
        ("out/steps.jsonl", "a log of engine steps"),
        ("out/trace.json", "a trace for Perfetto"),
    ] {
        folder.vcr(&["inspect", "summarize", file]).failed(2, &[file, what, "holds no requests"]);
    }
    folder.vcr(&["inspect", "summarize", "sweep.csv", "--from", "azure"]).failed(2, &["the table of a sweep"]);
    let asked = ["inspect", "summarize", "rows.jsonl", "--from", "mooncake"];
    folder.vcr(&asked).failed(2, &["the list of requests of `vcr replay`, not of the format mooncake"]);
    let replayed = folder.vcr(&["replay", "out/requests.jsonl", "--report-json", "again.json"]).ended(0);
    assert!(folder.path().join("again.json").exists(), "{}", replayed.stderr);
    folder.write("test.rhai", "trace(#{ path: \"sweep.csv\" });");
    folder.run(&[]).failed(2, &["the table of a sweep of `vcr replay`, which holds no requests"]);
    folder.vcr(&["play", "--playback", "sweep.csv"]).failed(2, &["the table of a sweep of `vcr replay`"]);
    folder.write("other.csv", "x,y\n1,2\n");
    folder
        .vcr(&["inspect", "summarize", "other.csv"])
        .failed(2, &["by its columns x, y", "`prompt_tokens`", "rename the columns"]);
    folder.write("plain.csv", "arrival_ms,prompt_tokens,output_tokens\n0,10,5\n20,30,6\n");
    let plain = folder.vcr(&["inspect", "summarize", "plain.csv", "--json"]).ended(0).json();
    assert_eq!((&plain["format"], &plain["is_workload"]), (&"requests".into(), &true.into()));
}

#[test]
fn the_schema_is_printed() {
    let schema: Value = serde_json::from_str(&Folder::new().vcr(&["inspect", "schema"]).ended(0).stdout).expect("JSON");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
}
