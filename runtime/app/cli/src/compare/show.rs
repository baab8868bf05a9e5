//! Prints a comparison.

use std::fmt;
use std::io::{self, Write};

use comfy_table::Table;
use vcr_base::units::{format_ns, format_usd};
use vcr_cluster::metrics::{Metric, Unit};
use vcr_compare::{Change, Compared, Interval, Statistic};

use super::{Comparison, Pair, Verdict};
use crate::terminal::layout::{Layout, write_wrapped};
use crate::terminal::style::{BOLD, DIM, GREEN, RED, align_right, bare_table, write_table};
use crate::terminal::text::{counted, printable};

/// Statistics in the table: of distributions, and of single values.
const OF_TRENDS: [&str; 4] = ["mean", "p50", "p95", "p99"];
const OF_OTHERS: [&str; 3] = ["count", "rate", "value"];

/// Smaller relative changes are not called better or worse.
const NOTABLE: f64 = 0.01;

/// Columns that are dropped, in this order, if the table is too wide; see docs/reference/compare.md.
const LEFT_OUT: [&str; 4] = ["Wasserstein", "KS", "p50", "mean"];

pub(super) fn write(out: &mut dyn Write, comparison: &Comparison, layout: Layout) -> io::Result<()> {
    write_changes(out, comparison, layout)?;
    if !comparison.limits.is_empty() {
        writeln!(out, "\n  {BOLD}LIMITS{BOLD:#}")?;
    }
    for limit in &comparison.limits {
        let (style, mark) = if limit.holds { (GREEN, "✓") } else { (RED, "✗") };
        writeln!(out, "  {style}{mark}{style:#} {limit}")?;
    }
    Ok(())
}

/// Writes everything except the limits.
pub(super) fn write_changes(out: &mut dyn Write, comparison: &Comparison, layout: Layout) -> io::Result<()> {
    let (reference, compared) = (printable(&comparison.reference), printable(&comparison.compared));
    writeln!(out, "\n  {BOLD}{compared}{BOLD:#} compared with {BOLD}{reference}{BOLD:#}")?;
    for pair in &comparison.pairs {
        write_pair(out, pair, layout)?;
    }
    for (name, runs) in
        [(&comparison.reference, &comparison.only_reference), (&comparison.compared, &comparison.only_compared)]
    {
        if !runs.is_empty() {
            writeln!(out)?;
            let text = format!("only {} has the runs {}", printable(name), printable(&runs.join(", ")));
            write_wrapped(out, "  ", &text, layout.width)?;
        }
    }
    Ok(())
}

/// Converts a share to percent, without binary rounding digits.
pub(super) fn percent(share: f64) -> f64 {
    (share * 1e6).round() / 1e4
}

impl Verdict {
    /// The relative change as text.
    pub(super) fn change(&self) -> String {
        match self.regression {
            worse if worse.is_infinite() => "worse than 0".to_owned(),
            worse if worse > 0.0 => format!("{:.2} % worse", worse * 100.0),
            0.0 => "unchanged".to_owned(),
            better => format!("{:.2} % better", -better * 100.0),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(run) = &self.run {
            write!(f, "{}  ", printable(run))?;
        }
        let (change, limit) = (self.change(), percent(self.limit));
        write!(f, "{}.{}  {change}, at most {limit} % allowed", self.metric, self.statistic)
    }
}

fn write_pair(out: &mut dyn Write, pair: &Pair, layout: Layout) -> io::Result<()> {
    let run =
        |run: &Option<String>| run.as_deref().map_or_else(|| "capture".to_owned(), |name| printable(name).into_owned());
    let (reference, compared) = (run(&pair.reference_run), run(&pair.compared_run));
    let title = if reference == compared { compared } else { format!("{compared} compared with {reference}") };
    writeln!(out, "\n  {BOLD}{title}{BOLD:#}")?;
    let mut table = bare_table();
    table.set_header(["  metric", "", "reference", "compared", "change", ""]);
    for metric in Metric::all() {
        let info = metric.info();
        let of_metric = pair.changes.iter().filter(|change| change.metric == info.name);
        let listed: &[&str] = if metric.is_trend() { &OF_TRENDS } else { &OF_OTHERS };
        for change in of_metric.filter(|change| listed.contains(&change.statistic.as_str())) {
            if change.reference != 0.0 || change.compared != 0.0 {
                table.add_row(row(metric, change));
            }
        }
    }
    align_right(&mut table);
    write_table(out, &table)?;
    match (&pair.requests, &pair.requests_problem) {
        (Some(requests), _) => write_requests(out, requests, layout),
        (None, Some(problem)) => writeln!(out, "  {DIM}requests were not compared: {}{DIM:#}", printable(problem)),
        (None, None) => writeln!(out, "  {DIM}requests were not compared: one side has no requests.jsonl{DIM:#}"),
    }
}

fn row(metric: Metric, change: &Change) -> Vec<String> {
    let value = |value: f64| match (change.statistic.as_str(), metric.info().unit) {
        ("count", _) => format!("{value}"),
        ("rate", _) => format!("{value:.2}/s"),
        (_, Unit::Time) => format_ns(value * 1e6),
        (_, Unit::Ratio) => format!("{:.2} %", value * 100.0),
        (_, Unit::Count) => format!("{value:.2}"),
        (_, Unit::Usd) => format_usd(value),
    };
    let text = match change.relative() {
        0.0 => "=".to_owned(),
        relative if relative.is_infinite() => "from 0".to_owned(),
        relative => format!("{} %", signed(relative * 100.0, 2)),
    };
    let worse = metric.is_higher_better().map(|higher| change.regression(higher));
    let verdict = match worse {
        Some(worse) if worse > NOTABLE => "worse",
        Some(worse) if worse < -NOTABLE => "better",
        _ => "",
    };
    let (name, statistic) = (format!("  {}", change.metric), change.statistic.clone());
    vec![name, statistic, value(change.reference), value(change.compared), text, verdict.to_owned()]
}

fn write_requests(out: &mut dyn Write, compared: &Compared, layout: Layout) -> io::Result<()> {
    let matched = format!(
        "{} matched by {}, {} answered whole on both sides{}",
        counted(compared.matched, "request"),
        compared.rule.text(),
        compared.whole,
        match compared.other_lengths {
            0 => String::new(),
            count => format!(", {count} of them with other lengths"),
        }
    );
    writeln!(out)?;
    write_wrapped(out, "  ", &matched, layout.width)?;
    for (count, side) in [(compared.only_reference, &compared.reference), (compared.only_compared, &compared.compared)]
    {
        if count > 0 {
            let are = if count == 1 { "is" } else { "are" };
            writeln!(out, "  {} {are} only in {}", counted(count, "request"), printable(side))?;
        }
    }
    let mut table: Table = bare_table();
    table.set_header(["  change (95 %)", "mean", "p50", "p99", "KS", "Wasserstein"]);
    for metric in &compared.metrics {
        let of = |statistic: Statistic| {
            let found = metric.statistics.iter().find(|each| each.statistic == statistic);
            found.map_or_else(String::new, |each| {
                format!("{} %{}", signed(each.error * 100.0, 1), percents(each.error_interval))
            })
        };
        let ks = metric.ks_interval.map_or_else(String::new, |ks| format!(" ({:.2} to {:.2})", ks.low, ks.high));
        let wasserstein = metric.wasserstein_interval_ms.map_or_else(String::new, |range| {
            format!(" ({} to {})", format_ns(range.low * 1e6), format_ns(range.high * 1e6))
        });
        table.add_row([
            format!("  {}", metric.metric.name_in_runs()),
            of(Statistic::Mean),
            of(Statistic::P50),
            of(Statistic::P99),
            format!("{:.3}{ks}", metric.ks),
            format!("{}{wasserstein}", format_ns(metric.wasserstein_ms * 1e6)),
        ]);
    }
    align_right(&mut table);
    let is_narrowed = layout.fit(&mut table, &LEFT_OUT);
    write_table(out, &table)?;
    match is_narrowed {
        true => writeln!(out, "  {DIM}--full also shows columns that do not fit{DIM:#}"),
        false => Ok(()),
    }
}

fn percents(interval: Option<Interval>) -> String {
    let percent = |share: f64| signed(share * 100.0, 1);
    interval.map_or_else(String::new, |range| format!(" ({} to {})", percent(range.low), percent(range.high)))
}

/// A change with its sign, or without one if it rounds to 0.
fn signed(value: f64, digits: usize) -> String {
    let text = format!("{value:+.digits$}");
    let is_zero = text.chars().skip(1).all(|digit| "0.".contains(digit));
    if is_zero { text[1..].to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::signed;

    #[test]
    fn a_change_that_rounds_to_0_has_no_sign() {
        let texts = [-0.001, 0.0, 0.004, -0.006, 12.345].map(|percent| signed(percent, 2));
        assert_eq!(texts, ["0.00", "0.00", "0.00", "-0.01", "+12.35"].map(str::to_owned));
        assert_eq!((signed(-0.04, 1), signed(100.0, 1)), ("0.0".to_owned(), "+100.0".to_owned()));
    }
}
