//! `vcr merge`: makes the table of a sweep from the files of its shards.
//!
//! The table has the same bytes as that of a sweep in one process. Missing points, duplicate points and points of
//! another grid are refused.

pub(crate) mod args;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use vcr_base::output::Outputs;
use vcr_trace::import::table::{Column, write as write_columns};

use crate::exit::{Exit, eprint_line};
use crate::refusal::Refusal;
use crate::replay::sweep as replay;
use crate::run::grid::{Cell, Grid};
use crate::run::measured::Measured;
use crate::run::search::{self, FoundRow};
use crate::sweep::part::{Header, Part, SweepKind};
use crate::sweep::shard::{SUFFIX, Shard};
use crate::sweep::{Axis, combinations, label, out_format};
use crate::terminal::text::counted;
use args::MergeArgs;

/// Largest number of points that an error names; it counts the others.
const MAX_NAMED: usize = 3;

pub(crate) fn merge(args: &MergeArgs) -> Exit {
    match write(args) {
        Ok(summary) => {
            if !args.quiet {
                eprint_line(format_args!("{summary}"));
            }
            Exit::Passed
        }
        Err(refusal) => refusal.print(),
    }
}

/// Writes the table and returns a summary.
fn write(args: &MergeArgs) -> Result<String, Refusal> {
    let format = out_format("--out", &args.out)?;
    let files = files(&args.files)?;
    let mut outputs = Outputs::new(args.force);
    for file in &files {
        outputs.reads(file)?;
    }
    let out = outputs.create(&args.out)?;
    let parts = files.iter().map(|file| Part::read(file)).collect::<Result<Vec<_>, _>>().map_err(Refusal::input)?;
    check(&parts, args.partial)?;
    let columns = columns(&parts).map_err(Refusal::input)?;
    out.write_with(|out| write_columns(out, &columns, format))?;
    let (there, shards, out) = (parts.iter().map(Part::len).sum::<usize>(), parts.len(), args.out.display());
    let all = parts[0].header.points;
    let points = if there < all { format!("{there} of {}", counted(all, "point")) } else { counted(all, "point") };
    Ok(format!("{points} of {} in {out}", counted(shards, "shard")))
}

/// The given files, and the shards in the given folders, sorted by name.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Refusal> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let refused = |error| Refusal::input(format!("cannot read `{}`: {error}", path.display()));
        let mut inside = Vec::new();
        for entry in std::fs::read_dir(path).map_err(refused)? {
            let file = entry.map_err(refused)?.path();
            if file.extension().is_some_and(|extension| extension == SUFFIX) && file.is_file() {
                inside.push(file);
            }
        }
        if inside.is_empty() {
            return Err(Refusal::input(format!("`{}`: no file of it ends in .{SUFFIX}", path.display())));
        }
        inside.sort();
        files.extend(inside);
    }
    Ok(files)
}

/// Checks that the parts belong to one grid and none occurs twice; unless `partial`, also that nothing is missing.
fn check(parts: &[Part], partial: bool) -> Result<(), Refusal> {
    let first = &parts[0];
    for part in parts {
        same_grid(first, part)?;
    }
    same_inputs(parts)?;
    let mut by_shard: BTreeMap<Shard, &Part> = BTreeMap::new();
    for part in parts {
        if let Some(other) = by_shard.insert(part.header.shard, part) {
            let (one, two) = (other.path.display(), part.path.display());
            return Err(Refusal::input(format!("shard {} occurs twice: `{one}` and `{two}`", part.header.shard))
                .hint("give the file of each shard once"));
        }
    }
    if partial {
        return match parts.iter().all(Part::is_empty) {
            true => Err(Refusal::input("there is no finished point")),
            false => Ok(()),
        };
    }
    let Shard { count, .. } = first.header.shard;
    let expected = (0..count).map(|index| Shard { index, count });
    let missing: Vec<String> =
        expected.filter(|shard| !by_shard.contains_key(shard)).map(|it| it.to_string()).collect();
    if !missing.is_empty() {
        return Err(Refusal::input(format!("{} of {count} shards are missing: {}", missing.len(), some(&missing)))
            .hint("run the sweep with --shard for each of them, or merge the existing ones with --partial"));
    }
    for (shard, part) in by_shard {
        let points = part.missing();
        let again = if count == 1 { String::new() } else { format!(" with --shard {shard} --force") };
        if !points.is_empty() {
            return Err(Refusal::input(format!(
                "{}: shard {shard} lacks {}: {}",
                part.path.display(),
                counted(points.len(), "point"),
                some(&names(&part.header, &points)?)
            ))
            .hint(format!("it was stopped; run the sweep again{again}, or merge the others by --partial")));
        }
    }
    Ok(())
}

fn same_grid(first: &Part, part: &Part) -> Result<(), Refusal> {
    let (of_first, of_part) = (&first.header, &part.header);
    let differs = |what: &str, one: &str, other: &str| {
        let (first, part) = (first.path.display(), part.path.display());
        Err(Refusal::input(format!("`{part}` is of another {what}, {other}, than `{first}`: expected {one}")))
    };
    if of_first.vcr_version != of_part.vcr_version {
        return differs("version of vcr", &of_first.vcr_version, &of_part.vcr_version);
    }
    if of_first.shard.count != of_part.shard.count {
        let number = |header: &Header| format!("{} shards", header.shard.count);
        return differs("split", &number(of_first), &number(of_part));
    }
    let same = |one: &Header, other: &Header| {
        (one.kind, &one.axes, &one.grid, one.is_repeated) == (other.kind, &other.axes, &other.grid, other.is_repeated)
    };
    if !same(of_first, of_part) {
        let short = |header: &Header| header.grid.chars().take(16).collect::<String>();
        return differs("grid", &short(of_first), &short(of_part)).map_err(|refusal: Refusal| {
            refusal.hint("shards have the same options but for --shard: scenario or trace, parameters, seed, axes")
        });
    }
    Ok(())
}

/// Checks that all shards have read the same contents of each input file.
fn same_inputs(parts: &[Part]) -> Result<(), Refusal> {
    let mut digests: BTreeMap<&str, (&str, &Path)> = BTreeMap::new();
    for part in parts {
        for (input, digest) in &part.header.inputs {
            let (known, path) = *digests.entry(input).or_insert((digest, &part.path));
            if known != digest {
                let (one, other) = (path.display(), part.path.display());
                let message = format!("`{input}` had other contents for `{one}` than for `{other}`");
                return Err(Refusal::input(message).hint("run all shards with the same files"));
            }
        }
    }
    Ok(())
}

/// The labels of points.
fn names(header: &Header, points: &[usize]) -> Result<Vec<String>, Refusal> {
    let all = combinations(&header.axes).map_err(Refusal::input)?;
    Ok(points.iter().map(|point| label(&header.axes, &all[*point])).collect())
}

fn some(names: &[String]) -> String {
    let shown = names.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The columns of the sweep's table.
pub(crate) fn columns(parts: &[Part]) -> Result<Vec<Column>, String> {
    let Header { kind, axes, is_repeated, .. } = &parts[0].header;
    let values = combinations(axes)?;
    Ok(match kind {
        SweepKind::Run => {
            let cells = results::<Vec<Measured>>(parts)?.into_iter().map(|(point, repetitions)| Cell {
                point,
                values: values[point].clone(),
                repetitions,
            });
            Grid { axes: axes.clone(), cells: cells.collect(), is_repeated: *is_repeated }.columns()
        }
        SweepKind::Search => {
            let rows = results::<FoundRow>(parts)?;
            let rows: Vec<_> = rows.iter().map(|(point, row)| (values[*point].clone(), row)).collect();
            search::columns(axes, &rows)
        }
        SweepKind::Replay => replay_columns(parts, axes, &values)?,
    })
}

fn replay_columns(parts: &[Part], axes: &[Axis], values: &[Vec<String>]) -> Result<Vec<Column>, String> {
    let rows = results::<replay::Measured>(parts)?;
    let rows: Vec<_> = rows.into_iter().map(|(point, measured)| (values[point].clone(), measured)).collect();
    Ok(replay::columns(axes, &rows.iter().map(|(values, measured)| (values, measured)).collect::<Vec<_>>()))
}

/// All results, in the order of the grid.
fn results<T: DeserializeOwned>(parts: &[Part]) -> Result<Vec<(usize, T)>, String> {
    let mut all = Vec::new();
    for part in parts {
        all.extend(part.results::<T>()?);
    }
    all.sort_by_key(|(point, _)| *point);
    Ok(all)
}
