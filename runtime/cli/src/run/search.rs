//! `vcr run --search`: the highest or lowest value of a parameter that keeps all assertions.

use std::io::{self, Write};

use vcr_scenario::search::{Bisection, ProbeReport, SearchRange, SearchReport};
use vcr_scenario::{AssertionResult, RunOptions};

use crate::args::RunArgs;
use crate::exit::{Exit, printed, tell};
use crate::refusal::Refusal;
use crate::run::measured::Measured;
use crate::run::points::{Point, Points};
use crate::run::searches::sentence;
use crate::stop;
use crate::style::{BOLD, GREEN, RED, bare_table, write_marked};
use crate::text::printable;

/// The parameter and its values.
#[derive(Debug, PartialEq)]
struct Asked {
    name: String,
    range: SearchRange,
    /// What stands behind each number, such as `/s`.
    unit: String,
}

impl Asked {
    fn text(&self, index: u64) -> String {
        format!("{}{}", self.range.value(index), self.unit)
    }
}

pub(crate) fn search(args: &RunArgs, options: RunOptions, text: &str) -> Result<Exit, Refusal> {
    let asked =
        asked(text, args.questions.tolerance).map_err(|why| Refusal::input(format!("--search {text}: {why}")))?;
    let goal = args.questions.until.goal();
    let points = Points::new(&args.file, options, &[&asked.name], args.quiet)?;
    let mut search = Bisection::new(goal, asked.range);
    let mut report = SearchReport::new(asked.name.clone(), goal, asked.range);
    // Both ends at once, for all cores; from then on each value depends on the one before.
    let mut next = search.both_ends().to_vec();
    while !next.is_empty() {
        let Some(tried) = try_values(&points, &asked, &next, args.questions.repeat.unwrap_or(1))? else { break };
        for (index, measured) in next.iter().zip(tried) {
            let probe = probe(asked.range.value(*index), &measured)?;
            report.runs += measured.iter().map(|one| one.runs.len() as u64).sum::<u64>();
            search.note(*index, probe.passed);
            report.probes.push(probe);
        }
        next = search.next().into_iter().collect();
    }
    report.bracket = search.bracket();
    let stopped = stop::cause().filter(|_| search.next().is_some());
    let written = print(args, &asked, &report);
    if let Some(cause) = stopped {
        tell(format_args!("stopped by {}: the search came no further", cause.name()));
        return Ok(printed(written, cause.exit()));
    }
    Ok(printed(written, if report.bracket.kept.is_some() { Exit::Passed } else { Exit::CheckFailed }))
}

/// `NAME=FROM..TO`; both numbers may have the same unit.
fn asked(text: &str, tolerance: Option<f64>) -> Result<Asked, String> {
    let form = || "expected NAME=FROM..TO, such as rate=1..64".to_owned();
    let (name, range) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(form)?;
    let (from, to) = range.split_once("..").ok_or_else(form)?;
    let ((from, unit), (to, other_unit)) = (number_and_unit(from), number_and_unit(to));
    if unit != other_unit {
        return Err(format!("both ends must have the same unit, but one has `{unit}` and the other `{other_unit}`"));
    }
    let fraction = |text: &str| text.parse::<f64>().map_err(|_| format!("invalid number `{text}`"));
    let range = match (from.parse::<i64>(), to.parse::<i64>()) {
        (Ok(from), Ok(to)) if tolerance.is_none_or(|step| step.fract() == 0.0) => {
            SearchRange::whole(from, to, tolerance)?
        }
        _ => SearchRange::fractions(fraction(from)?, fraction(to)?, tolerance)?,
    };
    Ok(Asked { name: name.to_owned(), range, unit: unit.to_owned() })
}

fn number_and_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !(c.is_ascii_digit() || "+-.".contains(c))).unwrap_or(text.len());
    text.split_at(end)
}

/// The executions with each value, one for each seed; none if they were stopped.
fn try_values(
    points: &Points,
    asked: &Asked,
    indices: &[u64],
    repetitions: u64,
) -> Result<Option<Vec<Vec<Measured>>>, Refusal> {
    let point = |index: u64, repetition| Point {
        label: format!("{}={}", asked.name, asked.text(index)),
        parameters: vec![(asked.name.clone(), asked.text(index))],
        repetition,
    };
    let all: Vec<Point> =
        indices.iter().flat_map(|index| (0..repetitions).map(move |repetition| point(*index, repetition))).collect();
    let mut measured = points.execute(&all)?.into_iter();
    let values = indices.iter().map(|_| measured.by_ref().take(repetitions as usize).collect::<Option<Vec<_>>>());
    Ok(values.collect())
}

/// What the executions with one value say: all of them must keep all assertions.
fn probe(value: f64, measured: &[Measured]) -> Result<ProbeReport, Refusal> {
    if measured.iter().all(|one| one.assertions.is_empty()) {
        return Err(Refusal::input("a search needs assertions, and the scenario makes none")
            .hint("say what must hold: expect(result, \"ttft\", \"p99 < 1s\")"));
    }
    let mut failed: Vec<String> = Vec::new();
    for assertion in measured.iter().flat_map(|one| &one.assertions).filter(|made| !made.passed) {
        let text = AssertionResult::text(assertion);
        if !failed.contains(&text) {
            failed.push(text);
        }
    }
    Ok(ProbeReport { value, passed: failed.is_empty(), failed, runs: Vec::new() })
}

fn print(args: &RunArgs, asked: &Asked, report: &SearchReport) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, report)?;
        return writeln!(out);
    }
    if !args.quiet {
        writeln!(out, "\n  {BOLD}{}{BOLD:#}", printable(&args.file.display().to_string()))?;
        let mut table = bare_table();
        for probe in &report.probes {
            let value = format!("{}={}{}", asked.name, probe.value, asked.unit);
            table.add_row([printable(&value), printable(&probe.failed.join("; "))]);
        }
        write_marked(&mut out, &table, report.probes.iter().map(|probe| probe.passed))?;
        writeln!(out)?;
    }
    let style = if report.bracket.kept.is_some() { GREEN } else { RED };
    writeln!(out, "  {style}{}{style:#}", sentence(report, &asked.unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_or_fractional_and_may_have_a_unit() {
        let of = |text: &str, tolerance| asked(text, tolerance);
        let whole = of("rate=1..64", None).expect("valid");
        assert_eq!((whole.text(0), whole.text(63), whole.range.is_whole()), ("1".to_owned(), "64".to_owned(), true));
        let fractions = of("rate=1..64", Some(0.25)).expect("valid");
        assert_eq!((fractions.text(1), fractions.range.is_whole()), ("1.25".to_owned(), false));
        assert_eq!(of("rate=0.5/s..2/s", None).expect("valid").text(1), "0.51/s");
        assert!(of("rate=1/s..2", None).expect_err("units").contains("the same unit"));
        assert!(of("rate=1..x", None).is_err() && of("=1..2", None).is_err() && of("rate=1", None).is_err());
        assert!(of("rate=4..1", None).expect_err("empty").contains("a start below the end"));
    }
}
