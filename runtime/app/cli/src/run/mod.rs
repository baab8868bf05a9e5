//! `vcr run`.

pub(crate) mod args;
pub(crate) mod grid;
mod many;
pub(crate) mod measured;
mod page;
pub(crate) mod points;
mod rebuild;
mod repeated;
pub(crate) mod search;
pub(crate) mod searches;
mod single;
mod statistics;
pub(crate) mod sweep;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use vcr_cluster::TargetDriver;
use vcr_scenario::{RunOptions, expression};

use crate::args::RunArgs;
use crate::exit::Exit;
use crate::refusal::Refusal;

pub(crate) fn run(args: &RunArgs) -> Exit {
    let options = match options(args) {
        Ok(options) => options,
        Err(refusal) => return exit_of(Err(refusal)),
    };
    if let Some(bytes) = args.memory_limit {
        vcr_base::input::memory::set_limit(bytes);
    }
    if !args.several.watch {
        return run_once(args, &options).0;
    }
    let files: Vec<PathBuf> = std::iter::once(&args.file).chain(&args.several.more_files).cloned().collect();
    watch::watch(&files, || run_once(args, &options))
}

/// Options for every execution, from the command line.
pub(crate) fn options(args: &RunArgs) -> Result<RunOptions, Refusal> {
    let mut parameters = BTreeMap::new();
    for (key, value) in &args.parameters {
        if parameters.insert(key.clone(), value.clone()).is_some() {
            let refusal = Refusal::input(format!("the parameter `{key}` is given twice"));
            return Err(refusal.hint("give each parameter once"));
        }
    }
    let target = args.target.as_deref().map(|text| expression::target("--target", text)).transpose();
    let target = target.map_err(Refusal::from)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    Ok(RunOptions {
        seed: args.seed,
        parameters,
        threads: args.threads.map_or(cores, usize::from),
        max_runs: args.max_runs,
        max_time_ns: args.max_sim_time,
        uncertainty: usize::from(args.uncertainty.unwrap_or(0)),
        target,
        targets: targets(),
        out: args.out.clone(),
        digests_inputs: args.json || args.pack_on_failure.is_some(),
        keeps_step_digests: args.pack_on_failure.is_some(),
        files: args.files.clone(),
        requests: args.requests.clone(),
        force: args.force,
        tokenizers: tokenizers(),
        ..RunOptions::default()
    })
}

/// Runs the command once. Also returns the files that were read.
fn run_once(args: &RunArgs, options: &RunOptions) -> (Exit, Vec<PathBuf>) {
    if !args.several.more_files.is_empty() {
        return match many::many(args, options) {
            Ok(done) => done,
            Err(refusal) => (exit_of(Err(refusal)), Vec::new()),
        };
    }
    let (questions, options) = (&args.questions, options.clone());
    if let Some(text) = &questions.search {
        return (exit_of(search::search(args, options, text)), Vec::new());
    }
    if !questions.sweeps.is_empty() || questions.repeat.is_some() {
        return (exit_of(sweep::sweep(args, options)), Vec::new());
    }
    single::single(args, options)
}

fn exit_of(done: Result<Exit, Refusal>) -> Exit {
    done.unwrap_or_else(Refusal::print)
}

/// The tokenizers of models, if this build has them.
#[cfg(feature = "serve")]
pub(crate) fn tokenizers() -> Option<vcr_scenario::Tokenizers> {
    Some(vcr_scenario::Tokenizers::new(|folder| {
        let tokenizer = vcr_text::Tokenizer::from_folder(folder).map_err(|error| error.to_string())?;
        let tokenize = move |text: &str| tokenizer.encode(text, false).map_err(|error| error.to_string());
        Ok(Box::new(tokenize) as Box<vcr_scenario::Tokenize>)
    }))
}

#[cfg(not(feature = "serve"))]
pub(crate) fn tokenizers() -> Option<vcr_scenario::Tokenizers> {
    None
}

/// The driver of real-time runs, if this build has one.
pub(crate) fn targets() -> Option<Arc<dyn TargetDriver>> {
    #[cfg(feature = "target")]
    let targets = Some(Arc::new(vcr_target::Targets) as Arc<dyn TargetDriver>);
    #[cfg(not(feature = "target"))]
    let targets = None;
    targets
}
