//! Prints the verdict of a scenario, its assertions with headroom, and how its times were priced.

use std::io::{self, Write};

use vcr_cluster::Report;
use vcr_report::{Limit, Run, cut_text, headroom_text};
use vcr_scenario::{AssertionResult, Outcome};

use crate::terminal::layout::write_wrapped;
use crate::terminal::style::{GREEN, RED, YELLOW, bare_table, write_marked};
use crate::terminal::text::printable;

/// Writes failed assertions and the verdict, unless the scenario passed.
pub(crate) fn write_broken(out: &mut dyn Write, outcome: &Outcome, width: usize) -> io::Result<()> {
    if outcome.passed {
        return Ok(());
    }
    write_checks(out, outcome.assertions.iter().filter(|check| !check.passed), width)?;
    write_verdict(out, outcome)
}

pub(super) fn write_verdict(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    let broken = outcome.assertions.iter().filter(|check| !check.passed).count();
    let all = outcome.assertions.len();
    if let Some(partial) = &outcome.partial {
        let reached = match all {
            0 => "no assertion was reached".to_owned(),
            _ => format!("{} of {all} assertions passed", all - broken),
        };
        return writeln!(out, "  {RED}stopped early by {}: {reached}{RED:#}", partial.stopped_by);
    }
    let cut = cut_text(outcome.runs.iter().filter(|run| run.partial).count(), outcome.runs.len());
    match (broken, all) {
        (0, 0) => writeln!(out, "  no assertions{cut}"),
        (0, _) if !cut.is_empty() => writeln!(out, "  {YELLOW}{all} of {all} assertions passed{cut}{YELLOW:#}"),
        (0, _) => writeln!(out, "  {GREEN}{all} of {all} assertions passed{GREEN:#}"),
        _ => writeln!(out, "  {RED}{broken} of {all} assertions failed{cut}{RED:#}"),
    }
}

/// Writes each assertion with its limit, observed value and headroom.
pub(super) fn write_checks<'a>(
    out: &mut dyn Write,
    checks: impl Iterator<Item = &'a AssertionResult>,
    width: usize,
) -> io::Result<()> {
    let mut table = bare_table();
    let mut passed = Vec::new();
    for check in checks {
        passed.push(check.passed);
        let observed = match (&check.observed_text, &check.condition) {
            (Some(text), _) => text.as_str(),
            (None, Some(_)) => "no samples",
            (None, None) => "",
        };
        let run = check.run.as_deref().unwrap_or_default();
        let condition = check.condition.as_deref().unwrap_or_default();
        let cells = [run, &check.subject, condition, observed, &headroom_of(check)];
        table.add_row(cells.map(printable));
    }
    write_marked(out, &table, width, passed.into_iter())
}

/// The fraction of the limit that is left, or by which the value exceeds it.
fn headroom_of(check: &AssertionResult) -> String {
    let observed = check.condition.as_deref().zip(check.observed);
    let headroom = observed.and_then(|(condition, value)| vcr_report::headroom_of(&check.subject, condition, value));
    headroom.map(headroom_text).unwrap_or_default()
}

pub(super) fn limit_of(check: &AssertionResult) -> Option<Limit> {
    Limit::of(&check.subject, check.condition.as_deref()?)
}

/// Writes how the times of a run were priced and how reliable they are, then its GPUs and cost. `source` is the source
/// of times outside scenarios.
pub(super) fn write_pricing(out: &mut dyn Write, run: &Report, source: Option<&str>, width: usize) -> io::Result<()> {
    // Converted through JSON, because the page gets the same texts from report.json.
    let run: Run = serde_json::from_value(serde_json::to_value(run)?)?;
    let (pricing, _) = source.map_or_else(|| run.pricing(), |source| run.pricing_by(source));
    write_wrapped(out, "  ", &format!("times: {}", printable(&pricing)), width)?;
    run.gpus_and_cost().iter().try_for_each(|text| write_wrapped(out, "  ", &printable(text), width))
}
