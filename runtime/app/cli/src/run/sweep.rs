//! `vcr run --sweep` and `--repeat`: runs a grid of parameters, or several seeds.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use serde_json::value::RawValue;
use vcr_base::output::{OutputFile, OutputFolder, Outputs};
use vcr_base::units::format_ns;
use vcr_report::{Tile, Tone};
use vcr_scenario::RunOptions;
use vcr_trace::import::table::{TableFormat, write as write_columns};

use crate::args::RunArgs;
use crate::exit::{Exit, eprint_line, printed};
use crate::refusal::Refusal;
use crate::run::grid::{Cell, Grid, Row};
use crate::run::measured::Measured;
use crate::run::page::{self, Question, Shown};
use crate::run::points::{Point, Points, settings};
use crate::run::repeated;
use crate::stop;
use crate::sweep::kept::KeptPoints;
use crate::sweep::part::{self, Header, SweepKind};
use crate::sweep::shard::Shard;
use crate::sweep::{Axis, axes, combinations, label, sweep_out_format};
use crate::terminal::layout::Layout;
use crate::terminal::style::{GREEN, RED, align_right, bare_table};
use crate::terminal::text::{counted, printable};

pub(crate) fn sweep(args: &RunArgs, options: RunOptions) -> Result<Exit, Refusal> {
    let questions = &args.questions;
    let axes = axes(&questions.sweeps).map_err(Refusal::input)?;
    let format = sweep_out_format(questions.sweep_out.as_deref())?;
    let combinations = combinations(&axes).map_err(Refusal::input)?;
    let chosen = questions.shard.points(combinations.len());
    let mut outputs = Outputs::new(args.force);
    outputs.reads(&args.file)?;
    let file = questions.shard.path(questions.sweep_out.as_deref()).map(|path| outputs.create(&path)).transpose()?;
    let folder = args.out.as_deref().map(|path| outputs.folder(path, &[page::PAGE])).transpose()?;
    let names: Vec<&str> = axes.iter().map(|axis| axis.name.as_str()).collect();
    let shard = questions.shard.shard;
    let settings = settings(args, &options);
    let mut header = Header::new(SweepKind::Run, &axes, combinations.len(), shard.unwrap_or(Shard::WHOLE), &settings);
    header.is_repeated = questions.repeat.is_some();
    let points = Points::new(&args.file, None, options, &names, args.quiet)?;
    let repetitions = questions.repeat.unwrap_or(1);
    let of_cluster = questions.cluster.execute(&args.words)?;
    let out = questions.shard.path(questions.sweep_out.as_deref()).filter(|_| of_cluster.is_none());
    let kept = KeptPoints::open(out.as_deref(), &header, &points.files_read(), args.force)?;
    let executed = match &of_cluster {
        Some(part) => part.results::<Vec<Measured>>().map(|all| all.into_iter().collect()).map_err(Refusal::input),
        None => execute(&points, kept.as_ref(), (&axes, &combinations, &chosen), repetitions, args.quiet),
    };
    let results = match executed {
        Ok(results) => results,
        Err(refusal) => {
            KeptPoints::leave(kept);
            return Err(refusal);
        }
    };
    let cell = |(point, repetitions)| Cell { point, values: combinations[point].clone(), repetitions };
    let mut cells: Vec<Cell> = results.into_iter().map(cell).filter(|cell| !cell.repetitions.is_empty()).collect();
    let done: usize = cells.iter().map(|cell| cell.repetitions.len()).sum();
    let all = chosen.len() * repetitions as usize;
    let stopped = stop::cause().filter(|_| done < all);
    if let Some(cause) = stopped.filter(|_| done == 0) {
        KeptPoints::remove(kept);
        eprint_line(format_args!("stopped by {} before any of {all} executions was done", cause.name()));
        return Ok(cause.exit());
    }
    // Points of other shards may be feasible.
    if shard.is_none()
        && stopped.is_none()
        && let Some(refusal) = Measured::whole_refusal(cells.iter_mut().flat_map(|cell| &mut cell.repetitions))
    {
        KeptPoints::remove(kept);
        return Err(refusal);
    }
    let grid = Grid { axes, cells, is_repeated: questions.repeat.is_some() };
    // After a stop no table is written: the same command continues from stored points, but refuses an existing table.
    let is_written = file.is_some() && (stopped.is_none() || kept.is_none());
    if let (Some(file), Some(format)) = (file.filter(|_| is_written), format) {
        let written = match shard {
            Some(_) => write_shard(file, header, &grid, repetitions, &points, kept.as_ref()),
            None => file.write_with(|out| write_columns(out, &grid.columns(), format)).map_err(Refusal::from),
        };
        if let Err(refusal) = written {
            KeptPoints::leave(kept);
            return Err(refusal);
        }
    }
    match stopped.is_none() || is_written {
        true => KeptPoints::remove(kept),
        false => KeptPoints::leave(kept),
    }
    if let Some(folder) = folder {
        write_page(folder, args, &grid)?;
    }
    let written = print(args, &grid);
    if let Some(cause) = stopped {
        let where_to = if is_written { "; these were written" } else { "" };
        eprint_line(format_args!("stopped by {}: {done} of {all} executions are done{where_to}", cause.name()));
        return Ok(printed(written, cause.exit()));
    }
    // The points of a sweep may break assertions; only repetitions of the unchanged scenario are judged.
    let is_broken = grid.axes.is_empty() && grid.cells.iter().any(|cell| cell.kept() < cell.repetitions.len());
    Ok(printed(written, if is_broken { Exit::CheckFailed } else { Exit::Passed }))
}

fn write_page(folder: OutputFolder, args: &RunArgs, grid: &Grid) -> Result<(), Refusal> {
    let kept = grid.cells.iter().filter(|cell| cell.kept() == cell.repetitions.len()).count();
    let names: Vec<&str> = grid.axes.iter().map(|axis| axis.name.as_str()).collect();
    let rows = grid.rows();
    let is_kept = |row: &&Row<'_>| row.kept() == row.cell.repetitions.len();
    // The row with the largest metric (with sign -1 the smallest) among rows that keep all assertions.
    let best = |metric: &str, sign: f64| {
        let known = rows.iter().filter(is_kept).filter_map(|row| Some((row, row.mean(metric)?.mean)));
        known.max_by(|a, b| (a.1 * sign).total_cmp(&(b.1 * sign)))
    };
    let tile = |name: &str, (row, value): (&Row<'_>, String)| Tile {
        name: name.to_owned(),
        value,
        note: label(&grid.axes, &row.cell.values),
        tone: Tone::Passed,
        ..Tile::default()
    };
    let tokens = best("output_tokens_per_s", 1.0).map(|(row, value)| (row, format!("{value:.0}")));
    let ttft = best("ttft_ms_p95", -1.0).map(|(row, value_ms)| (row, format_ns(value_ms * 1e6)));
    let tiles = [("Most output tokens/s within limits", tokens), ("Lowest TTFT p95 within limits", ttft)];
    let question = Question {
        title: format!("Sweep of {} of {}", names.join(", "), args.file.display()),
        answer: format!("{kept} of {} keep all assertions", counted(grid.cells.len(), "combination")),
        names,
        tone: Tone::Neutral,
        tiles: tiles.into_iter().filter_map(|(name, found)| Some(tile(name, found?))).collect(),
    };
    let shown = grid.cells.iter().flat_map(|cell| {
        (0..).zip(&cell.repetitions).map(|(repetition, measured)| Shown {
            values: cell.values.clone(),
            repetition,
            measured,
        })
    });
    page::write(folder, &question, &shown.collect::<Vec<_>>())
}

/// The executions of each chosen combination, by its number. Executes those that no earlier process has executed.
fn execute(
    points: &Points,
    kept: Option<&KeptPoints>,
    (axes, combinations, chosen): (&[Axis], &[Vec<String>], &[usize]),
    repetitions: u64,
    quiet: bool,
) -> Result<BTreeMap<usize, Vec<Measured>>, Refusal> {
    let mut results = kept.map(KeptPoints::earlier).transpose()?.unwrap_or_default();
    if let Some(kept) = kept {
        kept.tell(chosen.len(), quiet);
    }
    let missing: Vec<usize> = chosen.iter().copied().filter(|point| !results.contains_key(point)).collect();
    let repeated =
        |number: &usize| (0..repetitions).map(|repetition| point(axes, &combinations[*number], repetition)).collect();
    let all: Vec<Point> = missing.iter().flat_map::<Vec<Point>, _>(repeated).collect();
    let unfinished = Unfinished { repetitions: repetitions as usize, by_point: Mutex::default() };
    let mut measured = points.execute(&all, &|index, one| {
        if let Some(kept) = kept
            && let Some(whole) = unfinished.add(index, one)
        {
            kept.add(missing[index / unfinished.repetitions], &whole, &points.files_read());
        }
    })?;
    let mut measured = measured.drain(..);
    for point in missing {
        results.insert(point, measured.by_ref().take(repetitions as usize).flatten().collect());
    }
    Ok(results)
}

/// Writes the completed combinations of a shard.
fn write_shard(
    file: OutputFile,
    mut header: Header,
    grid: &Grid,
    repetitions: u64,
    points: &Points,
    kept: Option<&KeptPoints>,
) -> Result<(), Refusal> {
    header.inputs = kept.map(KeptPoints::inputs).unwrap_or_default();
    let whole = grid.cells.iter().filter(|cell| cell.repetitions.len() as u64 == repetitions);
    let results = whole.map(|cell| (cell.point, &cell.repetitions));
    part::write_file(file, header, &points.files_read(), results)
}

/// Repetitions of incomplete combinations, as JSON.
struct Unfinished {
    repetitions: usize,
    by_point: Mutex<BTreeMap<usize, BTreeMap<usize, Box<RawValue>>>>,
}

impl Unfinished {
    /// Adds execution number `index`. If it completes a combination, returns all executions of the combination.
    fn add(&self, index: usize, measured: &Measured) -> Option<Vec<Box<RawValue>>> {
        let raw = serde_json::value::to_raw_value(measured).ok()?;
        let mut by_point = self.by_point.lock().unwrap_or_else(PoisonError::into_inner);
        let (point, repetition) = (index / self.repetitions, index % self.repetitions);
        let done = by_point.entry(point).or_default();
        done.insert(repetition, raw);
        if done.len() < self.repetitions {
            return None;
        }
        Some(by_point.remove(&point)?.into_values().collect())
    }
}

/// The execution of a combination with one seed.
pub(crate) fn point(axes: &[Axis], values: &[String], repetition: u64) -> Point {
    let names = axes.iter().map(|axis| axis.name.clone());
    let parameters = names.zip(values.iter().cloned()).collect();
    let label = if axes.is_empty() { "--repeat".to_owned() } else { format!("--sweep, {}", label(axes, values)) };
    Point { label, parameters, repetition }
}

fn print(args: &RunArgs, grid: &Grid) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    if args.json {
        let mut text = Vec::new();
        write_columns(&mut text, &grid.columns(), TableFormat::Json)?;
        return out.write_all(&text);
    }
    if grid.axes.is_empty() {
        return grid.cells.iter().try_for_each(|cell| repeated::write(&mut out, cell, args.quiet));
    }
    write_grid(&mut out, grid, Layout::of_stdout(args.full))
}

/// Writes a line for each run of each combination, with the most common metrics.
fn write_grid(out: &mut dyn Write, grid: &Grid, layout: Layout) -> io::Result<()> {
    /// Columns that are dropped, in this order, if the table is too wide.
    const LEFT_OUT: [&str; 5] = ["e2e p99", "out tok/s", "ttft p50", "itl p99", "req/s"];
    const SHOWN: [(&str, &str, usize); 6] = [
        ("req/s", "completed_per_s", 2),
        ("out tok/s", "output_tokens_per_s", 1),
        ("ttft p50", "ttft_ms_p50", 2),
        ("ttft p99", "ttft_ms_p99", 2),
        ("itl p99", "itl_ms_p99", 2),
        ("e2e p99", "e2e_ms_p99", 2),
    ];
    let mut table = bare_table();
    let mut header: Vec<String> = grid.axes.iter().map(|axis| axis.name.clone()).collect();
    header.push("run".to_owned());
    header.extend(SHOWN.map(|(title, ..)| title.to_owned()));
    header.push("assertions".to_owned());
    table.set_header(header.iter().map(|title| printable(title)));
    let mut is_kept = Vec::new();
    for row in grid.rows() {
        let mut cells: Vec<String> = row.cell.values.iter().map(|value| printable(value).into_owned()).collect();
        cells.push(printable(row.run).into_owned());
        cells.extend(SHOWN.map(|(_, metric, digits)| {
            row.mean(metric).map(|known| format!("{:.digits$}", known.mean)).unwrap_or_default()
        }));
        let (kept, of) = (row.kept(), row.cell.repetitions.len());
        cells.push(if row.cell.infeasible().is_some() {
            "infeasible".to_owned()
        } else if grid.is_repeated {
            format!("{kept} of {of} seeds")
        } else {
            row.failed().map_or_else(|| "kept".to_owned(), |failed| format!("broken: {}", printable(&failed)))
        });
        table.add_row(cells);
        is_kept.push(kept == of);
    }
    align_right(&mut table);
    // Subtract the width of the marks before the lines.
    let is_narrowed = Layout { width: layout.width.saturating_sub(3), ..layout }.fit(&mut table, &LEFT_OUT);
    // The table library adds no colours, so the marks are written before its lines. The first line is the header.
    for (index, line) in table.lines().enumerate() {
        match index.checked_sub(1).map(|row| is_kept[row]) {
            None => writeln!(out, "   {}", line.trim_end())?,
            Some(true) => writeln!(out, " {GREEN}✓{GREEN:#} {}", line.trim_end())?,
            Some(false) => writeln!(out, " {RED}✗{RED:#} {}", line.trim_end())?,
        }
    }
    writeln!(out)?;
    for cell in &grid.cells {
        if let Some(why) = cell.infeasible() {
            let of = label(&grid.axes, &cell.values);
            writeln!(out, "{RED}infeasible{RED:#}: {}: {}", printable(&of), printable(why))?;
        }
    }
    let executions: usize = grid.cells.iter().map(|cell| cell.repetitions.len()).sum();
    let (combinations, executions) = (counted(grid.cells.len(), "combination"), counted(executions, "execution"));
    let narrowed = if is_narrowed { "; --full shows all columns" } else { "" };
    writeln!(out, "times in ms; {combinations}, {executions}{narrowed}")
}
