//! `vcr run` with one scenario or pack: its output, exit code and files.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use vcr_base::input::remote::named;
use vcr_base::units::{exact_ns, format_ns};
use vcr_cluster::Report;
use vcr_pack::Settings;
use vcr_scenario::{Blame, Judge, Outcome, RunOptions, ScenarioError, run_file};

use crate::args::RunArgs;
use crate::compare::Baseline;
use crate::exit::{Exit, eprint_line, printed};
use crate::pack::{OpenedPack, pack_failure};
use crate::refusal::Refusal;
use crate::run::exit_of;
use crate::stop::{self, Cause};
use crate::terminal::layout::Layout;
use crate::terminal::progress::TerminalReporter;
use crate::terminal::text::{counted, quoted};
use crate::terminal::{checks, step_summary, summary, write_at_once};

/// A failed scenario in the JSON output.
#[derive(Serialize)]
pub(super) struct Failed {
    scenario: String,
    passed: bool,
    error: String,
}

impl Failed {
    pub(super) fn new(file: &Path, error: String) -> Self {
        let scenario = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { scenario, passed: false, error }
    }
}

/// Runs the scenario. Also returns the files that were read.
pub(super) fn single(args: &RunArgs, mut options: RunOptions) -> (Exit, Vec<PathBuf>) {
    let mut pack = match OpenedPack::open(&args.file) {
        Ok(pack) => pack,
        Err(refusal) => return (exit_of(Err(refusal)), Vec::new()),
    };
    // Loaded before the run, which may replace the baseline's files.
    let baseline = match Baseline::load(args) {
        Ok(baseline) => baseline.map(Arc::new),
        Err(message) => return (exit_of(Err(Refusal::input(message))), Vec::new()),
    };
    if let Some(pack) = &mut pack {
        pack.complete(&mut options);
    }
    let pack = pack.map(Arc::new);
    options.judges.extend(pack.clone().map(|pack| pack as Arc<dyn Judge>));
    options.judges.extend(baseline.clone().map(|baseline| baseline as Arc<dyn Judge>));
    let settings = Settings {
        parameters: options.parameters.clone(),
        seed: options.seed,
        uncertainty: args.uncertainty.unwrap_or(0),
    };
    let script = pack.as_ref().map_or_else(|| args.file.clone(), |pack| pack.script());
    let reporter = Arc::new(TerminalReporter::new(args.quiet));
    // A failing pack need not be packed again.
    let pack_failure = |outcome: Result<&Outcome, &ScenarioError>| {
        if let Some(output) = args.pack_on_failure.as_deref().filter(|_| pack.is_none()) {
            pack_failure(&args.file, output, settings.clone(), outcome, &reporter.sources());
        }
    };
    let started = Instant::now();
    match run_file(&script, options, Arc::clone(&reporter) as _) {
        Ok(outcome) => {
            let mut exit = present(args, &outcome, started, || pack_failure(Ok(&outcome)));
            if let Some(pack) = pack.filter(|_| outcome.partial.is_none()) {
                pack.compare(&outcome).print();
            }
            if let Some(baseline) = baseline {
                exit = baseline.print(args, exit);
            }
            (exit, outcome.files_read)
        }
        Err(error) => {
            if let Some(pack) = &pack {
                pack.compare_error(&error).print();
            }
            step_summary::append_error(&script, &error);
            if error.blame == Blame::Fault {
                pack_failure(Err(&error));
            }
            let text = error.to_string();
            let exit = exit_of(Err(Refusal::from(error)));
            if !args.json {
                return (exit, Vec::new());
            }
            let written = write_at_once(|out| {
                serde_json::to_writer_pretty(&mut *out, &Failed::new(&args.file, text))?;
                writeln!(out)
            });
            (printed(written, exit), Vec::new())
        }
    }
}

/// Prints an outcome and returns the exit code.
fn present(args: &RunArgs, outcome: &Outcome, started: Instant, on_failure: impl FnOnce()) -> Exit {
    let stopped = outcome.partial.as_ref().and_then(|_| stop::cause());
    if let Some(cause) = stopped.filter(|_| outcome.runs.is_empty()) {
        eprint_line(format_args!("stopped by {} before any run had begun; nothing was written", cause.name()));
        return cause.exit();
    }
    let written = print(args, outcome);
    if !args.quiet && written.is_ok() {
        print_closing(args, outcome, started);
    }
    step_summary::append(outcome);
    if let Some(cause) = stopped {
        print_stopped(cause, args, outcome);
        return printed(written, cause.exit());
    }
    if !outcome.passed && written.is_ok() {
        eprint_line(format_args!(
            "reproduce with: {}",
            command_again(args, &args.file, &args.parameters, &outcome.runs)
        ));
        on_failure();
    }
    printed(written, if outcome.passed { Exit::Passed } else { Exit::CheckFailed })
}

fn print(args: &RunArgs, outcome: &Outcome) -> std::io::Result<()> {
    write_at_once(|out| {
        if args.json {
            serde_json::to_writer_pretty(&mut *out, outcome)?;
            return writeln!(out);
        }
        if args.quiet {
            return checks::write_broken(out, outcome, Layout::of_stdout(args.full).width);
        }
        summary::write(out, outcome, Layout::of_stdout(args.full))
    })
}

/// Prints times to standard error, because they differ between runs.
fn print_closing(args: &RunArgs, outcome: &Outcome, started: Instant) {
    let is_virtual = |run: &&Arc<Report>| run.target.is_none();
    let virtual_ns: f64 = outcome.runs.iter().filter(is_virtual).map(|run| run.duration_ms * 1e6).sum();
    let wall_ns = started.elapsed().as_nanos() as f64;
    if outcome.runs.iter().all(|run| run.target.is_some()) {
        eprint_line(format_args!("measured in {}", format_ns(wall_ns)));
    } else {
        eprint_line(format_args!("{} of virtual time in {}", format_ns(virtual_ns), format_ns(wall_ns)));
    }
    if let Some(folder) = &args.out {
        eprint_line(format_args!("wrote {} to {}", outcome.files.join(", "), folder.display()));
    }
    if let Some(file) = &args.requests {
        eprint_line(format_args!("wrote {}", file.display()));
    }
}

/// Prints what was done before a stop.
fn print_stopped(cause: Cause, args: &RunArgs, outcome: &Outcome) {
    let (cut, whole): (Vec<_>, Vec<_>) = outcome.runs.iter().partition(|run| run.partial);
    let cut: Vec<String> =
        cut.iter().map(|run| format!(", `{}` ended at {}", run.name, format_ns(run.duration_ms * 1e6))).collect();
    let results = match args.out.is_some() || args.requests.is_some() {
        true => "results so far were written, marked partial",
        false => "these results are partial",
    };
    let (by, whole, cut) = (cause.name(), whole.len(), cut.join(""));
    let (whole, were) = (counted(whole, "run"), if whole == 1 { "was" } else { "were" });
    eprint_line(format_args!("stopped by {by}: {whole} {were} complete{cut}; {results}"));
}

/// The command that repeats the execution of a file, quoted for a shell.
pub(super) fn command_again(
    args: &RunArgs,
    file: &Path,
    parameters: &[(String, String)],
    runs: &[Arc<Report>],
) -> String {
    let mut command = format!("vcr run {}", quoted(&named(file).display().to_string()));
    for (key, value) in parameters {
        command.push_str(&format!(" -e {}", quoted(&format!("{key}={value}"))));
    }
    // `--seed` sets one seed for all runs, which is wrong if the scenario uses several.
    if let Some((first, others)) = runs.split_first()
        && others.iter().all(|run| run.seed == first.seed)
    {
        command.push_str(&format!(" --seed {}", first.seed));
    }
    if let Some(target) = &args.target {
        command.push_str(&format!(" --target {}", quoted(target)));
    }
    if let Some(max_ns) = args.max_sim_time {
        command.push_str(&format!(" --max-sim-time {}", exact_ns(max_ns)));
    }
    if let Some(draws) = args.uncertainty {
        command.push_str(&format!(" --uncertainty {draws}"));
    }
    if let Some(baseline) = &args.baseline.baseline {
        command.push_str(&format!(" --baseline {}", quoted(&named(baseline).display().to_string())));
    }
    for limit in &args.baseline.max_regression {
        command.push_str(&format!(" --max-regression {}", quoted(&limit.to_string())));
    }
    command
}
