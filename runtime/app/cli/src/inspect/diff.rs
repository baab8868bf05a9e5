//! `vcr inspect steps --diff`: finds the first step that differs between two logs.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};
use vcr_steplog::diff::{Difference, LogDiff, Side, StepDifference, diff as compare};
use vcr_steplog::explain::explain;
use vcr_steplog::{LogError, StepLog, Steps, first_entry};

use super::step::write_explanation;
use super::{hint, refused, text};
use crate::args::StepsArgs;
use crate::exit::{Exit, print_error, printed};
use crate::terminal::style::{BOLD, DIM, GREEN, RED};
use crate::terminal::text::counted;

/// The two logs, with the names that the user gave.
struct Sides<'a> {
    names: [&'a Path; 2],
    steps: [&'a Steps<'a>; 2],
}

pub(super) fn diff(args: &StepsArgs) -> Exit {
    let other = args.diff.as_deref().unwrap_or(&args.log);
    let (left, right) = match (super::open(args), open_other(args, other)) {
        (Ok(left), Ok(right)) => (left, right),
        (left, right) => {
            for (error, path) in [(left.err(), &*args.log), (right.err(), other)] {
                if let Some(error) = error {
                    print_error(&error, hint(&error, path).as_deref());
                }
            }
            return Exit::BadInput;
        }
    };
    let (left, right) = (Steps::of(&left), Steps::of(&right));
    let found = match compare(&left, &right) {
        Ok(found) => found,
        Err(error) => return refused(&error),
    };
    let sides = Sides { names: [&args.log, other], steps: [&left, &right] };
    let mut out = anstream::stdout().lock();
    let written =
        if args.json { writeln!(out, "{:#}", as_json(&sides, &found)) } else { write(&mut out, &sides, &found) };
    printed(written, if found.is_equal() { Exit::Passed } else { Exit::CheckFailed })
}

/// Opens the other log. Selected names of a run or engine apply to it only if it has names.
fn open_other(args: &StepsArgs, path: &Path) -> Result<StepLog, LogError> {
    let mut log = StepLog::read(path)?;
    let engines = log.engines();
    let of = args.of.as_deref().filter(|_| engines.iter().any(|name| name.of.is_some()));
    let engine = args.engine.as_ref().filter(|_| engines.iter().any(|name| name.engine.is_some()));
    log.keep(of, engine.map(|(pool, index)| (pool.as_str(), *index)))?;
    Ok(log)
}

fn as_json(sides: &Sides<'_>, found: &LogDiff) -> Value {
    let mut value = json!(found);
    value["equal"] = json!(found.is_equal());
    value["left"] = json!(sides.names[0].display().to_string());
    value["right"] = json!(sides.names[1].display().to_string());
    if let Some(first) = &found.first {
        let explained = |steps, index: Option<usize>| index.map(|index| explain(steps, index));
        value["first"]["left_explanation"] = json!(explained(sides.steps[0], first.left_index));
        value["first"]["right_explanation"] = json!(explained(sides.steps[1], first.right_index));
    }
    value
}

fn write(out: &mut dyn Write, sides: &Sides<'_>, found: &LogDiff) -> io::Result<()> {
    let engines = if found.engines == 1 { String::new() } else { format!(" of {} engines", found.engines) };
    match &found.first {
        None if found.engines == 0 => writeln!(out, "  {RED}different{RED:#}: the logs have no engine in common")?,
        None => {
            let (steps, fields) = (counted(found.steps, "step"), counted(found.fields, "field"));
            let (style, verdict) = if found.is_equal() { (GREEN, "equal") } else { (RED, "different") };
            let common = if found.is_equal() { "" } else { "equal in what they have in common, " };
            writeln!(out, "  {style}{verdict}{style:#}: {common}{steps}{engines}, {fields}")?;
        }
        Some(first) => {
            write_difference(out, sides, first)?;
            let before = counted(found.steps, "step");
            if found.engines > 1 {
                let (different, all) = (found.different_engines, found.engines);
                writeln!(
                    out,
                    "\n  {different} of {all} engines differ; {before} before their first difference are equal"
                )?;
            } else {
                writeln!(out, "\n  {before} before it {} equal", if found.steps == 1 { "is" } else { "are" })?;
            }
        }
    }
    for (name, side) in &found.unpaired {
        writeln!(out, "  only {} has the engine {name}", name_of(sides, *side))?;
    }
    for (field, side) in &found.not_compared {
        writeln!(out, "  {DIM}not compared: `{field}`, which only {} has{DIM:#}", name_of(sides, *side))?;
    }
    Ok(())
}

fn name_of(sides: &Sides<'_>, side: Side) -> String {
    sides.names[side as usize].display().to_string()
}

fn write_difference(out: &mut dyn Write, sides: &Sides<'_>, first: &StepDifference) -> io::Result<()> {
    let engine = text::of_engine(&first.left_engine);
    write!(out, "\n  {RED}✗{RED:#} {BOLD}step {}{BOLD:#}{engine}: ", first.step)?;
    let names = sides.names.map(|name| name.display().to_string());
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    match &first.difference {
        Difference::OnlyIn { side } => writeln!(out, "only {} has it", name_of(sides, *side))?,
        Difference::Field { field, left, right } => {
            writeln!(out, "`{field}` differs")?;
            let values = match first_entry(field, left, right) {
                Some(entry) => {
                    let part = entry.part.map_or(String::new(), |(part, left, right)| {
                        format!(": {part} {} and {}", text::value(left), text::value(right))
                    });
                    writeln!(out, "      entry {}{part}", entry.index)?;
                    [text::entry(field, entry.left), text::entry(field, entry.right)]
                }
                None => [text::value(left), text::value(right)],
            };
            for (name, value) in names.iter().zip(values) {
                writeln!(out, "        {name:<width$}  {value}")?;
            }
        }
    }
    let indices = [first.left_index, first.right_index];
    for ((name, steps), index) in names.iter().zip(sides.steps).zip(indices) {
        if let Some(index) = index {
            writeln!(out, "\n  {DIM}{name}{DIM:#}")?;
            write_explanation(out, &explain(steps, index))?;
        }
    }
    Ok(())
}
