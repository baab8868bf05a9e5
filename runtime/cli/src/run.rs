//! `vcr run`.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use vcr_scenario::units::format_ns;
use vcr_scenario::{Outcome, RunOptions, run_file};

use crate::args::RunArgs;
use crate::exit::{Exit, print_error};
use crate::progress::TerminalReporter;
use crate::summary;

pub(crate) fn run(args: &RunArgs) -> Exit {
    let mut parameters = BTreeMap::new();
    for (key, value) in &args.parameters {
        if parameters.insert(key.clone(), value.clone()).is_some() {
            print_error(&format!("the parameter `{key}` is given twice"), Some("give each parameter once"));
            return Exit::BadInput;
        }
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let options = RunOptions {
        seed: args.seed,
        parameters,
        threads: args.threads.map_or(cores, usize::from),
        out: args.out.clone(),
    };
    let started = Instant::now();
    let outcome = match run_file(&args.file, options, Arc::new(TerminalReporter::new(args.quiet))) {
        Ok(outcome) => outcome,
        Err(error) => {
            print_error(&error, error.hint.as_deref());
            return error.blame.into();
        }
    };
    if let Err(error) = print(args, &outcome) {
        // A reader that has seen enough, such as `head`, is no failure.
        if error.kind() != std::io::ErrorKind::BrokenPipe {
            print_error(&format!("cannot print the results: {error}"), None);
            return Exit::BadInput;
        }
    }
    if !args.quiet {
        print_closing(args, &outcome, started);
    }
    if outcome.passed { Exit::Passed } else { Exit::BrokenPromise }
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
    summary::write(&mut out, outcome)
}

/// What differs from time to time goes to standard error.
fn print_closing(args: &RunArgs, outcome: &Outcome, started: Instant) {
    let virtual_ns: f64 = outcome.runs.iter().map(|run| run.duration_ms * 1e6).sum();
    let wall_ns = started.elapsed().as_nanos() as f64;
    anstream::eprintln!("{} of virtual time in {}", format_ns(virtual_ns), format_ns(wall_ns));
    if let Some(folder) = &args.out {
        anstream::eprintln!("wrote report.json, requests.jsonl, steps.jsonl, trace.json to {}", folder.display());
    }
    if !outcome.passed {
        let mut command = format!("vcr run {}", args.file.display());
        for (key, value) in &outcome.parameters {
            if args.parameters.iter().any(|(given, _)| given == key) {
                command.push_str(&format!(" -e {key}={value}"));
            }
        }
        if let Some(run) = outcome.runs.first() {
            command.push_str(&format!(" --seed {}", run.seed));
        }
        anstream::eprintln!("reproduce with: {command}");
    }
}
