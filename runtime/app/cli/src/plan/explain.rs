//! `vcr plan explain`: the binding limit of a row, and the effect of each single change, from simulations.

use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use vcr_scenario::Scenario;

use crate::exit::{Exit, printed};
use crate::plan::answer::Row;
use crate::plan::args::ExplainArgs;
use crate::plan::halt::in_time;
use crate::plan::kept::{Kept, broken_text, kept};
use crate::plan::load::Cut;
use crate::plan::script::Case;
use crate::plan::simulate::{Progress, Simulated, Simulator, place};
use crate::plan::space::{HOST_GIB, Shape, without};
use crate::plan::verify::{Kept as KeptPlan, KeptRow};
use crate::refusal::Refusal;
use crate::terminal::style::{BOLD, GREEN, RED};
use crate::terminal::text::printable;

/// A deployment with one change from the row.
#[derive(Serialize)]
struct Neighbour {
    change: String,
    gpus: u32,
    price_per_hour_usd: f64,
    passed: bool,
    headroom: f64,
    objectives: Vec<Kept>,
    /// The effect of the change, as a sentence.
    sentence: String,
}

#[derive(Serialize)]
struct Explained<'a> {
    row: &'a Row,
    /// Whether no deployment of the plan is feasible, and the row is the nearest one.
    is_nearest: bool,
    binding: String,
    neighbours: Vec<Neighbour>,
}

pub(crate) fn explain(args: &ExplainArgs) -> Result<Exit, Refusal> {
    let KeptRow { inputs, row, is_nearest } = KeptPlan::read(&args.folder, args.row, true)?;
    let spanned = inputs.space.span(&inputs.bounds)?;
    let base = Scenario::compile(&place(), String::new())?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let progress = Arc::new(Progress::new(args.json, None));
    let simulator = Simulator::new(&inputs, &spanned.shapes, vec![None], &base, cores, progress);
    let cut = Cut { requests: row.requests, factor: 1.0 };
    let changes = changes(&row, &spanned.shapes);
    let found = simulator.each_of(&changes, |_, change| {
        let Change { shape, replicas, .. } = change;
        simulator.case(&Case { shape, replicas: *replicas, cut, slower: 1.0 })
    });
    simulator.end();
    let mut neighbours = Vec::new();
    for (change, one) in changes.into_iter().zip(found) {
        // After a signal, the remaining changes are omitted.
        neighbours.extend(in_time(one)?.map(|one| neighbour(&row, change, &one)));
    }
    let explained = Explained { row: &row, is_nearest, binding: binding(&row), neighbours };
    let mut out = anstream::stdout().lock();
    let written = if args.json {
        serde_json::to_writer_pretty(&mut out, &explained).map_err(io::Error::from).and_then(|()| writeln!(out))
    } else {
        write(&mut out, &explained)
    };
    Ok(printed(written, crate::stop::cause().map_or(Exit::Passed, crate::stop::Cause::exit)))
}

struct Change {
    text: String,
    shape: Shape,
    replicas: u32,
}

/// All single changes: one replica more or less, other tensor-parallel sizes, and other values of each flag.
fn changes(row: &Row, shapes: &[Shape]) -> Vec<Change> {
    let own = &row.deployment;
    let mut all = vec![Change { text: "one replica more".to_owned(), shape: own.clone(), replicas: row.replicas + 1 }];
    if row.replicas > 1 {
        let replicas = row.replicas - 1;
        all.push(Change { text: "one replica less".to_owned(), shape: own.clone(), replicas });
    }
    for shape in shapes {
        let is_like = shape.model == own.model && shape.gpu == own.gpu && shape.mode == own.mode;
        let is_family = is_like && shape.family_text() == own.family_text();
        let text = if is_family && shape.tensor_parallel == own.tensor_parallel {
            one_flag(own, shape)
        } else {
            let other = [own.tensor_parallel * 2, own.tensor_parallel / 2].contains(&shape.tensor_parallel);
            let batches = |shape: &Shape| without(&shape.flags, &[HOST_GIB]);
            let is_same = batches(shape) == batches(own)
                && (shape.host_gib_per_gpu, &shape.router) == (own.host_gib_per_gpu, &own.router);
            let rest = |shape: &Shape| (shape.pipeline_parallel, shape.data_parallel, shape.expert_parallel);
            (is_like && other && is_same && rest(shape) == rest(own)).then(|| format!("-tp {}", shape.tensor_parallel))
        };
        all.extend(text.map(|text| Change { text, shape: shape.clone(), replicas: row.replicas }));
    }
    all
}

/// The flag that differs in the other shape, if it is the only difference.
fn one_flag(own: &Shape, other: &Shape) -> Option<String> {
    if own.router != other.router {
        return (own.flags == other.flags).then(|| format!("router {}", other.router));
    }
    let words = |flags: &str| flags.split(" -").map(|flag| flag.trim_start_matches('-').to_owned()).collect::<Vec<_>>();
    let (mine, theirs) = (words(&own.flags), words(&other.flags));
    let new: Vec<&String> = theirs.iter().filter(|flag| !mine.contains(flag)).collect();
    let gone: Vec<&String> = mine.iter().filter(|flag| !theirs.contains(flag)).collect();
    match (&new[..], &gone[..]) {
        ([flag], [] | [_]) => Some(format!("--{flag}")),
        ([], [flag]) => Some(format!("without --{flag}")),
        _ => None,
    }
}

fn neighbour(row: &Row, change: Change, one: &Simulated) -> Neighbour {
    let Change { text, shape, replicas } = change;
    let price = shape.price() * f64::from(replicas);
    let more = price - row.price_per_hour_usd;
    let cost = match more {
        more if more.abs() < 0.005 => "for the same price".to_owned(),
        more if more > 0.0 => format!("for ${more:.2} an hour more"),
        more => format!("for ${:.2} an hour less", -more),
    };
    let objectives = kept(one);
    let sentence = match (&one.refused, one.score.passed) {
        (Some(reason), _) => format!("{text}: not possible: {reason}"),
        (None, false) => format!("{text} {cost} {}", missed(&row.objectives, &objectives)),
        (None, true) => {
            let moved = objectives.iter().zip(&row.objectives).filter_map(|(new, old)| {
                let change = new.headroom - old.headroom;
                let observed = new.observed_text.as_deref()?;
                (change.abs() >= 0.01).then(|| {
                    let old = old.observed_text.as_deref().unwrap_or("nothing");
                    format!("{} from {old} to {observed}", new.objective)
                })
            });
            let moved: Vec<String> = moved.collect();
            match moved.is_empty() {
                true => format!("{text} {cost} changes nothing by more than 1 % of a limit"),
                false => format!("{text} {cost} moves {}", moved.join(", ")),
            }
        }
    };
    Neighbour {
        change: text,
        gpus: shape.gpus() * replicas,
        price_per_hour_usd: price,
        passed: one.score.passed,
        headroom: one.score.headroom,
        objectives,
        sentence,
    }
}

/// The objectives that a change breaks, and those that it misses as the row itself does.
fn missed(of_row: &[Kept], of_change: &[Kept]) -> String {
    let missed_before = |kept: &&Kept| of_row.iter().any(|old| old.objective == kept.objective && !old.passed);
    let all = of_change.iter().filter(|kept| !kept.passed);
    let (before, broken): (Vec<&Kept>, Vec<&Kept>) = all.partition(missed_before);
    let list = |all: &[&Kept]| all.iter().map(|kept| broken_text(kept)).collect::<Vec<_>>().join(", ");
    match (&broken[..], &before[..]) {
        ([], before) => format!("still misses an objective: {}", list(before)),
        (broken, []) => format!("breaks an objective: {}", list(broken)),
        (broken, before) => format!("breaks an objective: {}; still misses another: {}", list(broken), list(before)),
    }
}

/// The binding limits of a row, in sentences.
fn binding(row: &Row) -> String {
    let limited = match row.limited_by.as_str() {
        "kv_blocks" => {
            format!("KV blocks limit it: at its peak an engine uses {:.0} % of them", row.kv_peak_usage * 100.0)
        }
        "sequences" => "`max_num_seqs` limits it: steps are full of sequences".to_owned(),
        "link" => "the link between prefill and decode limits it".to_owned(),
        "compute" => "compute limits it: prompts take more than half of the engines' busy time".to_owned(),
        _ => "memory bandwidth limits it: decodes take more than half of the engines' busy time".to_owned(),
    };
    let tightest = row.tightest().map(|kept| {
        let observed = kept.observed_text.as_deref().unwrap_or("nothing");
        let headroom = vcr_report::headroom_text(kept.headroom);
        format!("the tightest objective is {}, at {observed}, {headroom}", kept.objective)
    });
    format!(
        "{limited}; {}; engines are busy {:.0} % of the time",
        tightest.unwrap_or_default(),
        row.utilisation * 100.0
    )
}

fn write(out: &mut dyn Write, explained: &Explained<'_>) -> io::Result<()> {
    let Explained { row, is_nearest, binding, neighbours } = explained;
    if *is_nearest {
        let broken: Vec<String> = row.objectives.iter().filter(|kept| !kept.passed).map(broken_text).collect();
        writeln!(out, "{BOLD}No deployment keeps all objectives. Nearest: {}{BOLD:#}", printable(&row.label()))?;
        writeln!(out, "{RED}{}{RED:#}", printable(&broken.join(", ")))?;
    } else {
        writeln!(out, "{BOLD}Row {}: {}{BOLD:#}", row.number, printable(&row.label()))?;
    }
    writeln!(out, "{}\n", printable(&row.deployment.command))?;
    writeln!(out, "{}.\n", printable(binding))?;
    for one in neighbours {
        let (mark, style) = if one.passed { ("✓", GREEN) } else { ("✗", RED) };
        writeln!(out, "  {style}{mark}{style:#} {}", printable(&one.sentence))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_row_keeps_can_be_broken() {
        let kept = |objective: &str, passed: bool| Kept {
            objective: objective.to_owned(),
            observed: Some(1.0),
            observed_text: Some("1".to_owned()),
            headroom: if passed { 0.5 } else { -0.5 },
            passed,
        };
        let of = |row: [bool; 2], change: [bool; 2]| {
            let all = |passed: [bool; 2]| [kept("a", passed[0]), kept("b", passed[1])];
            missed(&all(row), &all(change))
        };
        assert_eq!(of([true, true], [true, false]), "breaks an objective: b is 1, 50 % beyond");
        assert_eq!(of([true, false], [true, false]), "still misses an objective: b is 1, 50 % beyond");
        assert_eq!(
            of([false, true], [false, false]),
            "breaks an objective: b is 1, 50 % beyond; still misses another: a is 1, 50 % beyond"
        );
    }
}
