//! `vcr gate`: promote, hold or roll back.

pub(crate) mod args;
pub(crate) mod mirror;
mod show;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::num::NonZeroUsize;
use std::path::Path;

use vcr_base::input::MAX_CONFIG_BYTES;
use vcr_base::output::{OutputFolder, Outputs};
use vcr_gate::{
    Decision, GateError, GateOptions, Input, InputPart, Inputs, MirrorOptions, Mirrored, Policy, Report, Side, Source,
};

use crate::exit::{Exit, printed};
use crate::refusal::Refusal;
use crate::terminal::step_summary;
use args::GateArgs;

const FILES: [&str; 4] = ["gate.json", "gate.html", "junit.xml", "summary.md"];

impl From<Decision> for Exit {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Promote => Self::Passed,
            Decision::Hold => Self::Held,
            Decision::Rollback => Self::RolledBack,
        }
    }
}

pub(crate) fn gate(args: &GateArgs) -> Exit {
    match run(args) {
        Ok(exit) => exit,
        Err(refusal) => refusal.print(),
    }
}

impl From<GateError> for Refusal {
    fn from(error: GateError) -> Self {
        Self::input(error.to_string())
    }
}

fn run(args: &GateArgs) -> Result<Exit, Refusal> {
    let policy = policy(args)?;
    let mut out = anstream::stdout().lock();
    if args.print_policy {
        return Ok(printed(out.write_all(policy.to_toml().as_bytes()), Exit::Passed));
    }
    let sides = [&args.baseline, &args.candidate].map(|texts| inputs(texts));
    let folder = args.out.as_deref().map(|path| folder(args, path, &sides)).transpose()?;
    let report = report(args, &policy, &sides)?;
    if let Some(folder) = folder {
        write_files(folder, &report)?;
    }
    step_summary::append_with(|summary| report.write_summary(summary));
    let exit = Exit::from(report.judgement.decision);
    let written = if args.json { report.write_json(&mut out) } else { show::write(&mut out, &report) };
    Ok(printed(written, exit))
}

fn policy(args: &GateArgs) -> Result<Policy, Refusal> {
    let policy = match &args.policy {
        None => Policy::default(),
        Some(path) => {
            let name = path.display().to_string();
            let text = vcr_base::input::read_text(path, MAX_CONFIG_BYTES)
                .map_err(|error| Refusal::input(format!("cannot read `{name}`: {error}")))?;
            Policy::parse(&text, &name).map_err(Refusal::input)?
        }
    };
    Ok(match args.alpha {
        Some(alpha) => policy.with_alpha(alpha).map_err(Refusal::input)?,
        None => policy,
    })
}

fn inputs(texts: &[String]) -> Vec<Input> {
    texts.iter().map(|text| Input::parse(text)).collect()
}

fn report(args: &GateArgs, policy: &Policy, [before, after]: &[Vec<Input>; 2]) -> Result<Report, Refusal> {
    let options = [&args.set_baseline, &args.set_candidate].map(|set| args.read.options(set));
    let ((baseline, of_baseline), (candidate, of_candidate)) = load([before, after], &options)?;
    let all = before.iter().zip(&of_baseline).chain(after.iter().zip(&of_candidate));
    all.for_each(|(input, mirrored)| mirror::warn_of_doubt(input, mirrored));
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = args.threads.and_then(|threads| NonZeroUsize::new(threads.into())).unwrap_or(cores);
    let judgement = vcr_gate::judge(policy, &baseline, &candidate, &GateOptions { join: args.join, threads })?;
    let source = |side, inputs, options| Source { side, inputs, options };
    let triage = vcr_gate::triage(
        policy,
        &judgement,
        source(&baseline, before, &options[0]),
        source(&candidate, after, &options[1]),
    )?;
    let parts = |inputs: &[Input], mirrored: &[Mirrored]| {
        inputs.iter().zip(mirrored).map(|(input, mirrored)| InputPart::new(input, mirrored)).collect()
    };
    let inputs = Inputs { baseline: parts(before, &of_baseline), candidate: parts(after, &of_candidate) };
    Ok(Report::new(policy, inputs, judgement, triage))
}

type Loaded = (Side, Vec<Mirrored>);

/// Reads both sides in parallel. If both fail, the baseline's error is returned.
fn load([before, after]: [&[Input]; 2], options: &[MirrorOptions; 2]) -> Result<(Loaded, Loaded), GateError> {
    let (baseline, candidate) = std::thread::scope(|scope| {
        let other = scope.spawn(|| vcr_gate::load(after, &options[1]));
        let baseline = vcr_gate::load(before, &options[0]);
        (baseline, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    Ok((baseline?, candidate?))
}

/// Opens the folder of `--out` before anything is read.
fn folder(args: &GateArgs, path: &Path, sides: &[Vec<Input>; 2]) -> Result<OutputFolder, Refusal> {
    let mut rule = Outputs::new(args.force);
    let policy = args.policy.iter();
    for input in sides.iter().flatten().map(|input| &input.path).chain(policy) {
        rule.reads(input)?;
    }
    Ok(rule.folder(path, &FILES)?)
}

fn write_files(mut folder: OutputFolder, report: &Report) -> Result<(), Refusal> {
    let drafts = folder.drafts()?.to_owned();
    let mut made = Vec::new();
    for name in FILES {
        let draft = drafts.join(name);
        let written = File::create(&draft).and_then(|file| write_file(&mut BufWriter::new(file), name, report));
        written.map_err(|error| {
            Refusal::input(format!("cannot write `{}`: {error}", folder.path().join(name).display()))
        })?;
        made.push((name, draft));
    }
    Ok(folder.commit(&made)?)
}

fn write_file(out: &mut BufWriter<File>, name: &str, report: &Report) -> io::Result<()> {
    match name {
        "gate.json" => report.write_json(out)?,
        "gate.html" => report.write_html(out)?,
        "junit.xml" => report.write_junit(out)?,
        _ => report.write_summary(out)?,
    }
    out.flush()
}
