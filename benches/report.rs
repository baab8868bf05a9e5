//! Measures report.html for 12,000 requests in two workloads on four engines. `page` writes it from existing
//! charts. `requests` makes the charts from the lines of requests.jsonl, then writes the page. `run` runs a whole
//! scenario with the page, and `run_alone` runs it without any file: their difference is the cost of `--out` with
//! `--files html`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use vcr_report::{Folder, write_html};
use vcr_scenario::{OutFile, RunOptions, Silent, run_file};

const SCENARIO: &str = r#"
let c = cluster(#{ engines: pool(#{ engines: 4, latency: fixed(#{ prefill: "20ms", decode: "10ms" }) }) });
let load = |name| poisson(#{ name: name, rate: "50/s", count: 6000, prompt_tokens: 300, output_tokens: normal(100, 30) });
run(#{ cluster: c, workloads: [load.call("chat"), load.call("search")] });
"#;

fn run(script: &Path, out: Option<&Path>) {
    let files = Some(vec![OutFile::Html]);
    let options = RunOptions { out: out.map(Path::to_owned), files, ..RunOptions::default() };
    run_file(script, options, Arc::new(Silent)).expect("the scenario runs");
}

fn write(folder: &Folder) -> usize {
    let mut page = Vec::new();
    write_html(&mut page, std::slice::from_ref(folder)).expect("a vector takes everything");
    page.len()
}

/// Writes a folder with one run and without `charts.json`.
fn with_requests(folder: &Path, requests: usize) {
    fs::create_dir_all(folder).expect("it is writable");
    let report = r#"{"vcr_version":"1","scenario":"s","passed":true,"runs":[{"name":"a","duration_ms":120000}]}"#;
    fs::write(folder.join("report.json"), report).expect("it is writable");
    let mut lines = String::new();
    for id in 0..requests {
        let (at, length) = (id as f64 * 120_000.0 / requests as f64, (id * 7919 % 1009) as f64);
        let (scheduled, prefilled, end) = (at + 1.25, at + 21.5, at + 21.5 + length);
        let _ = writeln!(
            lines,
            r#"{{"of":"a","id":{id},"workload":"w{}","session":{id},"turn":0,"status":"completed","prompt_tokens":300,"max_tokens":100,"output_tokens":100,"cached_tokens":0,"arrival_ms":{at},"scheduled_ms":{scheduled},"prefill_end_ms":{prefilled},"first_token_ms":{prefilled},"last_token_ms":{end},"end_ms":{end},"ttft_ms":21.5,"e2e_ms":{},"engine":"engines 0","preemptions":0,"retries":0}}"#,
            id % 2,
            21.5 + length,
        );
    }
    fs::write(folder.join("requests.jsonl"), lines).expect("it is writable");
}

fn pages(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (script, out, raw) = (folder.path().join("s.rhai"), folder.path().join("out"), folder.path().join("raw"));
    fs::write(&script, SCENARIO).expect("it is writable");
    with_requests(&raw, 12_000);
    let options = RunOptions {
        out: Some(out.clone()),
        files: Some(vec![OutFile::Report, OutFile::Charts]),
        ..RunOptions::default()
    };
    run_file(&script, options, Arc::new(Silent)).expect("the scenario runs");
    let mut group = c.benchmark_group("report");
    group.sample_size(10);
    let whole = Folder::open(&out).expect("a report");
    group.bench_function("page", |bencher| bencher.iter(|| write(&whole)));
    group.bench_function("requests", |bencher| bencher.iter(|| write(&Folder::open(&raw).expect("a report"))));
    let page = folder.path().join("page");
    group.bench_function("run", |bencher| bencher.iter(|| run(&script, Some(&page))));
    group.bench_function("run_alone", |bencher| bencher.iter(|| run(&script, None)));
    group.finish();
}

criterion_group!(benches, pages);
criterion_main!(benches);
