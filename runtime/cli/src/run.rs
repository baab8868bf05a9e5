//! `vcr run`.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use vcr_cluster::Report;
use vcr_pack::Settings;
use vcr_scenario::{Blame, Outcome, RunOptions, ScenarioError, run_file};
use vcr_units::format_ns;

use crate::args::RunArgs;
use crate::compare::Baseline;
use crate::exit::{Exit, print_error, printed, tell};
use crate::pack::{OpenedPack, pack_failure};
use crate::progress::TerminalReporter;
use crate::stop::{self, Cause};
use crate::summary;
use crate::text::quoted;

pub(crate) fn run(args: &RunArgs) -> Exit {
    let mut parameters = BTreeMap::new();
    for (key, value) in &args.parameters {
        if parameters.insert(key.clone(), value.clone()).is_some() {
            print_error(&format!("the parameter `{key}` is given twice"), Some("give each parameter once"));
            return Exit::BadInput;
        }
    }
    if let Some(bytes) = args.memory_limit {
        vcr_input::memory::set_limit(bytes);
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let mut pack = match OpenedPack::open(&args.file) {
        Ok(pack) => pack,
        Err(exit) => return exit,
    };
    let mut options = RunOptions {
        seed: args.seed,
        parameters,
        threads: args.threads.map_or(cores, usize::from),
        max_runs: args.max_runs,
        uncertainty: usize::from(args.uncertainty),
        out: args.out.clone(),
        digests_inputs: args.json || args.pack_on_failure.is_some(),
        keeps_step_digests: args.pack_on_failure.is_some(),
        files: args.files.clone(),
        requests: args.requests.clone(),
        force: args.force,
        ..RunOptions::default()
    };
    // Before the run, which may replace it.
    let baseline = match args.baseline.baseline.as_deref().map(Baseline::load).transpose() {
        Ok(baseline) => baseline,
        Err(message) => {
            print_error(&message, None);
            return Exit::BadInput;
        }
    };
    if let Some(pack) = &mut pack {
        pack.complete(&mut options);
    }
    let settings =
        Settings { parameters: options.parameters.clone(), seed: options.seed, uncertainty: args.uncertainty };
    let script = pack.as_ref().map_or_else(|| args.file.clone(), OpenedPack::script);
    let reporter = Arc::new(TerminalReporter::new(args.quiet));
    // A pack that fails is packed already.
    let pack_failure = |outcome: Result<&Outcome, &ScenarioError>| {
        if let Some(output) = args.pack_on_failure.as_deref().filter(|_| pack.is_none()) {
            pack_failure(&args.file, output, settings, outcome, &reporter.sources());
        }
    };
    let started = Instant::now();
    let outcome = match run_file(&script, options, Arc::clone(&reporter) as _) {
        Ok(outcome) => outcome,
        Err(error) => {
            print_error(&error, error.hint.as_deref());
            if let Some(pack) = &pack {
                pack.compare_error(&error);
            }
            if error.blame == Blame::Fault {
                pack_failure(Err(&error));
            }
            return error.blame.into();
        }
    };
    let stopped = outcome.partial.as_ref().and_then(|_| stop::cause());
    if let Some(cause) = stopped.filter(|_| outcome.runs.is_empty()) {
        tell(format_args!("stopped by {} before any run had begun; nothing was written", cause.name()));
        return cause.exit();
    }
    let written = print(args, &outcome);
    if !args.quiet && written.is_ok() {
        print_closing(args, &outcome, started);
    }
    if let Some(cause) = stopped {
        print_stopped(cause, args, &outcome);
        return printed(written, cause.exit());
    }
    if !outcome.passed && written.is_ok() {
        if pack.is_none() {
            tell(format_args!("reproduce with: {}", command_again(args, &outcome.runs)));
        }
        pack_failure(Ok(&outcome));
    }
    let exit = if outcome.passed { Exit::Passed } else { Exit::CheckFailed };
    let exit = pack.as_ref().map_or(exit, |pack| pack.compare(&outcome, exit));
    match baseline {
        Some(baseline) if written.is_ok() => baseline.compare(args, &outcome.runs, exit),
        _ => printed(written, exit),
    }
}

fn print(args: &RunArgs, outcome: &Outcome) -> std::io::Result<()> {
    let mut out = anstream::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, outcome)?;
        return writeln!(out);
    }
    if args.quiet {
        return summary::write_broken(&mut out, outcome);
    }
    summary::write(&mut out, outcome, args.full)
}

/// What differs from time to time goes to standard error.
fn print_closing(args: &RunArgs, outcome: &Outcome, started: Instant) {
    let virtual_ns: f64 = outcome.runs.iter().map(|run| run.duration_ms * 1e6).sum();
    let wall_ns = started.elapsed().as_nanos() as f64;
    tell(format_args!("{} of virtual time in {}", format_ns(virtual_ns), format_ns(wall_ns)));
    if let Some(folder) = &args.out {
        tell(format_args!("wrote {} to {}", outcome.files.join(", "), folder.display()));
    }
    if let Some(file) = &args.requests {
        tell(format_args!("wrote {}", file.display()));
    }
}

/// How far it came before it was stopped.
fn print_stopped(cause: Cause, args: &RunArgs, outcome: &Outcome) {
    let (cut, whole): (Vec<_>, Vec<_>) = outcome.runs.iter().partition(|run| run.partial);
    let cut: Vec<String> =
        cut.iter().map(|run| format!(", `{}` ended at {}", run.name, format_ns(run.duration_ms * 1e6))).collect();
    let results = match args.out.is_some() || args.requests.is_some() {
        true => "what there is was written, marked partial",
        false => "these results are partial",
    };
    let (by, whole, cut) = (cause.name(), whole.len(), cut.join(""));
    tell(format_args!("stopped by {by}: {whole} run(s) were complete{cut}; {results}"));
}

/// The command that does the same again, to be pasted into a shell.
fn command_again(args: &RunArgs, runs: &[Arc<Report>]) -> String {
    let mut command = format!("vcr run {}", quoted(&args.file.display().to_string()));
    for (key, value) in &args.parameters {
        command.push_str(&format!(" -e {}", quoted(&format!("{key}={value}"))));
    }
    // One seed for all would change runs that the scenario seeds differently.
    if let Some((first, others)) = runs.split_first()
        && others.iter().all(|run| run.seed == first.seed)
    {
        command.push_str(&format!(" --seed {}", first.seed));
    }
    if args.uncertainty > 0 {
        command.push_str(&format!(" --uncertainty {}", args.uncertainty));
    }
    command
}
