//! `vcr run --search`: finds the highest or lowest value of a parameter that keeps all assertions. With `--sweep`,
//! searches once for each combination of other parameters.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use vcr_base::output::{OutputFile, Outputs};
use vcr_scenario::search::{Bisection, ProbeReport, SearchRange, SearchReport};
use vcr_scenario::{AssertionResult, RunOptions};
use vcr_trace::import::table::{Cells, Column, TableFormat, write as write_columns};

use crate::args::RunArgs;
use crate::exit::{Exit, eprint_line, printed};
use crate::refusal::Refusal;
use crate::run::args::QuestionArgs;
use crate::run::measured::Measured;
use crate::run::page::{self, Answer, Tried};
use crate::run::points::{Point, Points, settings};
use crate::run::searches::sentence;
use crate::stop;
use crate::sweep::kept::KeptPoints;
use crate::sweep::part::{self, Header, SweepKind};
use crate::sweep::shard::Shard;
use crate::sweep::{Axis, axes, combinations, label, sweep_out_format, value_cells};
use crate::terminal::layout::{Layout, write_wrapped};
use crate::terminal::style::{BOLD, GREEN, RED, bare_table, write_marked};
use crate::terminal::text::printable;
use crate::terminal::write_at_once;

/// The searched parameter and its range.
#[derive(Debug, PartialEq)]
pub(crate) struct SearchSpec {
    pub(crate) name: String,
    range: SearchRange,
    /// Unit after each number, such as `/s`.
    unit: String,
}

impl SearchSpec {
    /// Parses `--search`, and checks it against the sweep of other parameters.
    pub(crate) fn of(questions: &QuestionArgs, text: &str, axes: &[Axis]) -> Result<Self, Refusal> {
        let asked =
            parse(text, questions.tolerance).map_err(|why| Refusal::input(format!("--search {text}: {why}")))?;
        if axes.iter().any(|axis| axis.name == asked.name) {
            return Err(Refusal::input(format!("--sweep {}: the parameter is searched; sweep another", asked.name)));
        }
        Ok(asked)
    }

    /// The first value of the range.
    pub(crate) fn first(&self) -> String {
        self.text(0)
    }

    fn text(&self, index: u64) -> String {
        format!("{}{}", self.range.value(index), self.unit)
    }
}

/// Executes points; a stopped point has no result.
pub(crate) type Execute<'a> = dyn Fn(&[Point]) -> Result<Vec<Option<Measured>>, Refusal> + 'a;

/// A search and its combination of swept values.
struct Found {
    /// Number of the combination in the whole grid.
    point: usize,
    swept: Vec<String>,
    searched: Searched,
}

/// The course and result of a search.
pub(crate) struct Searched {
    report: SearchReport,
    /// The reason why all tried values are infeasible, if so.
    infeasible: Option<String>,
    /// The error of `infeasible` with its place in the script.
    pub(crate) refusal: Option<Refusal>,
    /// Whether the search was completed.
    pub(crate) has_ended: bool,
    tried: Vec<Tried>,
}

/// The result of a search for a table.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FoundRow {
    kept: Option<f64>,
    broken: Option<f64>,
    values_tried: u64,
    runs: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    infeasible: Option<String>,
}

impl FoundRow {
    pub(crate) fn of(searched: &Searched) -> Self {
        let SearchReport { bracket, probes, runs, .. } = &searched.report;
        Self {
            kept: bracket.kept,
            broken: bracket.broken,
            values_tried: probes.len() as u64,
            runs: *runs,
            infeasible: searched.infeasible.clone(),
        }
    }

    /// Whether the search has an answer: a value, or that all values are infeasible.
    fn is_answered(&self) -> bool {
        self.kept.is_some() || self.infeasible.is_some()
    }
}

/// The exit code for these searches.
fn answered<'a>(mut rows: impl Iterator<Item = &'a FoundRow>) -> Exit {
    if rows.all(FoundRow::is_answered) { Exit::Passed } else { Exit::CheckFailed }
}

/// The exit code for these searches, or an error if all are infeasible.
fn ended<'a>(
    rows: impl IntoIterator<Item = &'a FoundRow, IntoIter: Clone>,
    refusal: impl FnOnce() -> Option<Refusal>,
) -> Result<Exit, Refusal> {
    let rows = rows.into_iter();
    let mut reasons = rows.clone().map(|row| row.infeasible.as_ref());
    match reasons.next() {
        Some(Some(why)) if reasons.all(|why| why.is_some()) => {
            Err(refusal().unwrap_or_else(|| Refusal::input(why.clone())))
        }
        _ => Ok(answered(rows)),
    }
}

/// Makes one search, or with `--sweep` one for each combination.
pub(crate) fn search(args: &RunArgs, options: RunOptions, text: &str) -> Result<Exit, Refusal> {
    let questions = &args.questions;
    let axes = axes(&questions.sweeps).map_err(Refusal::input)?;
    let asked = SearchSpec::of(questions, text, &axes)?;
    let format = sweep_out_format(questions.sweep_out.as_deref())?;
    let combinations = combinations(&axes).map_err(Refusal::input)?;
    let mut outputs = Outputs::new(args.force);
    outputs.reads(&args.file)?;
    let file = questions.shard.path(questions.sweep_out.as_deref()).map(|path| outputs.create(&path)).transpose()?;
    let folder = args.out.as_deref().map(|path| outputs.folder(path, &[page::PAGE])).transpose()?;
    let names = names_of(&asked, &axes);
    let settings = settings(args, &options);
    let points = Points::new(&args.file, None, options, &names, args.quiet)?;
    if let Some(part) = questions.cluster.execute(&args.words)? {
        let (points, rows): (Vec<_>, Vec<_>) = part.results::<FoundRow>().map_err(Refusal::input)?.into_iter().unzip();
        let exit = ended(&rows, || None)?;
        let rows: Vec<_> = points.into_iter().map(|point| combinations[point].clone()).zip(&rows).collect();
        let columns = columns(&axes, &rows);
        if let (Some(file), Some(format)) = (file, format) {
            file.write_with(|out| write_columns(out, &columns, format))?;
        }
        let written = print_columns(args, &columns);
        return Ok(printed(written, exit));
    }
    let shard = questions.shard.shard;
    let header = Header::new(SweepKind::Search, &axes, combinations.len(), shard.unwrap_or(Shard::WHOLE), &settings);
    let out = questions.shard.path(questions.sweep_out.as_deref());
    let kept = KeptPoints::open(out.as_deref(), &header, &points.files_read(), args.force)?;
    let grid = (&axes[..], &combinations[..]);
    let mut all = match search_all(args, &asked, grid, &points, kept.as_ref()) {
        Ok(all) => all,
        Err(refusal) => {
            KeptPoints::leave(kept);
            return Err(refusal);
        }
    };
    // Points of other shards may be feasible.
    let exit = match shard.is_some() || all.was_stopped {
        true => Ok(answered(all.rows.values())),
        false => ended(all.rows.values(), || all.found.first_mut().and_then(|one| one.searched.refusal.take())),
    };
    // After a stop no table is written: the same command continues stored searches, but refuses an existing table.
    let is_left = all.was_stopped && kept.is_some();
    if exit.is_ok()
        && !is_left
        && let (Some(file), Some(format)) = (file, format)
        && let Err(refusal) = write_rows(file, format, header, grid, &points, &all, kept.as_ref(), shard)
    {
        KeptPoints::leave(kept);
        return Err(refusal);
    }
    match is_left {
        true => KeptPoints::leave(kept),
        false => KeptPoints::remove(kept),
    }
    let exit = exit?;
    if let Some(folder) = folder {
        let answers = all.found.iter().map(|Found { swept, searched, .. }| Answer {
            label: label(&axes, swept),
            swept,
            report: &searched.report,
            tried: &searched.tried,
        });
        page::write_search(folder, args, &asked.unit, &names_of(&asked, &axes), &answers.collect::<Vec<_>>())?;
    }
    let written = match all.rows.len() == all.found.len() {
        true => print(args, &asked, &axes, &all.found),
        // Values tried by an earlier process are unknown.
        false => print_columns(args, &columns(&axes, &all.of_points(&combinations))),
    };
    if let Some(cause) = stop::cause().filter(|_| all.was_stopped) {
        eprint_line(format_args!("stopped by {}: the search came no further", cause.name()));
        return Ok(printed(written, cause.exit()));
    }
    Ok(printed(written, exit))
}

/// Names of the searched parameter and the swept parameters.
fn names_of<'a>(asked: &'a SearchSpec, axes: &'a [Axis]) -> Vec<&'a str> {
    std::iter::once(&asked.name).chain(axes.iter().map(|axis| &axis.name)).map(String::as_str).collect()
}

/// The searches of a sweep.
struct Searches {
    /// Searches made by this process.
    found: Vec<Found>,
    /// All rows, by point number.
    rows: BTreeMap<usize, FoundRow>,
    was_stopped: bool,
}

impl Searches {
    /// The rows with the values of their points.
    fn of_points(&self, combinations: &[Vec<String>]) -> Vec<(Vec<String>, &FoundRow)> {
        self.rows.iter().map(|(point, row)| (combinations[*point].clone(), row)).collect()
    }
}

/// Makes the searches that no earlier process has made.
fn search_all(
    args: &RunArgs,
    asked: &SearchSpec,
    (axes, combinations): (&[Axis], &[Vec<String>]),
    points: &Points,
    kept: Option<&KeptPoints>,
) -> Result<Searches, Refusal> {
    let questions = &args.questions;
    let chosen = questions.shard.points(combinations.len());
    let rows = kept.map(KeptPoints::earlier).transpose()?.unwrap_or_default();
    if let Some(kept) = kept {
        kept.tell(chosen.len(), args.quiet);
    }
    let mut all = Searches { found: Vec::new(), rows, was_stopped: false };
    for point in chosen {
        if all.rows.contains_key(&point) {
            continue;
        }
        let swept = combinations[point].clone();
        let searched = search_once(
            questions,
            asked,
            (axes, &swept),
            &|all| points.execute(all, &|_, _| {}),
            points.is_in_real_time(),
        )?;
        let row = FoundRow::of(&searched);
        all.was_stopped = !searched.has_ended;
        if let Some(kept) = kept.filter(|_| searched.has_ended) {
            kept.add(point, &row, &points.files_read());
        }
        all.rows.insert(point, row);
        all.found.push(Found { point, swept, searched });
        if all.was_stopped {
            break;
        }
    }
    Ok(all)
}

/// Writes the table of all searches, or the file of a shard.
#[allow(clippy::too_many_arguments, reason = "all of it is the state of one command")]
fn write_rows(
    file: OutputFile,
    format: TableFormat,
    mut header: Header,
    (axes, combinations): (&[Axis], &[Vec<String>]),
    points: &Points,
    all: &Searches,
    kept: Option<&KeptPoints>,
    shard: Option<Shard>,
) -> Result<(), Refusal> {
    if shard.is_none() {
        let columns = columns(axes, &all.of_points(combinations));
        return Ok(file.write_with(|out| write_columns(out, &columns, format))?);
    }
    header.inputs = kept.map(KeptPoints::inputs).unwrap_or_default();
    // A search that a signal interrupted is not complete.
    let cut = all.found.last().filter(|_| all.was_stopped).map(|one| one.point);
    let whole = all.rows.iter().filter(|(point, _)| Some(**point) != cut);
    part::write_file(file, header, &points.files_read(), whole.map(|(point, row)| (*point, row)))
}

/// Searches with one combination of swept values.
pub(crate) fn search_once(
    questions: &QuestionArgs,
    asked: &SearchSpec,
    swept: (&[Axis], &[String]),
    execute: &Execute<'_>,
    climbs: bool,
) -> Result<Searched, Refusal> {
    let goal = questions.until.goal();
    let mut search = if climbs { Bisection::climbing(goal, asked.range) } else { Bisection::new(goal, asked.range) };
    let mut report = SearchReport::new(asked.name.clone(), goal, asked.range);
    // Both ends are tried concurrently; each later value depends on the result before.
    let mut next = search.begin();
    let (mut has_ended, mut tried_all): (_, Vec<Tried>) = (true, Vec::new());
    while !next.is_empty() {
        let repetitions = questions.repeat.unwrap_or(1);
        let Some(tried) = try_values(execute, asked, swept, &next, repetitions)? else {
            has_ended = false;
            break;
        };
        for (index, measured) in next.iter().zip(tried) {
            let probe = probe(asked.range.value(*index), &measured)?;
            report.runs += measured.iter().map(|one| one.runs.len() as u64).sum::<u64>();
            search.note(*index, probe.passed);
            report.probes.push(probe);
            tried_all.extend((0..).zip(measured).map(|(repetition, one)| (asked.text(*index), repetition, one)));
        }
        next = search.next().into_iter().collect();
    }
    report.bracket = search.bracket();
    let refusal = Measured::whole_refusal(tried_all.iter_mut().map(|(.., one)| one));
    let infeasible = refusal.as_ref().and_then(|_| tried_all.first()?.2.infeasible.clone());
    Ok(Searched { report, infeasible, refusal, has_ended, tried: tried_all })
}

/// The table: a row for each search, with its values and result.
pub(crate) fn columns(axes: &[Axis], rows: &[(Vec<String>, &FoundRow)]) -> Vec<Column> {
    let swept = axes.iter().enumerate().map(|(index, axis)| {
        let values: Vec<&String> = rows.iter().map(|(values, _)| &values[index]).collect();
        Column { name: axis.name.clone(), cells: value_cells(&values) }
    });
    let numbers = |name: &str, of: fn(&FoundRow) -> Option<f64>| Column {
        name: name.to_owned(),
        cells: Cells::Numbers(rows.iter().map(|(_, row)| of(row)).collect()),
    };
    let counts = |name: &str, of: fn(&FoundRow) -> u64| Column {
        name: name.to_owned(),
        cells: Cells::Counts(rows.iter().map(|(_, row)| of(row)).collect()),
    };
    let of_search = [
        numbers("kept", |row| row.kept),
        numbers("broken", |row| row.broken),
        counts("values_tried", |row| row.values_tried),
        counts("runs", |row| row.runs),
    ];
    let infeasible = rows.iter().any(|(_, row)| row.infeasible.is_some()).then(|| Column {
        name: "infeasible".to_owned(),
        cells: Cells::Texts(rows.iter().map(|(_, row)| row.infeasible.clone().unwrap_or_default()).collect()),
    });
    swept.chain(of_search).chain(infeasible).collect()
}

/// Parses `NAME=FROM..TO`; both numbers may have the same unit.
fn parse(text: &str, tolerance: Option<f64>) -> Result<SearchSpec, String> {
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
    Ok(SearchSpec { name: name.to_owned(), range, unit: unit.to_owned() })
}

fn number_and_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !(c.is_ascii_digit() || "+-.".contains(c))).unwrap_or(text.len());
    text.split_at(end)
}

/// Executes each value with every seed; none if stopped.
fn try_values(
    execute: &Execute<'_>,
    asked: &SearchSpec,
    (axes, swept): (&[Axis], &[String]),
    indices: &[u64],
    repetitions: u64,
) -> Result<Option<Vec<Vec<Measured>>>, Refusal> {
    let point = |index: u64, repetition| Point {
        label: format!("{}={} {}", asked.name, asked.text(index), label(axes, swept)).trim_end().to_owned(),
        parameters: std::iter::once((asked.name.clone(), asked.text(index)))
            .chain(axes.iter().map(|axis| axis.name.clone()).zip(swept.iter().cloned()))
            .collect(),
        repetition,
    };
    let all: Vec<Point> =
        indices.iter().flat_map(|index| (0..repetitions).map(move |repetition| point(*index, repetition))).collect();
    let mut measured = execute(&all)?.into_iter();
    let values = indices.iter().map(|_| measured.by_ref().take(repetitions as usize).collect::<Option<Vec<_>>>());
    Ok(values.collect())
}

/// The result of a value: all assertions must hold in all its executions.
fn probe(value: f64, measured: &[Measured]) -> Result<ProbeReport, Refusal> {
    if let Some(why) = measured.iter().find_map(|one| one.infeasible.as_ref()) {
        return Ok(ProbeReport { value, passed: false, failed: vec![format!("infeasible: {why}")], runs: Vec::new() });
    }
    if measured.iter().all(|one| one.assertions.is_empty()) {
        return Err(Refusal::input("a search needs assertions, and the scenario makes none")
            .hint("state the condition: expect(result, \"ttft\", \"p99 < 1s\")"));
    }
    let mut failed: Vec<String> = Vec::new();
    let of_each = measured.iter().flat_map(|one| one.assertions.iter().map(move |made| (one, made)));
    for (one, assertion) in of_each.filter(|(_, made)| !made.passed) {
        let seed = one.seed_of(assertion).filter(|_| measured.len() > 1);
        let seed = seed.map(|seed| format!("seed {seed}: ")).unwrap_or_default();
        let text = format!("{seed}{}", AssertionResult::text(assertion));
        if !failed.contains(&text) {
            failed.push(text);
        }
    }
    Ok(ProbeReport { value, passed: failed.is_empty(), failed, runs: Vec::new() })
}

/// Prints the results as a table, because the tries of other processes are unknown.
fn print_columns(args: &RunArgs, columns: &[Column]) -> io::Result<()> {
    let format = if args.json { TableFormat::Json } else { TableFormat::Csv };
    write_at_once(|out| write_columns(out, columns, format))
}

fn print(args: &RunArgs, asked: &SearchSpec, axes: &[Axis], found: &[Found]) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    if args.json {
        return write_json(&mut out, axes, found);
    }
    if !args.quiet {
        writeln!(out, "\n  {BOLD}{}{BOLD:#}", printable(&args.file.display().to_string()))?;
    }
    for one in found {
        let of = label(axes, &one.swept);
        if !args.quiet {
            write_probes(&mut out, asked, &of, &one.searched.report)?;
        }
        let Searched { report, infeasible, .. } = &one.searched;
        let style = if report.bracket.kept.is_some() { GREEN } else { RED };
        let of = if of.is_empty() { of } else { format!("{}: ", printable(&of)) };
        match infeasible {
            Some(why) => writeln!(out, "  {style}{of}infeasible: {}{style:#}", printable(why))?,
            None => {
                write!(out, "{style}")?;
                let text = format!("{of}{}", sentence(report, &asked.unit));
                write_wrapped(&mut out, "  ", &text, Layout::of_stdout(false).width)?;
                write!(out, "{style:#}")?;
            }
        }
    }
    Ok(())
}

/// Writes the tried values and their failures.
fn write_probes(out: &mut dyn Write, asked: &SearchSpec, of: &str, report: &SearchReport) -> io::Result<()> {
    if !of.is_empty() {
        writeln!(out, "\n  {BOLD}{}{BOLD:#}", printable(of))?;
    }
    let mut table = bare_table();
    for probe in &report.probes {
        let value = format!("{}={}{}", asked.name, probe.value, asked.unit);
        table.add_row([printable(&value), printable(&probe.failed.join("; "))]);
    }
    write_marked(out, &table, Layout::of_stdout(false).width, report.probes.iter().map(|probe| probe.passed))?;
    writeln!(out)
}

/// Writes one search as JSON, or with `--sweep` an array; each entry has its values under `sweep`.
fn write_json(out: &mut dyn Write, axes: &[Axis], found: &[Found]) -> io::Result<()> {
    #[derive(Serialize)]
    struct OfSweep<'a> {
        sweep: BTreeMap<&'a str, &'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        infeasible: Option<&'a str>,
        #[serde(flatten)]
        search: &'a SearchReport,
    }
    match found {
        [one] if axes.is_empty() => serde_json::to_writer_pretty(&mut *out, &one.searched.report)?,
        _ => {
            let of_sweep = found.iter().map(|one| OfSweep {
                sweep: axes.iter().map(|axis| axis.name.as_str()).zip(one.swept.iter().map(String::as_str)).collect(),
                infeasible: one.searched.infeasible.as_deref(),
                search: &one.searched.report,
            });
            let all: Vec<OfSweep<'_>> = of_sweep.collect();
            serde_json::to_writer_pretty(&mut *out, &all)?;
        }
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_or_fractional_and_may_have_a_unit() {
        let of = |text: &str, tolerance| parse(text, tolerance);
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
