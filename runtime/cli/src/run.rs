//! `vcr run`.

pub(crate) mod args;
mod grid;
mod many;
mod measured;
mod points;
mod repeated;
mod search;
pub(crate) mod searches;
mod statistics;
mod sweep;
mod watch;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use vcr_cluster::{Report, TargetDriver};
use vcr_scenario::{Outcome, RunOptions, expression, run_file};
use vcr_units::format_ns;

use crate::args::RunArgs;
use crate::exit::{Exit, print_error, printed, tell};
use crate::progress::TerminalReporter;
use crate::refusal::Refusal;
use crate::stop::{self, Cause};
use crate::summary;

pub(crate) fn run(args: &RunArgs) -> Exit {
    let options = match options(args) {
        Ok(options) => options,
        Err(refusal) => return exit_of(Err(refusal)),
    };
    if let Some(bytes) = args.memory_limit {
        vcr_input::memory::set_limit(bytes);
    }
    if !args.several.watch {
        return run_once(args, &options).0;
    }
    let files: Vec<PathBuf> = std::iter::once(&args.file).chain(&args.several.more_files).cloned().collect();
    watch::watch(&files, || run_once(args, &options))
}

/// What the command line says of every execution.
fn options(args: &RunArgs) -> Result<RunOptions, Refusal> {
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
        uncertainty: usize::from(args.uncertainty),
        target,
        targets: targets(),
        out: args.out.clone(),
        digests_inputs: args.json,
        files: args.files.clone(),
        requests: args.requests.clone(),
        force: args.force,
        ..RunOptions::default()
    })
}

/// Answers what the command line asks, once; gives the files that were read, too.
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
    let started = Instant::now();
    match run_file(&args.file, options, Arc::new(TerminalReporter::new(args.quiet))) {
        Ok(outcome) => {
            let files = outcome.files_read.clone();
            (present(args, &outcome, started), files)
        }
        Err(error) => (exit_of(Err(Refusal::from(error))), Vec::new()),
    }
}

/// Prints an outcome; gives the exit code that it leads to.
fn present(args: &RunArgs, outcome: &Outcome, started: Instant) -> Exit {
    let stopped = outcome.partial.as_ref().and_then(|_| stop::cause());
    if let Some(cause) = stopped.filter(|_| outcome.runs.is_empty()) {
        tell(format_args!("stopped by {} before any run had begun; nothing was written", cause.name()));
        return cause.exit();
    }
    let written = print(args, outcome);
    if !args.quiet && written.is_ok() {
        print_closing(args, outcome, started);
    }
    if let Some(cause) = stopped {
        print_stopped(cause, args, outcome);
        return printed(written, cause.exit());
    }
    if !outcome.passed && written.is_ok() {
        tell(format_args!("reproduce with: {}", command_again(args, &outcome.runs)));
    }
    printed(written, if outcome.passed { Exit::Passed } else { Exit::CheckFailed })
}

fn exit_of(done: Result<Exit, Refusal>) -> Exit {
    done.unwrap_or_else(|refusal| {
        print_error(&refusal.message, refusal.hint.as_deref());
        refusal.exit
    })
}

/// What carries out runs in real time, in builds that can.
fn targets() -> Option<Arc<dyn TargetDriver>> {
    #[cfg(feature = "target")]
    let targets = Some(Arc::new(vcr_target::Targets) as Arc<dyn TargetDriver>);
    #[cfg(not(feature = "target"))]
    let targets = None;
    targets
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
    let is_virtual = |run: &&Arc<Report>| run.target.is_none();
    let virtual_ns: f64 = outcome.runs.iter().filter(is_virtual).map(|run| run.duration_ms * 1e6).sum();
    let wall_ns = started.elapsed().as_nanos() as f64;
    if outcome.runs.iter().all(|run| run.target.is_some()) {
        tell(format_args!("measured in {}", format_ns(wall_ns)));
    } else {
        tell(format_args!("{} of virtual time in {}", format_ns(virtual_ns), format_ns(wall_ns)));
    }
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
    if let Some(target) = &args.target {
        command.push_str(&format!(" --target {}", quoted(target)));
    }
    if args.uncertainty > 0 {
        command.push_str(&format!(" --uncertainty {}", args.uncertainty));
    }
    command
}

/// A word as a POSIX shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(quoted("scenarios/pd_burst.rhai"), "scenarios/pd_burst.rhai");
        assert_eq!(quoted("name=two words"), "'name=two words'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
