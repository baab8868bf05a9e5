//! `vcr inspect` on captures: made up, converted, summarized, shown, compared.

use std::fs;

use serde_json::Value;
use vcr_tests::Folder;

/// Two requests as guidellm reports them.
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

    let summary = folder.vcr(&["inspect", "summarize", "b.jsonl.zst", "--json"]).ended(0).json();
    assert_eq!(
        (&summary["requests"], &summary["is_ended"], &summary["broken_off"]),
        (&50.into(), &true.into(), &Value::Null)
    );
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

    // What a scenario replays has as many tokens.
    let _ = folder.vcr(&["inspect", "convert", "a.jsonl", "--to", "mooncake", "-o", "w.jsonl"]).ended(0);
    let again = folder.vcr(&["inspect", "summarize", "w.jsonl", "--block-size", "16", "--json"]).ended(0).json();
    assert_eq!(
        (&again["prompt_tokens"], &again["output_tokens"]),
        (&summary["prompt_tokens"], &summary["output_tokens"])
    );
    assert_eq!(again["prefixes"]["distinct_blocks"], summary["prefixes"]["distinct_blocks"]);
    assert_eq!((&again["is_workload"], &again["ttft_ns"]), (&true.into(), &Value::Null));

    let _ = folder.vcr(&["inspect", "convert", "a.jsonl", "-o", "r.csv"]).ended(0);
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
   ttft  75.00ms  50.00ms  100.0ms  100.0ms  100.0ms      2
   itl   10.00ms  10.00ms  10.00ms  10.00ms  10.00ms      2
   e2e   85.00ms  50.00ms  120.0ms  120.0ms  120.0ms      2
  of 2 gaps only means are known
";
    assert_eq!(squeezed(&said.stdout), squeezed(expected), "{}", said.stdout);
    let said = folder.vcr(&["inspect", "summarize", "c.jsonl.gz", "-o", "s.txt"]).ended(0);
    assert_eq!(said.stdout, "");
    let written = fs::read_to_string(folder.path().join("s.txt")).expect("a text");
    assert_eq!(squeezed(&written), squeezed(expected));
}

/// Without what only aligns columns.
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

#[test]
fn bad_input_names_its_place_and_leaves_no_file() {
    let folder = Folder::new();
    folder.write("report.json", REPORT.replace("\"prompt_tokens\":4", "\"prompt_tokens\":-4"));
    let convert = ["inspect", "convert", "report.json", "-o", "c.jsonl"];
    folder.vcr(&convert).failed(2, &["`report.json`, benchmarks[0].requests.successful[1], field `prompt_tokens`"]);
    assert!(!folder.path().join("c.jsonl").exists());
    let said = folder.vcr(&[&convert[..], &["--lenient"]].concat()).ended(0);
    assert!(said.stderr.contains("warning: 1 item skipped, first: `report.json`, benchmarks[0]"), "{}", said.stderr);
    // What is there is not overwritten, nor taken away.
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

#[test]
fn the_schema_is_printed() {
    let schema: Value = serde_json::from_str(&Folder::new().vcr(&["inspect", "schema"]).ended(0).stdout).expect("JSON");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
}
