//! The summary of a scenario repeated with several seeds.

use std::io::{self, Write};

use vcr_base::units::format_ns;
use vcr_report::Limit;

use crate::run::grid::{AssertionKey, Cell, Kept, Row};
use crate::run::page::unit_of;
use crate::run::statistics::Mean;
use crate::terminal::layout::Layout;
use crate::terminal::style::{BOLD, GREEN, RED, align_right, bare_table, write_marked, write_table};
use crate::terminal::text::printable;

/// Metrics in the summary; tables of sweeps have all metrics.
const SHOWN: [&str; 10] = [
    "ttft_ms_mean",
    "ttft_ms_p50",
    "ttft_ms_p99",
    "itl_ms_mean",
    "itl_ms_p99",
    "e2e_ms_mean",
    "e2e_ms_p99",
    "completed_per_s",
    "output_tokens_per_s",
    "preemptions",
];

/// Largest number of seeds listed for a broken assertion.
const MAX_SEEDS: usize = 8;

/// Writes the share of seeds that keep each assertion, then metrics with confidence intervals.
pub(crate) fn write(out: &mut dyn Write, cell: &Cell, quiet: bool) -> io::Result<()> {
    let made: Vec<(AssertionKey, Kept)> =
        cell.assertions().into_iter().map(|key| (key.clone(), cell.kept_of(&key))).collect();
    let shown: Vec<&(AssertionKey, Kept)> =
        made.iter().filter(|(_, kept)| !quiet || !kept.broken_in.is_empty()).collect();
    if !shown.is_empty() {
        writeln!(out, "\n  {BOLD}ASSERTIONS{BOLD:#}")?;
        write_assertions(out, cell, &shown)?;
    }
    if !quiet {
        for row in cell.rows() {
            write_metrics(out, &row)?;
        }
    }
    let (kept, of) = (cell.kept(), cell.repetitions.len());
    let style = if kept == of { GREEN } else { RED };
    writeln!(out, "\n  {style}{kept} of {of} seeds keep all assertions{style:#}")
}

fn write_assertions(out: &mut dyn Write, cell: &Cell, made: &[&(AssertionKey, Kept)]) -> io::Result<()> {
    let mut table = bare_table();
    for (key, kept) in made {
        let share = 100.0 * kept.kept as f64 / kept.of as f64;
        let seeds = broken_seeds(cell, kept);
        let condition = key.condition.as_deref().unwrap_or_default();
        let unit = Limit::of(&key.subject, condition).map_or("", |limit| unit_of(&limit, condition));
        let observed = Mean::of(&kept.observed).map(|known| show(known, unit)).unwrap_or_default();
        let cells = [
            key.run.clone().unwrap_or_default(),
            key.subject.clone(),
            key.condition.clone().unwrap_or_default(),
            format!("kept by {} of {} seeds ({share:.0} %){seeds}", kept.kept, kept.of),
            observed,
        ];
        table.add_row(cells.map(|text| printable(&text).into_owned()));
    }
    write_marked(out, &table, Layout::of_stdout(false).width, made.iter().map(|(_, kept)| kept.broken_in.is_empty()))
}

/// The seeds that break an assertion, for `--seed`.
fn broken_seeds(cell: &Cell, kept: &Kept) -> String {
    let seed = |index: &usize| cell.repetitions[*index].runs.first().map(|run| run.seed.to_string());
    let seeds: Vec<String> = kept.broken_in.iter().take(MAX_SEEDS).filter_map(seed).collect();
    match kept.broken_in.len() {
        0 => String::new(),
        more if more > MAX_SEEDS => format!(", not by {} and {} more", seeds.join(", "), more - MAX_SEEDS),
        _ => format!(", not by {}", seeds.join(", ")),
    }
}

fn write_metrics(out: &mut dyn Write, row: &Row<'_>) -> io::Result<()> {
    writeln!(out, "\n  {BOLD}RUN {}{BOLD:#}  mean over seeds, and its 95 % confidence interval", printable(row.run))?;
    let mut table = bare_table();
    for metric in SHOWN {
        let Some(known) = row.mean(metric) else { continue };
        // As in other tables, the unit follows the value, not the name.
        let (name, unit) = match metric.split_once("_ms_") {
            Some((name, statistic)) => (format!("{name} {statistic}"), "ms"),
            None if metric.ends_with("_per_s") => (metric.trim_end_matches("_per_s").replace('_', " "), "/s"),
            None => (metric.to_owned(), ""),
        };
        let end = |index: usize| known.interval.map(|ends| value_of(ends[index], unit)).unwrap_or_default();
        table.add_row([format!("  {name}"), value_of(known.mean, unit), end(0), end(1)]);
    }
    align_right(&mut table);
    write_table(out, &table)
}

fn show(known: Mean, unit: &str) -> String {
    let mean = value_of(known.mean, unit);
    match known.interval {
        Some([low, high]) => format!("mean {mean} ({} to {})", value_of(low, unit), value_of(high, unit)),
        None => format!("mean {mean}"),
    }
}

fn value_of(value: f64, unit: &str) -> String {
    match unit {
        "ms" => format_ns(value * 1e6),
        "share" => format!("{:.2} %", value * 100.0),
        unit => format!("{value:.3}{unit}"),
    }
}
