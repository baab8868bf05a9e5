//! Writes `summary.md`: the result of a scenario for the page of a CI system.

use std::io::{self, Write};

use crate::document::{Document, Run};
use crate::kv_transfers;
use crate::text::{Cell, time};

/// Maximum number of rows of each table, because CI systems limit the size of a page.
const MAX_ROWS: usize = 200;

/// Writes the assertions, failed assertions first, and a line for each run.
///
/// # Errors
/// If the writer fails.
pub fn write(out: &mut dyn Write, report: &Document) -> io::Result<()> {
    let failed = report.assertions.iter().filter(|assertion| !assertion.passed).count();
    let (mark, verdict) = match (failed, report.assertions.len()) {
        _ if report.partial.as_ref().is_some_and(|partial| partial.error.is_some()) => {
            ("❌", "failed with an error".to_owned())
        }
        _ if report.partial.is_some() => ("⚠️", "stopped early".to_owned()),
        (0, 0) => ("ℹ️", "no assertions".to_owned()),
        (0, all) => {
            let cut = report.cut_text();
            (if cut.is_empty() { "✅" } else { "⚠️" }, format!("{all} of {all} assertions passed{cut}"))
        }
        (failed, all) => ("❌", format!("{failed} of {all} assertions failed{}", report.cut_text())),
    };
    writeln!(out, "### {mark} {}: {verdict}\n", Cell(&report.scenario))?;
    if let Some(claim) = &report.claim {
        writeln!(out, "{}\n", Cell(claim))?;
    }
    if let Some(partial) = &report.partial {
        writeln!(out, "{}\n", Cell(partial.reason()))?;
    }
    if !report.assertions.is_empty() {
        writeln!(out, "| | run | assertion | observed |\n|---|---|---|---|")?;
        let by_result = |passed: bool| report.assertions.iter().filter(move |assertion| assertion.passed == passed);
        for assertion in by_result(false).chain(by_result(true)).take(MAX_ROWS) {
            let mark = if assertion.passed { "✅" } else { "❌" };
            let run = Cell(assertion.run.as_deref().unwrap_or_default());
            writeln!(out, "| {mark} | {run} | {} | {} |", Cell(assertion.title()), Cell(assertion.observed_text()))?;
        }
        write_rest(out, report.assertions.len())?;
    }
    if !report.runs.is_empty() {
        write_runs(out, &report.runs)?;
    }
    let pairs = kv_transfers::write_markdown(out, &report.runs, MAX_ROWS)?;
    if pairs > 0 {
        write_rest(out, pairs)?;
    }
    let parameters: Vec<String> = report.parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if !parameters.is_empty() {
        writeln!(out, "Parameters: {}\n", Cell(parameters.join(", ")))?;
    }
    if !report.fingerprint.is_empty() {
        write!(out, "Fingerprint `{}`, ", report.fingerprint)?;
    }
    writeln!(out, "vcr {}\n", Cell(&report.vcr_version))
}

fn write_runs(out: &mut dyn Write, runs: &[Run]) -> io::Result<()> {
    writeln!(
        out,
        "| run | TTFT p50 | TTFT p99 | ITL p50 | ITL p99 | E2E p50 | E2E p99 | completed | output tokens/s |"
    )?;
    writeln!(out, "|---|--:|--:|--:|--:|--:|--:|--:|--:|")?;
    for run in runs.iter().take(MAX_ROWS) {
        write_run(out, run)?;
    }
    write_rest(out, runs.len())
}

fn write_run(out: &mut dyn Write, run: &Run) -> io::Result<()> {
    write!(out, "| {} |", Cell(&run.name))?;
    for metric in ["ttft_ms", "itl_ms", "e2e_ms"] {
        match run.metrics.trends.get(metric) {
            Some(trend) => write!(out, " {} | {} |", time(trend.p50), time(trend.p99))?,
            None => write!(out, " – | – |")?,
        }
    }
    let (completed, requests) = (run.metrics.count("completed"), run.metrics.count("requests"));
    let rate = run.metrics.rates_per_s.get("output_tokens").copied().unwrap_or_default();
    writeln!(out, " {completed}/{requests} | {rate:.1} |")
}

fn write_rest(out: &mut dyn Write, rows: usize) -> io::Result<()> {
    match rows.checked_sub(MAX_ROWS) {
        Some(rest) if rest > 0 => writeln!(out, "\nand {rest} more\n"),
        _ => writeln!(out),
    }
}
