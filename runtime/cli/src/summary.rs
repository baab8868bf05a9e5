//! The summary of a scenario for people: promises first, then metrics.

use std::io::{self, Write};

use comfy_table::Table;
use vcr_cluster::metrics::{Trend, Unit};
use vcr_cluster::{MetricsReport, Report, TrendReport, report_name};
use vcr_scenario::{Check, GuestReport, Outcome};
use vcr_units::format_ns;

use crate::style::{BOLD, DIM, GREEN, RED, align_right, bare_table, write_table};

/// Writes everything.
pub(crate) fn write(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    write!(out, "\n  {BOLD}{}{BOLD:#}", outcome.scenario)?;
    for (key, value) in &outcome.parameters {
        write!(out, "  {DIM}{key}={value}{DIM:#}")?;
    }
    writeln!(out)?;
    if let Some(claim) = &outcome.claim {
        writeln!(out, "  {claim}")?;
    }
    if !outcome.checks.is_empty() {
        writeln!(out, "\n  {BOLD}PROMISES{BOLD:#}")?;
        write_checks(out, outcome.checks.iter())?;
    }
    for run in &outcome.runs {
        write_run(out, run)?;
    }
    write_guests(out, &outcome.guests)?;
    writeln!(out, "\n  fingerprint {}", outcome.fingerprint)?;
    write_verdict(out, outcome)
}

/// Writes broken promises and the verdict, if any promise was broken.
pub(crate) fn write_broken(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    if outcome.passed {
        return Ok(());
    }
    write_checks(out, outcome.checks.iter().filter(|check| !check.passed))?;
    write_verdict(out, outcome)
}

fn write_verdict(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    let broken = outcome.checks.iter().filter(|check| !check.passed).count();
    let all = outcome.checks.len();
    match (broken, all) {
        (0, 0) => writeln!(out, "  no promises were made"),
        (0, _) => writeln!(out, "  {GREEN}{all} of {all} promises kept{GREEN:#}"),
        _ => writeln!(out, "  {RED}{broken} of {all} promises broken{RED:#}"),
    }
}

fn write_checks<'a>(out: &mut dyn Write, checks: impl Iterator<Item = &'a Check>) -> io::Result<()> {
    let mut table = bare_table();
    let mut marks = Vec::new();
    for check in checks {
        marks.push(if check.passed { (GREEN, '✓') } else { (RED, '✗') });
        let observed = match (&check.observed_text, &check.condition) {
            (Some(text), _) => text.as_str(),
            (None, Some(_)) => "no samples",
            (None, None) => "",
        };
        let run = check.run.as_deref().unwrap_or_default();
        table.add_row([run, &check.subject, check.condition.as_deref().unwrap_or_default(), observed]);
    }
    // The table knows nothing of colours, so the marks stand before its lines.
    for ((style, mark), line) in marks.into_iter().zip(table.lines()) {
        writeln!(out, "  {style}{mark}{style:#} {}", line.trim_end())?;
    }
    Ok(())
}

pub(crate) fn write_run(out: &mut dyn Write, run: &Report) -> io::Result<()> {
    let duration = format_ns(run.duration_ms * 1e6);
    writeln!(out, "\n  {BOLD}RUN {}{BOLD:#}  {DIM}seed {}, {duration} of virtual time{DIM:#}", run.name, run.seed)?;
    write_table(out, &trend_table(run))?;
    write_totals(out, run)?;
    write_table(out, &engine_table(run))?;
    for (index, link) in run.links.iter().enumerate() {
        let gigabytes = link.bytes as f64 / 1e9;
        writeln!(out, "  link {index}: {gigabytes:.2} GB moved, busy {:.1}% of the time", link.utilisation * 100.0)?;
    }
    Ok(())
}

/// Distributions of the whole run and, where there are several, of workloads.
fn trend_table(run: &Report) -> Table {
    let mut table = bare_table();
    table.set_header(["  ", "avg", "min", "med", "p90", "p95", "p99", "max", "count"]);
    for &trend in Trend::ALL {
        let info = trend.info();
        let key = report_name(info);
        let all = run.metrics.trends.get(&key).map(|summary| (format!("  {}", info.name), summary));
        let parts = run.workloads.iter().filter(|_| run.workloads.len() > 1);
        let parts = parts.filter_map(|(name, metrics)| Some((format!("    {name}"), metrics.trends.get(&key)?)));
        for (label, summary) in all.into_iter().chain(parts) {
            table.add_row(trend_row(label, summary, info.unit));
        }
    }
    align_right(&mut table);
    table
}

fn trend_row(label: String, summary: &TrendReport, unit: Unit) -> Vec<String> {
    let show = |value: f64| match unit {
        Unit::Time => format_ns(value * 1e6),
        Unit::Count | Unit::Ratio => format!("{value:.1}"),
    };
    let values = [summary.mean, summary.min, summary.p50, summary.p90, summary.p95, summary.p99, summary.max].map(show);
    std::iter::once(label).chain(values).chain([summary.count.to_string()]).collect()
}

/// Which guests took part, and how they fared.
fn write_guests(out: &mut dyn Write, guests: &[GuestReport]) -> io::Result<()> {
    if guests.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n  {BOLD}GUESTS{BOLD:#}")?;
    let mut table = bare_table();
    for guest in guests {
        table.add_row([format!("  {}", guest.name), guest.world.to_owned(), format!("sha256 {}", guest.digest)]);
    }
    write_table(out, &table)?;
    for guest in guests.iter().filter(|guest| guest.failures > 0) {
        let reason = guest.first_failure.as_deref().unwrap_or_default();
        writeln!(out, "  {}: {} failed and its fallback went on: {reason}", guest.name, instances(guest.failures))?;
    }
    for guest in guests {
        let dropped: u64 = guest.told.iter().map(|seat| seat.dropped).sum();
        if dropped > 0 {
            writeln!(out, "  {}: {dropped} notes were dropped", guest.name)?;
        }
    }
    Ok(())
}

fn instances(number: u64) -> String {
    if number == 1 { "1 instance".to_owned() } else { format!("{number} instances") }
}

fn write_totals(out: &mut dyn Write, run: &Report) -> io::Result<()> {
    let metrics: &MetricsReport = &run.metrics;
    let count = |name: &str| metrics.counters.get(name).copied().unwrap_or_default();
    let rate = |name: &str| metrics.rates_per_s.get(name).copied().unwrap_or_default();
    write!(out, "  requests: {} arrived, {} completed", count("requests"), count("completed"))?;
    for name in ["rejected", "shed", "failed"] {
        let amount = count(name);
        if amount > 0 {
            write!(out, ", {amount} {name}")?;
        }
    }
    if run.unfinished_requests > 0 {
        write!(out, ", {} unfinished", run.unfinished_requests)?;
    }
    writeln!(out, "; {} retries, {} preemptions", count("retries"), count("preemptions"))?;
    for (reason, amount) in metrics.rejections.iter().chain(&metrics.failures) {
        writeln!(out, "    {amount} because {reason}")?;
    }
    writeln!(
        out,
        "  throughput: {:.2} requests/s, {:.1} output tokens/s, {:.1} prompt tokens/s",
        rate("completed"),
        rate("output_tokens"),
        rate("prompt_tokens"),
    )?;
    let hits = metrics.gauges.get("prefix_hit_ratio").copied().unwrap_or_default();
    writeln!(out, "  prefix cache: {:.2}% of prompt tokens found", hits * 100.0)
}

fn engine_table(run: &Report) -> Table {
    let mut table = bare_table();
    table.set_header(["  engine", "steps", "busy", "tokens", "preempted", "kv peak", "cache hits", "crashes"]);
    for engine in &run.engines {
        table.add_row([
            format!("  {}", run.engine_names[engine.worker as usize]),
            engine.steps.to_string(),
            format!("{:.1}%", engine.utilisation * 100.0),
            engine.computed_tokens.to_string(),
            engine.preemptions.to_string(),
            format!("{:.1}%", engine.kv_peak_usage * 100.0),
            format!("{:.1}%", engine.prefix_hit_ratio * 100.0),
            engine.crashes.to_string(),
        ]);
    }
    align_right(&mut table);
    table
}
