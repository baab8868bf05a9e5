//! `report.html`: one file without links to a network.
//!
//! Rust writes the parts that need no drawing, so that they can be read without scripts:
//! the verdict, assertions, the list of runs, the scenario. `assets/page.js` draws the rest
//! from JSON inside the page, with uPlot.

use std::io::{self, Write};

use serde::Serialize;

use crate::charts::{RunCharts, Source};
use crate::distribution::PERCENTS;
use crate::document::{Document, Engine, Link, Metrics, Partial, Run, Scaling};
use crate::folder::Folder;
use crate::kv_transfers;
use crate::text::{Escaped, json_in_html, time};

const UPLOT_JS: &str = include_str!("../assets/uPlot.iife.min.js");
const UPLOT_CSS: &str = include_str!("../assets/uPlot.min.css");
const UPLOT_LICENSE: &str = include_str!("../assets/uPlot.LICENSE");
const PAGE_JS: &str = include_str!("../assets/page.js");
const PAGE_CSS: &str = include_str!("../assets/page.css");

/// Nothing is fetched, whatever a text of the report says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// Rows of the tables of assertions and runs at most.
const MAX_ROWS: usize = 1000;
/// Length of the scenario's text at most.
const MAX_SOURCE_BYTES: usize = 256 << 10;

/// The JSON inside the page.
#[derive(Serialize)]
struct Data<'a> {
    percents: &'a [f64],
    runs: Vec<DrawnRun<'a>>,
}

/// A run that can be drawn and compared.
#[derive(Serialize)]
struct DrawnRun<'a> {
    /// Index of its folder.
    folder: usize,
    label: String,
    seed: u64,
    duration_ms: f64,
    partial: bool,
    metrics: &'a Metrics,
    engines: &'a [Engine],
    links: &'a [Link],
    scaling: &'a [Scaling],
    charts: &'a RunCharts,
}

/// Writes the page of one report, or one that compares the runs of several.
///
/// # Errors
/// Those of the writer.
pub fn write(out: &mut dyn Write, folders: &[Folder]) -> io::Result<()> {
    let titles: Vec<&str> = folders.iter().map(|folder| folder.report.scenario.as_str()).collect();
    let title = match folders.len() {
        1 => titles.join(""),
        _ => folders.iter().map(|folder| folder.label.as_str()).collect::<Vec<_>>().join(" and "),
    };
    let title = Escaped(title);
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title} - vcr</title>\n\
         <style>{UPLOT_CSS}</style>\n<style>{PAGE_CSS}</style>\n</head>\n<body>\n<main>\n"
    )?;
    for folder in folders {
        write_head(out, folder, folders.len() > 1)?;
    }
    write_drawn(out, folders)?;
    for folder in folders {
        write_source(out, folder, folders.len() > 1)?;
    }
    writeln!(out, "</main>")?;
    let data = serde_json::to_string(&data(folders))?;
    writeln!(out, "<script type=\"application/json\" id=\"data\">{}</script>", json_in_html(&data))?;
    // The licence asks for its text in every copy.
    writeln!(out, "<script>/*!\n{UPLOT_LICENSE}*/\n{UPLOT_JS}</script>")?;
    writeln!(out, "<script>\n{PAGE_JS}</script>\n</body>\n</html>")
}

fn data(folders: &[Folder]) -> Data<'_> {
    static NONE: RunCharts = RunCharts {
        name: String::new(),
        distributions: Vec::new(),
        timeline: None,
        incidents: Vec::new(),
        load: None,
        phases: Vec::new(),
        slowest: Vec::new(),
    };
    let several = folders.len() > 1;
    let drawn = folders.iter().enumerate().flat_map(|(place, folder)| {
        let runs = folder.report.runs.iter().take(crate::MAX_DRAWN_RUNS);
        runs.enumerate().map(move |(index, run)| DrawnRun {
            folder: place,
            label: if several { format!("{}: {}", folder.label, run.name) } else { run.name.clone() },
            seed: run.seed,
            duration_ms: run.duration_ms,
            partial: run.partial,
            metrics: &run.metrics,
            engines: &run.engines,
            links: &run.links,
            scaling: &run.scaling,
            charts: folder.charts.runs.get(index).filter(|charts| charts.name == run.name).unwrap_or(&NONE),
        })
    });
    Data { percents: &PERCENTS, runs: drawn.collect() }
}

/// Verdict, claim, parameters, assertions, runs.
fn write_head(out: &mut dyn Write, folder: &Folder, several: bool) -> io::Result<()> {
    let report = &folder.report;
    let label = if several { format!("{}: {}", folder.label, report.scenario) } else { report.scenario.clone() };
    let failed = report.assertions.iter().filter(|assertion| !assertion.passed).count();
    let (class, verdict) = match (failed, report.assertions.len(), &report.partial) {
        (_, _, Some(Partial { error: Some(error), .. })) => ("failed", format!("failed with an error: {error}")),
        (_, _, Some(partial)) => ("failed", format!("stopped early by {}", partial.stopped_by)),
        (0, 0, None) => ("neutral", "no assertions".to_owned()),
        (0, all, None) => ("passed", format!("{all} of {all} assertions passed")),
        (failed, all, None) => ("failed", format!("{failed} of {all} assertions failed")),
    };
    writeln!(out, "<header>\n<h1>{}</h1>", Escaped(label))?;
    writeln!(out, "<p class=\"verdict {class}\">{}</p>", Escaped(verdict))?;
    if let Some(claim) = &report.claim {
        writeln!(out, "<p class=\"claim\">{}</p>", Escaped(claim))?;
    }
    writeln!(out, "</header>")?;
    write_assertions(out, report)?;
    write_runs(out, report)?;
    let pairs = kv_transfers::write_html(out, &report.runs, MAX_ROWS)?;
    if pairs > 0 {
        write_rest(out, pairs)?;
        writeln!(out, "</section>")?;
    }
    if !several && !folder.files.is_empty() {
        let link = |name: &String| format!("<a href=\"{0}\">{0}</a>", Escaped(name));
        writeln!(
            out,
            "<p class=\"files\">Files: {}</p>",
            folder.files.iter().map(link).collect::<Vec<_>>().join(", ")
        )?;
    }
    Ok(())
}

fn write_assertions(out: &mut dyn Write, report: &Document) -> io::Result<()> {
    if report.assertions.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "<section class=\"assertions\"><h2>Assertions</h2>\n<table><thead><tr><th scope=\"col\">Result</th>"
    )?;
    writeln!(
        out,
        "<th scope=\"col\">Run</th><th scope=\"col\">Assertion</th><th scope=\"col\">Observed</th></tr></thead><tbody>"
    )?;
    let by_result = |passed: bool| report.assertions.iter().filter(move |assertion| assertion.passed == passed);
    for assertion in by_result(false).chain(by_result(true)).take(MAX_ROWS) {
        let (class, result) = if assertion.passed { ("passed", "✓ passed") } else { ("failed", "✗ failed") };
        writeln!(
            out,
            "<tr><td class=\"{class}\">{result}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            Escaped(assertion.run.as_deref().unwrap_or_default()),
            Escaped(assertion.title()),
            Escaped(assertion.observed()),
        )?;
    }
    writeln!(out, "</tbody></table>")?;
    write_rest(out, report.assertions.len())?;
    writeln!(out, "</section>")
}

/// The columns of the list of runs: title, metric, statistic.
const STATISTICS: [(&str, &str); 3] = [("TTFT", "ttft_ms"), ("ITL", "itl_ms"), ("E2E", "e2e_ms")];

fn write_runs(out: &mut dyn Write, report: &Document) -> io::Result<()> {
    write!(
        out,
        "<section class=\"runs\"><h2>Runs</h2>\n<div class=\"wide\"><table><thead><tr><th scope=\"col\">Run</th>"
    )?;
    write!(out, "<th scope=\"col\">Seed</th><th scope=\"col\">Duration</th>")?;
    for (title, _) in STATISTICS {
        write!(out, "<th scope=\"col\">{title} p50</th><th scope=\"col\">{title} p99</th>")?;
    }
    writeln!(
        out,
        "<th scope=\"col\">Completed</th><th scope=\"col\">Requests/s</th><th scope=\"col\">Output tokens/s</th>\
         <th scope=\"col\">Preemptions</th></tr></thead><tbody>"
    )?;
    for run in report.runs.iter().take(MAX_ROWS) {
        write_run(out, run)?;
    }
    writeln!(out, "</tbody></table></div>")?;
    write_rest(out, report.runs.len())?;
    writeln!(out, "</section>")
}

fn write_run(out: &mut dyn Write, run: &Run) -> io::Result<()> {
    let metrics = &run.metrics;
    let rate = |name: &str| metrics.rates_per_s.get(name).copied().unwrap_or_default();
    let partial = if run.partial { " (stopped early)" } else { "" };
    write!(out, "<tr><th scope=\"row\">{}{partial}</th><td>{}</td>", Escaped(&run.name), run.seed)?;
    write!(out, "<td>{}</td>", time(run.duration_ms))?;
    for (_, metric) in STATISTICS {
        match metrics.trends.get(metric) {
            Some(trend) => write!(out, "<td>{}</td><td>{}</td>", time(trend.p50), time(trend.p99))?,
            None => write!(out, "<td>–</td><td>–</td>")?,
        }
    }
    let (completed, requests) = (metrics.count("completed"), metrics.count("requests"));
    let (per_s, tokens, preemptions) = (rate("completed"), rate("output_tokens"), metrics.count("preemptions"));
    writeln!(
        out,
        "<td>{completed} of {requests}</td><td>{per_s:.2}</td><td>{tokens:.1}</td><td>{preemptions}</td></tr>"
    )
}

fn write_rest(out: &mut dyn Write, rows: usize) -> io::Result<()> {
    match rows.checked_sub(MAX_ROWS) {
        Some(rest) if rest > 0 => writeln!(out, "<p>and {rest} more, see report.json</p>"),
        _ => Ok(()),
    }
}

/// The places of what the script draws.
fn write_drawn(out: &mut dyn Write, folders: &[Folder]) -> io::Result<()> {
    let runs: usize = folders.iter().map(|folder| folder.report.runs.len()).sum();
    let drawn: usize = folders.iter().map(|folder| folder.report.runs.len().min(crate::MAX_DRAWN_RUNS)).sum();
    writeln!(out, "<noscript><p>The charts need JavaScript.</p></noscript>")?;
    writeln!(out, "<form id=\"choice\" class=\"choice\"><label>Run <select id=\"run\"></select></label>")?;
    writeln!(out, "<label>compared with <select id=\"other\"></select></label></form>")?;
    if drawn < runs {
        writeln!(out, "<p>The first {drawn} of {runs} runs are drawn.</p>")?;
    }
    writeln!(out, "<div id=\"drawn\"></div>")
}

/// The scenario with what it ran with.
fn write_source(out: &mut dyn Write, folder: &Folder, several: bool) -> io::Result<()> {
    let report = &folder.report;
    let of = if several { format!(" of {}", folder.label) } else { String::new() };
    writeln!(out, "<section class=\"source\"><h2>Scenario{}</h2>\n<dl>", Escaped(of))?;
    let mut seeds: Vec<u64> = report.runs.iter().map(|run| run.seed).collect();
    seeds.dedup();
    seeds.truncate(16);
    let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
    let facts = [
        ("Fingerprint", report.fingerprint.clone()),
        (if seeds.len() == 1 { "Seed" } else { "Seeds" }, seeds.join(", ")),
        ("SHA-256 of the script", report.scenario_sha256.clone()),
        ("Version of vcr", report.vcr_version.clone()),
    ];
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        writeln!(out, "<dt>{name}</dt><dd><code>{}</code></dd>", Escaped(value))?;
    }
    for (key, value) in &report.parameters {
        writeln!(out, "<dt>Parameter <code>{}</code></dt><dd><code>{}</code></dd>", Escaped(key), Escaped(value))?;
    }
    for input in &report.inputs {
        let (kind, path) = (Escaped(&input.kind), Escaped(&input.path));
        let sha256 = Escaped(&input.sha256);
        writeln!(out, "<dt>Input ({kind})</dt><dd><code>{path}</code><br><code>sha256 {sha256}</code></dd>")?;
    }
    writeln!(out, "</dl>")?;
    if let Some(Source { name, text }) = &folder.charts.source {
        let end = (0..=MAX_SOURCE_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        writeln!(out, "<details open><summary>{}</summary>", Escaped(name))?;
        writeln!(out, "<pre tabindex=\"0\"><code>{}</code></pre></details>", Escaped(&text[..end]))?;
        if end < text.len() {
            writeln!(out, "<p>The first {end} of {} bytes are shown.</p>", text.len())?;
        }
    }
    writeln!(out, "</section>")
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::charts::Charts;
    use crate::document::Assertion;
    use vcr_trace::RequestRow;

    use crate::{Distribution, EngineLine, RequestCharts, Timeline};

    const BAD: &str = "</script><script>alert(1)</script><!--";

    #[test]
    fn texts_of_users_are_no_markup() {
        let run = Run { name: BAD.to_owned(), ..Run::default() };
        let assertion = Assertion { run: Some(BAD.to_owned()), subject: BAD.to_owned(), ..Assertion::default() };
        let report = Document {
            scenario: BAD.to_owned(),
            claim: Some(BAD.to_owned()),
            parameters: [(BAD.to_owned(), BAD.to_owned())].into(),
            assertions: vec![assertion],
            runs: vec![run],
            ..Document::default()
        };
        let source = Source { name: BAD.to_owned(), text: BAD.to_owned() };
        let charts = Charts::new(Some(source), vec![RunCharts { name: BAD.to_owned(), ..RunCharts::default() }]);
        let folder = Folder { label: BAD.to_owned(), report, charts, files: vec![BAD.to_owned()] };
        for folders in [vec![folder.clone()], vec![folder.clone(), folder]] {
            let mut out = Vec::new();
            write(&mut out, &folders).expect("a vector takes everything");
            let page = String::from_utf8(out).expect("text");
            assert!(!page.contains("<script>alert"), "a text became a script");
            assert_eq!(page.matches("</script>").count(), 3, "one for the data, two for programs");
        }
    }

    /// As large as a page can become: a million requests of hundreds of workloads in more
    /// runs than are drawn, on many engines, with more assertions than are listed.
    #[test]
    fn a_million_requests_fit_a_small_page() {
        let names: Vec<String> = (0..300).map(|index| format!("a workload with the number {index}")).collect();
        let runs = crate::MAX_DRAWN_RUNS + 4;
        let per_run = 1_000_000 / runs as u64;
        let charts_of = |run: usize| {
            let mut requests = RequestCharts::new(3_600_000.0).with_distributions();
            for id in 0..per_run {
                // Digits without a pattern, as measured times have them.
                let ms = (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f64 / 1000.003;
                requests.add(&RequestRow {
                    id,
                    workload: names[id as usize % names.len()].as_str().into(),
                    status: "completed".into(),
                    arrival_ms: ms,
                    scheduled_ms: Some(ms * 1.1),
                    prefill_end_ms: Some(ms * 1.2),
                    end_ms: Some(ms * 1.3),
                    ttft_ms: Some(ms * 0.2),
                    e2e_ms: Some(ms * 0.3),
                    ..RequestRow::default()
                });
            }
            let mut charts = RunCharts { name: format!("run {run}"), ..RunCharts::default() };
            requests.finish(&mut charts);
            // Gaps between tokens have as many distributions as either of the two.
            let gaps = charts.distributions.iter().filter(|own| own.metric == "e2e").cloned();
            let gaps: Vec<_> = gaps.map(|own| Distribution { metric: "itl".to_owned(), ..own }).collect();
            charts.distributions.extend(gaps);
            let totals: Vec<u64> = (0..512).map(|index| index * 123_456_789).collect();
            let line = |engine| EngineLine {
                pool: format!("pool {}", engine % 20),
                name: format!("engine {engine}"),
                engines: 1,
                running: totals.clone(),
                waiting: totals.clone(),
                kv_usage: vec![0.123_456_789; 512],
                prefill_tokens: totals.clone(),
                decode_tokens: totals.clone(),
                preemptions: totals.clone(),
            };
            charts.timeline = Some(Timeline::of(1.0, (0..256).map(line).collect(), crate::MAX_DRAWN_RUNS));
            charts
        };
        let report = Document {
            runs: (0..runs)
                .map(|run| Run { name: format!("run {run}"), duration_ms: 3.6e6, ..Run::default() })
                .collect(),
            assertions: vec![Assertion { subject: "ttft{workload:chat}".to_owned(), ..Assertion::default() }; 5_000],
            ..Document::default()
        };
        let charts = Charts::new(None, (0..crate::MAX_DRAWN_RUNS).map(charts_of).collect());
        let mut out = Vec::new();
        write(&mut out, &[Folder { label: String::new(), report, charts, files: Vec::new() }]).expect("a vector");
        assert!((1_000_000..5_000_000).contains(&out.len()), "{} bytes", out.len());
    }

    #[test]
    fn the_library_is_what_its_table_says() {
        let table = include_str!("../assets/README.md");
        for file in [UPLOT_JS, UPLOT_CSS] {
            assert!(table.contains(&hex::encode(Sha256::digest(file))), "a digest is missing");
        }
    }
}
