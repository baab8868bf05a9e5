//! Writes `report.html`, and the page that compares several folders.
//!
//! The verdict, tiles, assertions, the list of runs and the scenario are written here. `assets/report.js` draws the
//! rest from [`Data`].

use std::io::{self, Write};

use serde::Serialize;

use crate::charts::RunCharts;
use crate::distribution::PERCENTS;
use crate::document::{Document, Engine, Link, Metrics, Overload, Partial, Run, Scaling};
use crate::folder::Folder;
use crate::kv_transfers;
use crate::limit::Limit;
use crate::page::{Tone, write_banner, write_headroom, write_page, write_tiles};
use crate::sources::write_sources;
use crate::text::{Escaped, time};
use crate::tiles::{chart_of, tiles_of};

/// Maximum number of rows in the tables of assertions and of runs.
const MAX_ROWS: usize = 1000;

#[derive(Serialize)]
struct Data<'a> {
    percents: &'a [f64],
    first: usize,
    runs: Vec<DrawnRun<'a>>,
}

#[derive(Serialize)]
struct DrawnRun<'a> {
    folder: usize,
    label: String,
    seed: u64,
    duration_ms: f64,
    partial: bool,
    limits: Vec<Limit>,
    metrics: &'a Metrics,
    engines: &'a [Engine],
    links: &'a [Link],
    scaling: &'a [Scaling],
    charts: &'a RunCharts,
}

/// Writes the page of one report, or a page that compares the runs of several reports.
///
/// # Errors
/// If the writer fails.
pub fn write(out: &mut dyn Write, folders: &[Folder]) -> io::Result<()> {
    let titles: Vec<&str> = folders.iter().map(|folder| folder.report.scenario.as_str()).collect();
    let title = match folders.len() {
        1 => titles.join(""),
        _ => folders.iter().map(|folder| folder.label.as_str()).collect::<Vec<_>>().join(" and "),
    };
    write_page(out, &title, &data(folders), &mut |out| {
        match folders {
            [folder] => write_head(out, folder)?,
            _ => write_compared_head(out, &title, folders)?,
        }
        write_drawn(out, folders)?;
        write_sources(out, folders)
    })
}

fn data(folders: &[Folder]) -> Data<'_> {
    static NONE: RunCharts = RunCharts {
        name: String::new(),
        distributions: Vec::new(),
        timeline: None,
        incidents: Vec::new(),
        load: None,
        courses: Vec::new(),
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
            limits: folder.report.assertions_of(&run.name).filter_map(|assertion| assertion.limit()).collect(),
            metrics: &run.metrics,
            engines: &run.engines,
            links: &run.links,
            scaling: &run.scaling,
            charts: folder.charts.runs.get(index).filter(|charts| charts.name == run.name).unwrap_or(&NONE),
        })
    });
    let first = if several { 0 } else { folders.first().map_or(0, |folder| first_of(&folder.report)) };
    Data { percents: &PERCENTS, first, runs: drawn.collect() }
}

/// Index of the run to show first: the run of the first failed assertion, or else the first run.
fn first_of(report: &Document) -> usize {
    let failed = report.assertions.iter().find(|assertion| !assertion.passed);
    let name = failed.and_then(|assertion| assertion.run.as_ref());
    let drawn = &report.runs[..report.runs.len().min(crate::MAX_DRAWN_RUNS)];
    name.and_then(|name| drawn.iter().position(|run| run.name == *name)).unwrap_or(0)
}

fn verdict_of(report: &Document) -> (Tone, String) {
    let failed = report.assertions.iter().filter(|assertion| !assertion.passed).count();
    match (failed, report.assertions.len(), &report.partial) {
        (_, _, Some(Partial { error: Some(error), .. })) => (Tone::Failed, format!("failed with an error: {error}")),
        (_, _, Some(partial)) => (Tone::Failed, format!("stopped early by {}", partial.stopped_by)),
        (0, 0, None) => (Tone::Neutral, "no assertions".to_owned()),
        (0, all, None) => {
            let cut = report.cut_text();
            let tone = if cut.is_empty() { Tone::Passed } else { Tone::Warned };
            (tone, format!("{all} of {all} assertions passed{cut}"))
        }
        (failed, all, None) => (Tone::Failed, format!("{failed} of {all} assertions failed{}", report.cut_text())),
    }
}

fn write_head(out: &mut dyn Write, folder: &Folder) -> io::Result<()> {
    let report = &folder.report;
    let (tone, verdict) = verdict_of(report);
    write_banner(out, &report.scenario, tone, &verdict, report.claim.as_deref().unwrap_or_default())?;
    let first = first_of(report);
    for (index, run) in report.runs.iter().take(crate::MAX_DRAWN_RUNS).enumerate() {
        write_tiles(out, &tiles_of(report, run), Some((index, index == first)))?;
    }
    write_pricing(out, report)?;
    write_assertions(out, report)?;
    write_runs(out, report)?;
    write_transfers(out, report)?;
    if !folder.files.is_empty() {
        let link = |name: &String| format!("<a href=\"{0}\">{0}</a>", Escaped(name));
        let links: Vec<String> = folder.files.iter().map(link).collect();
        writeln!(out, "<p class=\"files\">Files: {}</p>", links.join(", "))?;
    }
    Ok(())
}

/// Writes one header for all folders: the verdict of each folder, and the differences between them.
fn write_compared_head(out: &mut dyn Write, title: &str, folders: &[Folder]) -> io::Result<()> {
    let verdicts: Vec<(Tone, String)> = folders.iter().map(|folder| verdict_of(&folder.report)).collect();
    let tone = match verdicts.iter().any(|(tone, _)| *tone == Tone::Failed) {
        true => Tone::Failed,
        false => Tone::Neutral,
    };
    let text = folders.iter().zip(&verdicts).map(|(folder, (_, verdict))| format!("{}: {verdict}", folder.label));
    write_banner(out, title, tone, &text.collect::<Vec<_>>().join("; "), "")?;
    let heads = folders.iter().map(|folder| format!("<th scope=\"col\">{}</th>", Escaped(&folder.label)));
    let mut rows = vec![("scenario".to_owned(), folders.iter().map(|one| one.report.scenario.clone()).collect())];
    let mut keys: Vec<&String> = folders.iter().flat_map(|folder| folder.report.parameters.keys()).collect();
    keys.sort();
    keys.dedup();
    for key in keys {
        let values = folders.iter().map(|folder| folder.report.parameters.get(key).cloned().unwrap_or_default());
        rows.push((key.clone(), values.collect::<Vec<String>>()));
    }
    rows.push(("version of vcr".to_owned(), folders.iter().map(|one| one.report.vcr_version.clone()).collect()));
    rows.retain(|(_, values)| values.windows(2).any(|pair| pair[0] != pair[1]));
    if rows.is_empty() {
        writeln!(out, "<p class=\"note\">Scenario, parameters and version are the same.</p>")?;
    } else {
        writeln!(out, "<div class=\"wide\"><table class=\"difference\"><thead><tr><th scope=\"col\">Differs in</th>")?;
        writeln!(out, "{}</tr></thead><tbody>", heads.collect::<String>())?;
        for (name, values) in rows {
            let cells: String =
                values.iter().map(|value| format!("<td><code>{}</code></td>", Escaped(value))).collect();
            writeln!(out, "<tr><th scope=\"row\">{}</th>{cells}</tr>", Escaped(name))?;
        }
        writeln!(out, "</tbody></table></div>")?;
    }
    writeln!(out, "<div id=\"differences\"></div>")?;
    for folder in folders {
        let label = Escaped(&folder.label);
        writeln!(out, "<details><summary>Assertions and runs of {label}</summary>")?;
        write_pricing(out, &folder.report)?;
        write_assertions(out, &folder.report)?;
        write_runs(out, &folder.report)?;
        write_transfers(out, &folder.report)?;
        writeln!(out, "</details>")?;
    }
    Ok(())
}

/// Writes how the step times were priced, in one line for all runs that were priced in the same way. Then writes
/// GPUs and cost, and loads above the capacity.
fn write_pricing(out: &mut dyn Write, report: &Document) -> io::Result<()> {
    let mut pricings: Vec<(String, Tone)> = report.runs.iter().map(Run::pricing).collect();
    pricings.dedup();
    for (text, tone) in pricings.iter().take(4) {
        writeln!(out, "<p class=\"note {}\">Times: {}.</p>", tone.class(), Escaped(text))?;
    }
    let of_run = |run: &Run| {
        let name = if report.runs.len() > 1 { format!("{}: ", run.name) } else { String::new() };
        run.gpus_and_cost().into_iter().map(move |text| format!("{name}{text}")).collect::<Vec<_>>()
    };
    let lines: Vec<String> = report.runs.iter().take(MAX_ROWS).flat_map(of_run).collect();
    for text in &lines {
        writeln!(out, "<p class=\"note\">{}.</p>", Escaped(text))?;
    }
    let overloaded = report.runs.iter().filter_map(|run| Some((&run.name, run.overload.as_ref()?)));
    for (run, Overload { pool, arrivals_per_s, served_per_s, .. }) in overloaded.take(4) {
        let (run, pool) = (Escaped(run), Escaped(pool));
        writeln!(
            out,
            "<p class=\"note {}\">Run {run}: the load is above the capacity of pool {pool}: {arrivals_per_s:.1} requests/s \
             arrived, {served_per_s:.1} requests/s were served, and the queue kept growing.</p>",
            Tone::Warned.class()
        )?;
    }
    Ok(())
}

fn write_transfers(out: &mut dyn Write, report: &Document) -> io::Result<()> {
    let pairs = kv_transfers::write_html(out, &report.runs, MAX_ROWS)?;
    if pairs > 0 {
        write_rest(out, pairs)?;
        writeln!(out, "</section>")?;
    }
    Ok(())
}

fn write_assertions(out: &mut dyn Write, report: &Document) -> io::Result<()> {
    if report.assertions.is_empty() {
        return Ok(());
    }
    writeln!(out, "<section class=\"assertions\"><h2>Assertions</h2>\n<div class=\"wide\"><table><thead><tr>")?;
    for title in ["Result", "Run", "Assertion", "Observed", "Headroom"] {
        write!(out, "<th scope=\"col\">{title}</th>")?;
    }
    writeln!(out, "</tr></thead><tbody>")?;
    let by_result = |passed: bool| report.assertions.iter().filter(move |assertion| assertion.passed == passed);
    for assertion in by_result(false).chain(by_result(true)).take(MAX_ROWS) {
        let (class, result) = if assertion.passed { ("passed", "✓ passed") } else { ("failed", "✗ failed") };
        let run = assertion.run.as_deref().unwrap_or_default();
        write!(out, "<tr><td class=\"{class}\">{result}</td><td>{}</td><td>", Escaped(run))?;
        let title = assertion.title();
        let title = Escaped(&title);
        let place = report.runs.iter().take(crate::MAX_DRAWN_RUNS).position(|known| known.name == run);
        match assertion.limit().and_then(|limit| chart_of(&limit.metric)).zip(place) {
            Some((chart, run)) => write!(out, "<a href=\"#{chart}\" data-run=\"{run}\">{title}</a>")?,
            None => write!(out, "{title}")?,
        }
        write!(out, "</td><td>{}</td><td>", Escaped(assertion.observed_text()))?;
        if let Some(headroom) = assertion.headroom() {
            write_headroom(out, headroom)?;
        }
        writeln!(out, "</td></tr>")?;
    }
    writeln!(out, "</tbody></table></div>")?;
    write_rest(out, report.assertions.len())?;
    writeln!(out, "</section>")
}

/// The columns of the list of runs: (title, metric).
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

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::charts::{Charts, Source};
    use crate::document::Assertion;
    use crate::page::{UPLOT_CSS, UPLOT_JS};
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

    /// The largest possible page: a million requests of hundreds of workloads, more runs than are drawn, many
    /// engines, and more assertions than are listed.
    #[test]
    fn a_million_requests_fit_a_small_page() {
        let names: Vec<String> = (0..300).map(|index| format!("a workload with the number {index}")).collect();
        let runs = crate::MAX_DRAWN_RUNS + 4;
        let per_run = 1_000_000 / runs as u64;
        let charts_of = |run: usize| {
            let mut requests = RequestCharts::new(3_600_000.0).with_distributions();
            for id in 0..per_run {
                // Measured times have digits without a pattern.
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
            // Distributions of gaps between tokens are as large as the other distributions.
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
