//! `vcr inspect diff`: compares two captures.

use std::io::{self, Write};

use comfy_table::Table;
use serde_json::json;
use vcr_compare::captures::{Comparison, PairDifference, Side, compare};
use vcr_trace::import::summary::Quantiles;

use super::args::DiffArgs;
use super::summarize::{quantile_cells, write_to};
use super::{read, refused};
use crate::exit::Exit;
use crate::terminal::style::{BOLD, DIM, GREEN, RED, align_right, bare_table, write_table};
use crate::terminal::text::counted;

pub(crate) fn diff(args: &DiffArgs) -> Exit {
    let mut sides = [Side::default(), Side::default()];
    for (side, path) in sides.iter_mut().zip([&args.left, &args.right]) {
        let read = read(path, &args.input, |line| {
            side.add(line);
            Ok(())
        });
        if let Err(error) = read {
            return refused(&error);
        }
    }
    let [left, right] = sides;
    let found = compare(left, right);
    let names = [&args.left, &args.right].map(|path| path.display().to_string());
    let exit = if found.is_equal() { Exit::Passed } else { Exit::CheckFailed };
    let inputs = [&args.left, &args.right].into_iter().chain(args.input.files());
    write_to((args.result.output.as_deref(), args.result.force), inputs, exit, |out| {
        if args.result.json {
            let mut value = json!(found);
            value["equal"] = json!(found.is_equal());
            value["names"] = json!(names);
            return writeln!(out, "{value:#}");
        }
        write(out, &found, &names, args.limit)
    })
}

fn write(out: &mut dyn Write, found: &Comparison, names: &[String; 2], limit: usize) -> io::Result<()> {
    let rule = found.rule.text();
    let (style, verdict) = if found.is_equal() { (GREEN, "equal") } else { (RED, "different") };
    writeln!(out, "  {style}{verdict}{style:#}: {} matched by {rule}", counted(found.matched, "request"))?;
    for (name, only) in names.iter().zip([found.only_left, found.only_right]) {
        if only > 0 {
            writeln!(out, "  only {name} has {}", counted(only, "request"))?;
        }
    }
    let one_sided = found.with_tokens_of_one;
    let unknown = found.matched - found.with_tokens - one_sided;
    for (pairs, whose) in [(one_sided, "only one side has them"), (unknown, "neither side has them")] {
        if pairs > 0 {
            let pairs = counted(pairs, "pair");
            writeln!(out, "  {DIM}tokens of answers not compared, as {whose}: {pairs}{DIM:#}")?;
        }
    }
    for (field, pairs) in &found.not_compared {
        writeln!(out, "  {DIM}not compared: `{field}` differs in {}{DIM:#}", counted(*pairs, "pair"))?;
    }
    for (field, pairs) in &found.fields {
        writeln!(out, "  {RED}✗{RED:#} `{field}` differs in {}", counted(*pairs, "pair"))?;
    }
    for pair in found.different.iter().take(limit) {
        write_pair(out, pair)?;
    }
    if let Some(more) = found.different.len().checked_sub(limit).filter(|more| *more > 0) {
        writeln!(out, "  {DIM}... and {}; --limit shows more{DIM:#}", counted(more as u64, "more pair"))?;
    }
    write_times(out, found, names)
}

fn write_pair(out: &mut dyn Write, pair: &PairDifference) -> io::Result<()> {
    let name = pair.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    writeln!(out, "\n  {BOLD}request {} and {}{BOLD:#}{name}", pair.left_index, pair.right_index)?;
    pair.fields.iter().try_for_each(|field| writeln!(out, "    {}: {} and {}", field.field, field.left, field.right))
}

fn write_times(out: &mut dyn Write, found: &Comparison, names: &[String; 2]) -> io::Result<()> {
    let mut table = bare_table();
    table.set_header(["", "", "mean", "p50", "p90", "p99", "max", "count"]);
    let [left, right] = &found.summaries;
    let rows: [(&str, [&Option<Quantiles>; 2]); 4] = [
        ("ttft", [&left.ttft_ns, &right.ttft_ns]),
        ("itl", [&left.itl_ns, &right.itl_ns]),
        ("e2e", [&left.e2e_ns, &right.e2e_ns]),
        ("queue", [&left.queue_ns, &right.queue_ns]),
    ];
    for (metric, both) in rows {
        for (index, quantiles) in both.into_iter().enumerate() {
            let Some(quantiles) = quantiles else { continue };
            let title = if index == 0 { metric } else { "" };
            add_row(&mut table, title, &names[index], quantiles);
        }
    }
    if table.row_count() == 0 {
        return Ok(());
    }
    align_right(&mut table);
    writeln!(out)?;
    write_table(out, &table)
}

fn add_row(table: &mut Table, title: &str, name: &str, quantiles: &Quantiles) {
    let mut cells = vec![format!("  {title}"), name.to_owned()];
    cells.extend(quantile_cells(quantiles));
    table.add_row(cells);
}
