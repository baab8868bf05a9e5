//! Prints the table of a log's steps.

use std::io::{self, Write};

use serde_json::{Value, json};
use vcr_steplog::explain::{Admission, admission};
use vcr_steplog::{Step, Steps};

use super::text;
use crate::args::StepsArgs;
use crate::exit::{Exit, printed};
use crate::terminal::layout::Layout;
use crate::terminal::style::{DIM, bare_table, write_table};
use crate::terminal::text::counted;

/// Number of rows that fit on a screen.
const FEW: usize = 40;

/// The numbers of a step; none for fields that the log lacks.
#[derive(Clone)]
struct Row {
    run: Option<String>,
    engine: Option<String>,
    number: u64,
    start_ms: Option<f64>,
    duration_ms: Option<f64>,
    tokens: Option<u32>,
    /// Numbers of new, resumed and running requests.
    kinds: [u64; 3],
    preempted: u64,
    running: u64,
    waiting: Option<u64>,
    free: Option<u32>,
    events: Option<u64>,
    why: Admission,
}

pub(super) fn table(args: &StepsArgs, steps: &Steps<'_>) -> Exit {
    let chosen: Vec<&Step<'_>> =
        steps.steps.iter().filter(|step| args.from.is_none_or(|from| step.number >= from)).collect();
    let most = args.limit.map(|limit| limit as usize);
    let most = most.unwrap_or(if args.json { usize::MAX } else { FEW }).min(chosen.len());
    let (shown, rest) = chosen.split_at(most);
    let has_events = steps.log.lines.iter().any(|line| !line.ev.is_empty());
    let rows: Vec<Row> = shown.iter().map(|step| row(steps, step, has_events)).collect();
    let written = if args.json { write_json(&rows, rest.len()) } else { write_rows(steps, &rows, rest) };
    printed(written, Exit::Passed)
}

fn row(steps: &Steps<'_>, step: &Step<'_>, has_events: bool) -> Row {
    let line = step.schedule;
    let of_kind = |kind| line.sched.iter().flatten().filter(|row| row.kind == kind).count() as u64;
    let events = step.result.map_or(0, |result| result.ev.len() as u64);
    let name = steps.engine_of(step);
    Row {
        run: name.of.clone(),
        engine: Some(name.place()).filter(|place| !place.is_empty()),
        number: step.number,
        start_ms: step.start_ms(),
        duration_ms: step.duration_ms(),
        tokens: line.tot,
        kinds: ['n', 'p', 'r'].map(of_kind),
        preempted: line.pre.len() as u64,
        running: step.num_running,
        waiting: line.wait,
        free: line.free,
        events: has_events.then_some(events),
        why: admission(steps, step),
    }
}

fn write_json(rows: &[Row], more: usize) -> io::Result<()> {
    let rows: Vec<Value> = rows.iter().map(as_json).collect();
    writeln!(anstream::stdout().lock(), "{:#}", json!({ "steps": rows, "more": more }))
}

fn as_json(row: &Row) -> Value {
    let [new, resumed, running] = row.kinds;
    json!({
        "of": row.run,
        "engine": row.engine,
        "s": row.number,
        "start_ms": row.start_ms,
        "duration_ms": row.duration_ms,
        "tokens": row.tokens,
        "requests": { "new": new, "resumed": resumed, "running": running },
        "preempted": row.preempted,
        "running": row.running,
        "waiting": row.waiting,
        "free": row.free,
        "events": row.events,
        "why": row.why,
    })
}

/// A column: its title, and its value for a row.
type Column = (&'static str, fn(&Row) -> Option<String>);

const COLUMNS: [Column; 15] = [
    ("run", |row| row.run.clone()),
    ("engine", |row| row.engine.clone()),
    ("s", |row| Some(row.number.to_string())),
    ("start ms", |row| row.start_ms.map(|ms| format!("{ms:.3}"))),
    ("ms", |row| row.duration_ms.map(|ms| format!("{ms:.3}"))),
    ("tokens", |row| row.tokens.map(|tokens| tokens.to_string())),
    ("n", |row| Some(row.kinds[0].to_string())),
    ("p", |row| Some(row.kinds[1].to_string())),
    ("r", |row| Some(row.kinds[2].to_string())),
    ("preempted", |row| Some(row.preempted.to_string())),
    ("running", |row| Some(row.running.to_string())),
    ("waiting", |row| row.waiting.map(|waiting| waiting.to_string())),
    ("free", |row| row.free.map(|free| free.to_string())),
    ("events", |row| row.events.map(|events| events.to_string())),
    ("why", |row| Some(row.why.to_string()).filter(|why| !why.is_empty())),
];

/// Columns that are dropped, in this order, if the table is too wide; see docs/reference/inspect-steps.md.
const LEFT_OUT: [&str; 6] = ["events", "preempted", "p", "n", "r", "free"];

fn write_rows(steps: &Steps<'_>, rows: &[Row], rest: &[&Step<'_>]) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    if rows.is_empty() {
        return match (steps.steps.first(), steps.steps.last()) {
            (Some(first), Some(last)) => {
                writeln!(out, "  no steps here; the log has steps {} to {}", first.number, last.number)
            }
            _ => writeln!(out, "  no steps"),
        };
    }
    let of_one_engine = steps.engines.len() == 1;
    let of_one_run = steps.engines.iter().all(|name| name.of == steps.engines[0].of);
    // Leave out empty columns, and the columns `run` and `engine` if they have one name in all rows.
    let columns: Vec<&Column> = COLUMNS
        .iter()
        .filter(|(head, _)| !(*head == "run" && of_one_run || *head == "engine" && of_one_engine))
        .filter(|(_, cell)| rows.iter().any(|row| cell(row).is_some()))
        .collect();
    let clock_start_ms = text::clock_start_ms(steps);
    let mut table = bare_table();
    table.set_header(columns.iter().map(|(head, _)| *head));
    for row in rows {
        let row = Row { start_ms: row.start_ms.map(|start_ms| start_ms - clock_start_ms), ..row.clone() };
        table.add_row(columns.iter().map(|(_, cell)| cell(&row).unwrap_or_default()));
    }
    for (column, (head, _)) in table.column_iter_mut().zip(&columns) {
        if !matches!(*head, "run" | "engine" | "why") {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    let is_narrowed = Layout::of_stdout(false).fit(&mut table, &LEFT_OUT);
    write_table(&mut out, &table)?;
    if is_narrowed {
        writeln!(out, "{DIM}  --json also shows columns that do not fit{DIM:#}")?;
    }
    let Some(next) = rest.first() else { return Ok(()) };
    let more = counted(rest.len() as u64, "more step");
    match of_one_engine {
        true => writeln!(out, "{DIM}  {more}: --from {} continues, --limit shows more at once{DIM:#}", next.number),
        false => writeln!(out, "{DIM}  {more}: --limit shows more, --from starts later, --engine picks one{DIM:#}"),
    }
}
