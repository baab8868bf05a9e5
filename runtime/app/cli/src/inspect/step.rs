//! Prints one step in full.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

use comfy_table::CellAlignment;
use serde_json::{Value, json};
use vcr_report::{Charts, read_charts};
use vcr_steplog::explain::{Explanation, explain};
use vcr_steplog::{Step, StepLine, Steps};

use super::text;
use crate::args::StepsArgs;
use crate::exit::{Exit, print_error, printed};
use crate::terminal::style::{BOLD, DIM, bare_table};
use crate::terminal::text::counted;

pub(super) fn step(args: &StepsArgs, steps: &Steps<'_>, number: u64) -> Exit {
    let found: Vec<usize> = (0..steps.steps.len()).filter(|&index| steps.steps[index].number == number).collect();
    if found.is_empty() {
        let numbers = || steps.steps.iter().map(|step| step.number);
        let problem = match numbers().min().zip(numbers().max()) {
            Some((least, most)) => format!("it has steps {least} to {most}"),
            None => "it has no steps".to_owned(),
        };
        print_error(&format!("{}: there is no step {number}; {problem}", steps.log.path.display()), None);
        return Exit::BadInput;
    }
    let engines: BTreeSet<usize> = found.iter().map(|&index| steps.steps[index].engine).collect();
    if engines.len() > 1 {
        let names: Vec<String> = engines.iter().map(|&engine| steps.engines[engine].to_string()).collect();
        let problem = format!("several engines have a step {number}: {}", names.join(", "));
        let hint = "pick one with --engine, and its run with --of";
        print_error(&format!("{}: {problem}", steps.log.path.display()), Some(hint));
        return Exit::BadInput;
    }
    printed(print(args, steps, &found), Exit::Passed)
}

/// Prints all steps of this number: a restarted engine may repeat step numbers.
fn print(args: &StepsArgs, steps: &Steps<'_>, found: &[usize]) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    let charts = charts_beside(&args.log);
    if args.json {
        let steps: Vec<Value> = found.iter().map(|&index| as_json(steps, index, charts.as_ref())).collect();
        return match &steps[..] {
            [one] => writeln!(out, "{one:#}"),
            several => writeln!(out, "{:#}", json!(several)),
        };
    }
    for &index in found {
        write(&mut out, steps, index, charts.as_ref())?;
    }
    Ok(())
}

/// The charts in the folder of a log. They contain the faults of the runs. Without charts, the step is shown without
/// faults.
fn charts_beside(log: &Path) -> Option<Charts> {
    let folder = if log.is_dir() { log } else { log.parent()? };
    read_charts(folder).ok().flatten()
}

/// The explanation of a step, with the faults that change its duration.
fn explained(steps: &Steps<'_>, index: usize, charts: Option<&Charts>) -> Explanation {
    let step = &steps.steps[index];
    let name = steps.engine_of(step);
    let slow_since_ms = || {
        let run = charts?.runs.iter().find(|run| Some(&run.name) == name.of.as_ref())?;
        run.slow_since_ms(&format!("{} {}", name.pool.as_ref()?, name.engine?), step.start_ms()?)
    };
    let mut explanation = explain(steps, index);
    if let Some(since_ms) = slow_since_ms() {
        explanation.sentences.push(format!("a slow-down, active since {since_ms:.3}ms, lengthens the step"));
    }
    explanation
}

fn as_json(steps: &Steps<'_>, index: usize, charts: Option<&Charts>) -> Value {
    let step = &steps.steps[index];
    json!({
        "step": step.number,
        "engine": steps.engine_of(step),
        "add": step.add,
        "abort": step.abort,
        "num_running": step.num_running,
        "schedule": step.schedule,
        "result": step.result,
        "explanation": explained(steps, index, charts),
    })
}

fn write(out: &mut dyn Write, steps: &Steps<'_>, index: usize, charts: Option<&Charts>) -> io::Result<()> {
    let step = &steps.steps[index];
    let line = step.schedule;
    write!(out, "\n  {BOLD}step {}{BOLD:#}{}", step.number, text::of_engine(steps.engine_of(step)))?;
    if let Some(start_ms) = step.start_ms() {
        write!(out, "{DIM}, at {:.3}ms{DIM:#}", start_ms - text::clock_start_ms(steps))?;
    }
    if let Some(duration_ms) = step.duration_ms() {
        write!(out, "{DIM}, for {duration_ms:.3}ms{DIM:#}")?;
    }
    writeln!(out)?;
    write_requests(out, line)?;
    write_facts(out, step)?;
    write_result(out, step)?;
    write_explanation(out, &explained(steps, index, charts))
}

fn write_requests(out: &mut dyn Write, line: &StepLine) -> io::Result<()> {
    let rows = line.sched.as_deref().unwrap_or_default();
    let has_drafts = rows.iter().any(|row| row.drafts > 0);
    let mut table = bare_table();
    let heads = ["request", "kind", "tokens", "computed before", "drafts", "new blocks"];
    let shown = |cells: Vec<String>| {
        let columns = cells.into_iter().enumerate().filter(|(column, _)| *column != 4 || has_drafts);
        columns.map(|(_, cell)| cell).collect::<Vec<String>>()
    };
    table.set_header(shown(heads.map(str::to_owned).to_vec()));
    for row in rows {
        table.add_row(shown(vec![
            row.request.to_string(),
            text::kind(row.kind).to_owned(),
            row.tokens.to_string(),
            row.computed.to_string(),
            row.drafts.to_string(),
            text::blocks(&row.blocks),
        ]));
    }
    for column in table.column_iter_mut().skip(2).take(if has_drafts { 3 } else { 2 }) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    if !rows.is_empty() {
        table.lines().try_for_each(|line| writeln!(out, "    {}", line.trim_end()))?;
    }
    let tokens = line.tot.map_or("?".to_owned(), |tokens| counted(u64::from(tokens), "token"));
    let of_kind = |kind| rows.iter().filter(|row| row.kind == kind).count();
    let requests = counted(rows.len() as u64, "request");
    let (new, resumed, running) = (of_kind('n'), of_kind('p'), of_kind('r'));
    writeln!(out, "  {tokens} of {requests}: {new} new, {resumed} resumed, {running} running")
}

fn write_facts(out: &mut dyn Write, step: &Step<'_>) -> io::Result<()> {
    let line = step.schedule;
    let lists = [
        ("added", text::ids(step.add.iter().copied())),
        ("aborted", text::ids(step.abort.iter().copied())),
        ("preempted", text::ids(&line.pre)),
        ("flushed", text::ids(&line.flush)),
    ];
    for (name, ids) in lists.iter().filter(|(_, ids)| !ids.is_empty()) {
        writeln!(out, "  {name:<10} {ids}")?;
    }
    let listed = line.run.as_ref().filter(|run| !run.is_empty());
    let listed = listed.map_or(String::new(), |run| format!(": {}", text::ids(run)));
    writeln!(out, "  {:<10} {}{listed}", "running", step.num_running)?;
    let numbers = [("waiting", line.wait), ("free", line.free.map(u64::from))];
    for (name, number) in numbers {
        if let Some(number) = number {
            let unit = if name == "free" { " blocks" } else { "" };
            writeln!(out, "  {name:<10} {number}{unit}")?;
        }
    }
    Ok(())
}

fn write_result(out: &mut dyn Write, step: &Step<'_>) -> io::Result<()> {
    let Some(result) = step.result else {
        return writeln!(out, "  {DIM}the log does not have its result{DIM:#}");
    };
    if let Some(emitted) = &result.out {
        let tokens: u64 = emitted.iter().map(|(_, tokens)| u64::from(*tokens)).sum();
        let from = emitted.iter().filter(|(_, tokens)| *tokens > 0).count() as u64;
        writeln!(out, "  {:<10} {} of {}", "emitted", counted(tokens, "token"), counted(from, "request"))?;
    }
    for (id, reason) in &result.fin {
        writeln!(out, "  {:<10} {id} ({reason})", "finished")?;
    }
    if !result.drafts.is_empty() {
        let drafts: u64 = result.drafts.iter().map(|(_, drafts)| u64::from(*drafts)).sum();
        writeln!(out, "  {:<10} {} for the next step", "drafts", drafts)?;
    }
    if let Some([first, first_queried, first_hit, again, again_queried, again_hit]) = result.pc {
        let first = (first, first_queried, first_hit, "");
        let again = (again, again_queried, again_hit, " after a preemption");
        for (prompts, queried, hit, when) in [first, again].into_iter().filter(|(prompts, ..)| *prompts > 0) {
            let prompts = counted(prompts, "prompt");
            writeln!(out, "  {:<10} {prompts} looked up{when}, {hit} of {queried} tokens found", "prefixes")?;
        }
    }
    for (index, event) in result.ev.iter().enumerate() {
        writeln!(out, "  {:<10} {}", if index == 0 { "KV events" } else { "" }, text::event(event))?;
    }
    Ok(())
}

pub(super) fn write_explanation(out: &mut dyn Write, explanation: &Explanation) -> io::Result<()> {
    writeln!(out, "  {BOLD}why{BOLD:#}")?;
    explanation.sentences.iter().try_for_each(|sentence| writeln!(out, "    {sentence}"))
}
