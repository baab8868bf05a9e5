//! `--replay-mode online`: replays in real time, on live engines in this process.

use vcr_cluster::observe::Observer;
use vcr_cluster::{Report, RunConfig, Target, TargetError};
use vcr_scenario::{Blame, Reporter};

use super::args::ReplayArgs;
use crate::refusal::Refusal;

/// Refuses options that only work in virtual time.
pub(super) fn refuse(args: &ReplayArgs, problem: &mut dyn FnMut(&str)) {
    for (given, name, why) in [
        (!args.sweep.sweeps.is_empty(), "--sweep", "its runs would be each other's load"),
        (args.output.capacity, "--capacity", "it is counted in virtual time"),
        (
            args.output.telemetry.is_some(),
            "--telemetry",
            "it is in virtual time; live engines have `vcr play`'s metrics",
        ),
        (args.profile.lanes.is_some(), "--lanes", "lanes are simulated in virtual time; use --replay-concurrency"),
        (args.run.threads.is_some(), "--threads", "engines are threads of their own"),
    ] {
        if given {
            problem(&format!("{name} cannot be combined with --replay-mode online: {why}"));
        }
    }
}

/// Executes a run on live engines and measures it.
pub(super) fn run(config: RunConfig, reporter: &dyn Reporter, observer: &mut dyn Observer) -> Result<Report, Refusal> {
    let Some(driver) = crate::run::targets() else {
        let refusal = Refusal::input("this build of vcr lacks the feature `target`, which --replay-mode online needs");
        return Err(refusal.hint("build it with `cargo build --release --features full`"));
    };
    let report = driver.run(&Target::Live, config, observer).map_err(refusal)?;
    for note in report.target.iter().flat_map(|target| &target.notes) {
        reporter.warn(note);
    }
    Ok(report)
}

fn refusal(error: TargetError) -> Refusal {
    let (blame, hint) = match &error {
        TargetError::Unusable { hint, .. } => (Blame::Input, hint.clone()),
        TargetError::Failed(_) => (Blame::Fault, None),
        TargetError::Run(error) => {
            let (blame, hint) = Blame::of(error);
            (blame, hint.map(str::to_owned))
        }
    };
    Refusal { exit: blame.into(), hint, ..Refusal::input(error.to_string()) }
}
