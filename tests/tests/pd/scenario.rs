//! Scenarios whose live engines move bytes.

use serde_json::Value;
use vcr_tests::{Folder, Said, root};

const REQUESTS: u64 = 6;
/// Blocks for 160 tokens, with 16 tokens each.
const BLOCKS: u64 = 10;
const BLOCK_BYTES: u64 = 16 * 4096;
/// K and V of four layers.
const PAGES: u64 = 8;

/// Two engines in each pool, and a link with these options.
fn scenario(link: &str) -> Folder {
    Folder::with(&format!(
        r#"let e = engine(#{{ num_gpu_blocks: param("blocks", 400), max_model_len: 1024 }});
let p = pool(#{{ engines: 2, engine: e, latency: fixed(#{{ step: "5ms" }}) }});
let c = cluster(#{{ prefill: p, decode: p, link: link(#{{ {link} }}) }});
let w = burst(#{{ count: {REQUESTS}, prompt_tokens: 160, output_tokens: 4 }});
run(#{{ name: "moving", cluster: c, workloads: [ w ] }});"#
    ))
}

/// A group with full attention, and one with a window of four blocks.
const GROUPS: &str = r#"["full", "sliding_window:64"]"#;

fn grouped(link: &str, prefill: &str, decode: &str) -> Folder {
    Folder::with(&format!(
        r#"let p = |groups| pool(#{{
    engine: engine(#{{ num_gpu_blocks: 400, max_model_len: 1024, kv_cache_groups: groups }}),
    latency: fixed(#{{ step: "5ms" }}),
}});
let c = cluster(#{{ prefill: p.call({prefill}), decode: p.call({decode}), link: link(#{{ {link} }}) }});
let w = burst(#{{ count: 1, prompt_tokens: 160, output_tokens: 4 }});
run(#{{ name: "grouped", cluster: c, workloads: [ w ] }});"#
    ))
}

const TCP: &str = r#"kv_bytes_per_token: "4KiB", kv_transfer: "tcp", kv_layers: 4"#;

#[track_caller]
fn run_of(said: &Said) -> Value {
    said.json()["runs"][0].clone()
}

fn min_ttft_ms(run: &Value) -> f64 {
    run["metrics"]["trends"]["ttft_ms"]["min"].as_f64().expect("there are first tokens")
}

/// The report has sizes and times by pair of engines, and the trace has each transfer.
#[test]
fn pages_of_all_prompts_are_in_report_and_trace() {
    let folder = scenario(&format!("{TCP}, latency: \"20ms\", bandwidth: \"100MB/s\""));
    for target in ["live", "serve"] {
        let run = run_of(&folder.run(&["--target", target, "--out", target, "--json", "-q"]).ended(0));
        let sums = run["target"]["kv_transfers"].as_array().unwrap_or_else(|| panic!("{target}: {}", run["target"]));
        let sum = |key: &str| sums.iter().filter_map(|sum| sum[key].as_u64()).sum::<u64>();
        let wanted = [REQUESTS, REQUESTS * BLOCKS * BLOCK_BYTES, REQUESTS * BLOCKS * PAGES];
        assert_eq!(["transfers", "bytes", "pages"].map(sum), wanted, "{target}: {sums:?}");
        for sum in sums {
            let name = |key: &str| sum[key].as_str().unwrap_or_default().to_owned();
            assert!(name("engine").starts_with("decode ") && name("from").starts_with("prefill "), "{sum}");
            assert!(sum["move_ms"].as_f64() > Some(0.0) && sum["failures"].is_null(), "{sum}");
        }
        // A prefill step, the link's latency, and at least the time of one prompt's bytes at the link's bandwidth.
        assert!(min_ttft_ms(&run) >= 31.5, "{target}: {}", min_ttft_ms(&run));
        let read = |path: std::path::PathBuf| -> Value {
            serde_json::from_slice(&std::fs::read(path).expect("it is there")).expect("it is JSON")
        };
        let schema = read(root().join("docs/schemas/report.schema.json"));
        let validator = jsonschema::draft202012::new(&schema).expect("it is a schema");
        let report = read(folder.path().join(target).join("report.json"));
        let problems: Vec<String> = validator.iter_errors(&report).map(|error| error.to_string()).collect();
        assert!(problems.is_empty(), "{target}: {problems:?}");
        let trace = read(folder.path().join(target).join("trace.json"));
        let events = trace["traceEvents"].as_array().expect("it has events");
        let begins = |name: &str| {
            let is_begin = |event: &&Value| event["cat"] == "KV" && event["ph"] == "b";
            let begins = events.iter().filter(is_begin);
            begins.filter(|event| event["name"].as_str().is_some_and(|it| it.starts_with(name))).count() as u64
        };
        assert_eq!((begins("prefill "), begins("move")), (REQUESTS, REQUESTS), "{target}");
        let text = |name| std::fs::read_to_string(folder.path().join(target).join(name)).expect("it was written");
        let (page, summary) = (text("report.html"), text("summary.md"));
        for sum in sums {
            let texts = ["from", "engine"].map(|key| sum[key].as_str().unwrap_or_default().to_owned());
            let sizes = ["transfers", "bytes", "pages"].map(|key| sum[key].to_string());
            let row = [&texts[..], &sizes[..]].concat();
            let (html, line) = (row.join("</td><td>"), row.join(" | "));
            assert!(page.contains(&html), "{target}: no `{html}` in report.html");
            assert!(summary.contains(&line), "{target}: no `{line}` in {summary}");
        }
    }
}

/// Of a window, only the blocks that the next token needs move. Each group has half of the layers.
#[test]
fn groups_of_layers_move_what_they_need() {
    let link = format!("{TCP}, bandwidth: \"1MB/s\"");
    let folder = grouped(&link, GROUPS, GROUPS);
    // All ten blocks of one group and four of the other: equivalent to 112 of the 160 tokens over all layers.
    let transfer_ms = 112.0 * 4.096;
    let run = run_of(&folder.run(&["--json", "-q"]).ended(0));
    let of_trend = |run: &Value, trend: &str| run["metrics"]["trends"][trend]["max"].as_f64().expect("there is one");
    assert!((of_trend(&run, "transfer_ms") - transfer_ms).abs() < 0.001, "{}", of_trend(&run, "transfer_ms"));
    for target in ["live", "serve"] {
        let run = run_of(&folder.run(&["--target", target, "--json", "-q"]).ended(0));
        let sums = run["target"]["kv_transfers"].as_array().unwrap_or_else(|| panic!("{target}: {}", run["target"]));
        let sum = |key: &str| sums.iter().filter_map(|sum| sum[key].as_u64()).sum::<u64>();
        let blocks = BLOCKS + 4;
        assert_eq!(["bytes", "pages"].map(sum), [blocks * BLOCK_BYTES / 2, blocks * PAGES / 2], "{target}: {sums:?}");
        assert!(min_ttft_ms(&run) >= transfer_ms, "{target}: {}", min_ttft_ms(&run));
    }
}

/// `kv_transfer_time` selects the time of the real bytes, the time by the link's model, or the longer of the two.
#[test]
fn the_time_of_a_transfer_is_chosen() {
    let of = |time: &str, latency: &str| {
        let folder = scenario(&format!("{TCP}, kv_transfer_time: \"{time}\", latency: \"{latency}\""));
        min_ttft_ms(&run_of(&folder.run(&["--target", "live", "--json", "-q"]).ended(0)))
    };
    // By the link's model, the transfer would take an hour.
    assert!(of("real", "3600s") < 3_600_000.0);
    for time in ["modelled", "slower-of"] {
        assert!(of(time, "300ms") >= 300.0, "{time}");
    }
}

/// In virtual time no bytes are moved, and only the link's time counts.
#[test]
fn virtual_time_is_the_same_with_and_without() {
    let fingerprint = |link: &str| {
        let run = run_of(&scenario(link).run(&["--json", "-q"]).ended(0));
        (run["fingerprint"].clone(), min_ttft_ms(&run).to_bits())
    };
    let link = r#"latency: "20ms", bandwidth: "1GB/s", kv_bytes_per_token: "4KiB""#;
    assert_eq!(fingerprint(&format!("{link}, kv_transfer: \"tcp\"")), fingerprint(link));
}

#[test]
fn what_cannot_move_is_told_before_anything_starts() {
    for (link, wanted) in [
        (r#"kv_transfer: "tcp""#, "`kv_bytes_per_token`"),
        (r#"kv_layers: 3"#, "`kv_layers` needs `kv_transfer: \"tcp\"`"),
        (r#"kv_transfer_time: "real""#, "`kv_transfer_time` needs `kv_transfer: \"tcp\"`"),
        (r#"kv_transfer: "tpc", kv_bytes_per_token: 1"#, "expected one of \"none\", \"tcp\""),
        (r#"kv_transfer: "tcp", kv_layers: 0, kv_bytes_per_token: 1"#, "invalid `kv_layers`: expected at least 1"),
        (r#"kv_transfer: "tcp", kv_layers: 3, kv_bytes_per_token: "4KiB""#, "invalid KV block of 65536 bytes"),
    ] {
        scenario(link).run(&["--target", "live"]).failed(2, &[wanted]);
    }
    let tcp = scenario(TCP);
    tcp.run(&["--target", "live", "-e", "blocks=50000000"]).failed(2, &["but this process may use", "num_gpu_blocks"]);
    for (prefill, decode, wanted) in [
        (r#"["full", "mamba"]"#, r#"["full", "mamba"]"#, "its engines cannot take KV from others or hand it on"),
        (GROUPS, "[]", "prefill and decode engines must have the same `kv_cache_groups`"),
    ] {
        for target in ["virtual", "live", "serve"] {
            grouped(TCP, prefill, decode).run(&["--target", target]).failed(2, &[wanted]);
        }
    }
    let uneven = r#"kv_bytes_per_token: 5, kv_transfer: "tcp", kv_layers: 2"#;
    let thirds = r#"["full", "sliding_window:64@32"]"#;
    grouped(uneven, thirds, thirds).run(&["--target", "live"]).failed(2, &["KV cache groups no whole number of bytes"]);
    let parts = scenario(&format!("{TCP}, transfer: \"full-prompt\""));
    for target in ["live", "serve"] {
        parts.run(&["--target", target]).failed(2, &["cannot move KV of `moving`", "no transfers of whole prompts"]);
    }
}
