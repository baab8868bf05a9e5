//! `vcr inspect conform`: replays recordings and compares every decision.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use comfy_table::CellAlignment;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use vcr_steplog::conform::{CaseReport, EventPlace, Mismatch, cases, replay};
use vcr_steplog::explain::stop_clause;
use vcr_steplog::{LogError, first_entry};

use super::text;
use crate::args::ConformArgs;
use crate::exit::{Exit, print_error, printed};
use crate::terminal::style::{BOLD, DIM, GREEN, RED, bare_table};
use crate::terminal::text::counted;

/// Replays that take longer get a progress bar.
const PATIENCE: Duration = Duration::from_secs(1);

struct Case {
    name: String,
    folder: PathBuf,
    outcome: Result<CaseReport, LogError>,
}

#[derive(Default)]
struct Totals {
    exact: u64,
    different: u64,
    refused: u64,
    steps: u64,
    fields: u64,
    events: u64,
    hashes: u64,
}

pub(crate) fn conform(args: &ConformArgs) -> Exit {
    let mut errors = Vec::new();
    let mut folders = Vec::new();
    for path in &args.paths {
        match cases(path) {
            Ok(found) => folders.extend(found),
            Err(error) => errors.push(error.to_string()),
        }
    }
    let cases = replay_all(folders, args.quiet);
    errors.extend(cases.iter().filter_map(|case| case.outcome.as_ref().err()).map(ToString::to_string));
    let totals = totals(&cases, errors.len() as u64);
    let written = if totals.exact + totals.different == 0 { Ok(()) } else { print(args, &cases, &totals, &errors) };
    for error in &errors {
        print_error(error, None);
    }
    let exit = match (errors.len(), totals.different) {
        (0, 0) => Exit::Passed,
        (0, _) => Exit::CheckFailed,
        _ => Exit::BadInput,
    };
    printed(written, exit)
}

/// Replays in parallel. Results are sorted by name.
fn replay_all(folders: Vec<PathBuf>, quiet: bool) -> Vec<Case> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get).min(folders.len());
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let mut cases: Vec<Case> = std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, folders) = (sender.clone(), &next, &folders);
            scope.spawn(move || {
                while let Some(folder) = folders.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let case = Case { name: name_of(folder), folder: folder.clone(), outcome: replay(folder) };
                    if sender.send(case).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut progress = Progress::new(folders.len(), quiet);
        receiver.iter().inspect(|_| progress.case_ended()).collect()
    });
    // Cases in different folders may have the same name.
    let mut uses: BTreeMap<String, u64> = BTreeMap::new();
    for case in &cases {
        *uses.entry(case.name.clone()).or_default() += 1;
    }
    for case in &mut cases {
        if uses[&case.name] > 1 {
            case.name = case.folder.display().to_string();
        }
    }
    cases.sort_by(|a, b| (&a.name, &a.folder).cmp(&(&b.name, &b.folder)));
    cases
}

/// The name of a folder, also of `.`.
fn name_of(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    whole.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned()
}

/// A progress bar that appears on a terminal after [`PATIENCE`].
struct Progress {
    started: Instant,
    shown: bool,
    ended: u64,
    all: u64,
    bar: Option<ProgressBar>,
}

impl Progress {
    fn new(all: usize, quiet: bool) -> Self {
        let shown = !quiet && io::stderr().is_terminal();
        Self { started: Instant::now(), shown, ended: 0, all: all as u64, bar: None }
    }

    fn case_ended(&mut self) {
        self.ended += 1;
        if self.shown && self.started.elapsed() > PATIENCE {
            let style = ProgressStyle::with_template("{bar:30} {pos} of {len} recordings");
            let style = style.unwrap_or(ProgressStyle::default_bar());
            let bar = self.bar.get_or_insert_with(|| ProgressBar::new(self.all).with_style(style));
            bar.set_position(self.ended);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn totals(cases: &[Case], refused: u64) -> Totals {
    let mut totals = Totals { refused, ..Totals::default() };
    for report in cases.iter().filter_map(|case| case.outcome.as_ref().ok()) {
        totals.exact += u64::from(report.mismatch.is_none());
        totals.different += u64::from(report.mismatch.is_some());
        totals.steps += report.steps;
        totals.fields += report.fields;
        totals.events += report.events;
        totals.hashes += report.hashes;
    }
    totals
}

fn print(args: &ConformArgs, cases: &[Case], totals: &Totals, errors: &[String]) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    if args.json {
        return writeln!(out, "{:#}", as_json(cases, totals, errors));
    }
    if !args.quiet {
        write_cases(&mut out, cases)?;
    }
    for case in cases {
        if let Ok(CaseReport { mismatch: Some(mismatch), .. }) = &case.outcome {
            write_mismatch(&mut out, &case.name, mismatch)?;
        }
    }
    if args.quiet && totals.different == 0 {
        return Ok(());
    }
    write_totals(&mut out, totals)
}

fn as_json(cases: &[Case], totals: &Totals, errors: &[String]) -> Value {
    let reports = cases.iter().filter_map(|case| {
        let mut report = json!(case.outcome.as_ref().ok()?);
        report["path"] = json!(case.folder.display().to_string());
        Some(report)
    });
    json!({
        "cases": reports.collect::<Vec<Value>>(),
        "errors": errors,
        "totals": {
            "exact": totals.exact,
            "different": totals.different,
            "refused": totals.refused,
            "steps": totals.steps,
            "fields": totals.fields,
            "events": totals.events,
            "hashes": totals.hashes,
        },
    })
}

fn write_cases(out: &mut dyn Write, cases: &[Case]) -> io::Result<()> {
    let mut table = bare_table();
    table.set_header(["case", "steps", "fields", "KV events", "hashes", "result"]);
    for case in cases {
        let cells: Vec<String> = match &case.outcome {
            Ok(report) => {
                let numbers = [report.steps, report.fields, report.events, report.hashes].map(|n| n.to_string());
                let result = report.mismatch.as_ref().map_or("exact".to_owned(), |mismatch| {
                    format!("{}: {} differs", place(mismatch), quoted(mismatch.field))
                });
                std::iter::once(case.name.clone()).chain(numbers).chain([result]).collect()
            }
            Err(error) => {
                let refusal = match error {
                    LogError::OutOfScope { .. } => "out of scope",
                    _ => "unreadable",
                };
                let nothing = std::iter::repeat_n(String::new(), 4);
                std::iter::once(case.name.clone()).chain(nothing).chain([refusal.to_owned()]).collect()
            }
        };
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(1).take(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    // The table library adds no colours, so the marks are written before its lines.
    let mut lines = table.lines();
    if let Some(head) = lines.next() {
        writeln!(out, "    {DIM}{}{DIM:#}", head.trim_end())?;
    }
    for (case, line) in cases.iter().zip(lines) {
        let report = case.outcome.as_ref().ok();
        let exact = report.is_some_and(|report| report.mismatch.is_none());
        let (style, mark) = if exact { (GREEN, '✓') } else { (RED, '✗') };
        writeln!(out, "  {style}{mark}{style:#} {}", line.trim_end())?;
        for note in report.iter().flat_map(|report| &report.notes) {
            writeln!(out, "       {DIM}{note}{DIM:#}")?;
        }
    }
    Ok(())
}

/// Quotes the name of a field in backticks; descriptions with spaces stay as they are.
fn quoted(field: &str) -> String {
    if field.contains(' ') { field.to_owned() } else { format!("`{field}`") }
}

fn place(mismatch: &Mismatch) -> String {
    mismatch.step.map_or_else(|| format!("line {}", mismatch.line), |step| format!("step {step}"))
}

fn write_mismatch(out: &mut dyn Write, name: &str, mismatch: &Mismatch) -> io::Result<()> {
    let Mismatch { line, event, step, field, ours, theirs, why } = mismatch;
    let step = step.map_or(String::new(), |step| format!(" (step {step})"));
    let event = event.map_or(String::new(), |EventPlace { line, event }| {
        format!(", line {line} of kv_events.jsonl (event {event})")
    });
    writeln!(out, "\n  {RED}✗{RED:#} {BOLD}{name}{BOLD:#}, line {line}{step}{event}: {} differs", quoted(field))?;
    match first_entry(field, ours, theirs) {
        Some(entry) => {
            let part = entry.part.map_or(String::new(), |(part, ours, theirs)| {
                format!(": {part} {} instead of {}", text::value(ours), text::value(theirs))
            });
            writeln!(out, "      entry {}{part}", entry.index)?;
            writeln!(out, "        ours      {}", text::entry(field, entry.left))?;
            writeln!(out, "        recorded  {}", text::entry(field, entry.right))?;
        }
        None => {
            writeln!(out, "        ours      {}", text::value(ours))?;
            writeln!(out, "        recorded  {}", text::value(theirs))?;
        }
    }
    match why {
        Some(word) => writeln!(out, "      in our step, requests waited ({word}): {}", stop_clause(word)),
        None => writeln!(out, "      in our step, no request waited"),
    }
}

fn write_totals(out: &mut dyn Write, totals: &Totals) -> io::Result<()> {
    let compared = totals.exact + totals.different;
    let (style, verdict) = match totals.different {
        0 => (GREEN, format!("{} exact", counted(compared, "recording"))),
        1 => (RED, format!("1 of {} differs", counted(compared, "recording"))),
        different => (RED, format!("{different} of {} differ", counted(compared, "recording"))),
    };
    write!(out, "\n  {style}{verdict}{style:#}: {}, ", counted(totals.steps, "step"))?;
    write!(out, "{}, {}", counted(totals.fields, "field"), counted(totals.events, "KV event"))?;
    let hashes = if totals.hashes == 1 { "block hash" } else { "block hashes" };
    write!(out, ", {} {hashes} bit for bit", totals.hashes)?;
    if totals.refused > 0 {
        write!(out, "; {RED}{} could not be replayed{RED:#}", totals.refused)?;
    }
    writeln!(out)
}
