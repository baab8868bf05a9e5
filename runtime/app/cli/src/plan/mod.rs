//! `vcr plan`: finds the cheapest deployment for a model, a load and objectives.

mod answer;
pub(crate) mod args;
mod bound;
mod cluster;
mod explain;
mod files;
mod finished;
mod growth;
mod halt;
mod host;
mod inputs;
mod kept;
mod load;
pub(crate) mod objective;
mod others;
mod page;
mod question;
mod script;
mod search;
mod show;
pub(crate) mod simulate;
mod space;
mod tune;
mod verify;
mod yaml;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use vcr_base::output::Outputs;
use vcr_scenario::{Reporter, Scenario, SourceFile};

use crate::exit::{Exit, eprint_line, printed};
use crate::pack::pack_for_sweep;
use crate::plan::answer::{Plan, Searched};
use crate::plan::args::{PlanArgs, PlanCommand, SearchArgs, TuneArgs};
use crate::plan::bound::Bounded;
use crate::plan::cluster::Cluster;
use crate::plan::files::Folders;
use crate::plan::finished::Finished;
use crate::plan::halt::{Halt, in_time, too_soon};
use crate::plan::inputs::Inputs;
use crate::plan::load::Facts;
use crate::plan::script::Case;
use crate::plan::search::{Family, Found};
use crate::plan::simulate::{Progress, Simulator, place};
use crate::plan::space::Spanned;
use crate::refusal::Refusal;
use crate::terminal::layout::Layout;

pub(crate) fn plan(args: &PlanArgs) -> Exit {
    let done = match &args.command {
        None => asked(args),
        Some(PlanCommand::Tune(args)) => tune(args),
        Some(PlanCommand::Explain(args)) => explain::explain(args),
        Some(PlanCommand::Verify(args)) => verify::verify(args),
    };
    done.unwrap_or_else(Refusal::print)
}

fn asked(args: &PlanArgs) -> Result<Exit, Refusal> {
    let file = args.file.as_deref().map(question::read).transpose()?;
    let question = args.question.clone().or(file.unwrap_or_default());
    let space = question.space.as_deref().map(question::space).transpose()?;
    answer(Inputs::of(&question, space.unwrap_or_default())?, &args.search)
}

fn tune(args: &TuneArgs) -> Result<Exit, Refusal> {
    let (question, space) = tune::question(args)?;
    answer(Inputs::of(&question, space)?, &args.search)
}

fn answer(mut inputs: Inputs, args: &SearchArgs) -> Result<Exit, Refusal> {
    let mut outputs = Outputs::new(args.force);
    if let load::Load::Trace { path, .. } = &inputs.load {
        outputs.reads(path)?;
    }
    let folders = args.out.as_deref().map(|folder| Folders::open(outputs, folder)).transpose()?;
    let base = Scenario::compile(&place(), String::new())?;
    let quiet = args.quiet;
    let progress = Arc::new(Progress::new(quiet, args.budget));
    let reporter = Arc::clone(&progress) as Arc<dyn Reporter>;
    let facts = in_time(inputs.load.facts(inputs.seed, &base, &place(), reporter))?;
    let facts = facts.ok_or_else(|| too_soon(progress.cut_by().unwrap_or_default()))?;
    match inputs.bounds.max_model_len {
        0 => inputs.bounds.max_model_len = facts.max_model_len(),
        stated => facts.check_fits(stated)?,
    }
    let Spanned { shapes, families, left_out } = inputs.space.span(&inputs.bounds)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let threads = args.threads.map_or(cores, |threads| usize::from(threads.get()));
    let simulator = Simulator::new(&inputs, &shapes, facts.parts(), &base, threads, progress);
    if let Some(shape) = shapes.first() {
        let case = Case { shape, replicas: 1, cut: load::Cut::WHOLE, slower: 1.0 };
        simulator.check(&case.script(&inputs)?)?;
    }
    let finished = args.out.as_deref().map(|out| Finished::open(out, &inputs, quiet)).transpose()?.flatten();
    let cluster = args.on.as_deref().map(|address| on(address, &simulator)).transpose()?;
    let simulator = simulator.with_finished(finished).on(cluster.as_ref());
    let plan = searched(&simulator, facts, families, left_out, args.exhaustive);
    simulator.end();
    simulator.leave_finished(plan.is_ok());
    let plan = plan?;
    if let Some((folders, folder)) = folders.zip(args.out.as_deref()) {
        folders.write(&plan, &inputs)?;
        if !quiet {
            eprint_line(format_args!("wrote the plan and its rows to {}", folder.display()));
        }
    }
    let mut out = anstream::stdout().lock();
    let written = if args.json {
        files::write_json(&mut out, &plan)
    } else {
        show::write(&mut out, &plan, Layout::of_stdout(args.full), quiet)
    };
    let exit = match crate::stop::cause() {
        Some(cause) if plan.cut_by.is_some() => cause.exit(),
        _ if plan.feasible => Exit::Passed,
        _ => Exit::CheckFailed,
    };
    Ok(printed(written, exit))
}

/// Files in a model's folder that affect latencies.
const MODEL_FILES: [&str; 2] = ["config.json", "hf_quant_config.json"];

/// Connects to a cluster, whose workers get all files of the deployments.
fn on(address: &str, simulator: &Simulator<'_>) -> Result<Cluster, Refusal> {
    let inputs = simulator.inputs;
    let mut sources = simulator.sources()?;
    let folders = inputs.bounds.models.iter().filter(|model| Path::new(model).is_absolute());
    for folder in folders {
        sources.retain(|source| source.name != *folder);
        let path = PathBuf::from(folder);
        let parts = MODEL_FILES.iter().map(PathBuf::from).filter(|file| path.join(file).is_file()).collect();
        sources.push(SourceFile { kind: "model", name: folder.clone(), path, parts: Some(parts) });
    }
    Cluster::start(address, &pack_for_sweep(&place(), Some(""), &sources)?, &inputs.objectives)
}

/// Runs bounds and search, and makes the answer.
fn searched(
    simulator: &Simulator<'_>,
    facts: Facts,
    families: Vec<Family>,
    mut left_out: Vec<space::LeftOut>,
    exhaustive: bool,
) -> Result<Plan, Refusal> {
    simulator.begin("bounds", 0.0);
    let bounded = in_time(bound::bound(simulator, &facts, families))?;
    let bounded = bounded.ok_or_else(|| too_soon(simulator.cut_by().unwrap_or_default()))?;
    let Bounded { mut families, mut alones, left_out: cannot, nearest } = bounded;
    left_out.extend(cannot);
    simulator.begin("search", expected(&families, &facts));
    let mut found = Vec::new();
    let done: Result<(), Halt> = match exhaustive {
        true => search::exhaustive(simulator, &families, simulator.whole(), &mut found),
        false => search::search(simulator, &families, simulator.parts.len(), &mut found),
    };
    in_time(done)?;
    simulator.begin("answer", facts.requests as f64 * 20.0);
    let only_nearest = nearest.is_some();
    if let Some((family, alone)) = nearest {
        found.push(Found::Infeasible { shape: family.shapes[0], replicas: family.most, part: simulator.whole() });
        families.push(family);
        alones.push(alone);
    }
    Searched { simulator, facts, families, alones, found, left_out, only_nearest }.plan()
}

/// Estimated number of requests of a search: each shape twice with the first part of the load, half of the shapes
/// with the next part, and a few with the whole load.
fn expected(families: &[Family], facts: &Facts) -> f64 {
    let parts = facts.parts();
    let shapes: usize = families.iter().map(|family| family.shapes.len()).sum();
    let of_part = |(index, requests): (usize, &Option<u64>)| match requests {
        Some(requests) => 2.0 * shapes as f64 * *requests as f64 / f64::from(1 << index),
        None => 6.0 * families.len() as f64 * facts.requests as f64,
    };
    parts.iter().enumerate().map(of_part).sum()
}
