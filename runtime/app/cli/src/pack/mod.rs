//! `vcr pack`, `vcr unpack`, `vcr inspect pack`, and packs in `vcr run`.

pub(crate) mod args;
mod make;
mod opened;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use vcr_base::output::Outputs;
use vcr_base::units::{format_bytes, format_ns};
use vcr_pack::{EXTENSION, Manifest, PackError, Settings};
use vcr_scenario::{Blame, Outcome, RunOptions, ScenarioError, SourceFile, run_file};

use crate::exit::{Exit, eprint_line, printed};
use crate::refusal::Refusal;
use crate::terminal::progress::TerminalReporter;
use crate::terminal::style::{BOLD, DIM};
use crate::terminal::text::{counted, printable, quoted};
use args::{InspectPackArgs, PackArgs, UnpackArgs};
use make::{Packed, Redacted};

pub(crate) use opened::{OpenedPack, Verdict};

impl From<PackError> for Refusal {
    fn from(error: PackError) -> Self {
        Self::input(error.to_string())
    }
}

/// Converts an error of reading a pack.
fn of_pack(path: &Path, error: PackError) -> Refusal {
    Refusal::from(error).of(&path.display().to_string())
}

/// The files of several scripts without duplicates. For a folder of tables, the files that any script reads.
pub(crate) fn merged(sources: impl IntoIterator<Item = SourceFile>) -> Vec<SourceFile> {
    let mut all: BTreeMap<(String, PathBuf), SourceFile> = BTreeMap::new();
    for source in sources {
        let key = (source.name.clone(), source.path.clone());
        match all.get_mut(&key).map(|known| &mut known.parts) {
            Some(Some(parts)) => {
                parts.extend(source.parts.into_iter().flatten());
                parts.sort();
                parts.dedup();
            }
            Some(None) => {}
            None => _ = all.insert(key, source),
        }
    }
    all.into_values().collect()
}

/// Makes a pack of a scenario and its input files, without a result. `text` is the script, if it is not in a file.
pub(crate) fn pack_for_sweep(script: &Path, text: Option<&str>, sources: &[SourceFile]) -> Result<Vec<u8>, Refusal> {
    let folder = tempfile::tempdir()
        .map_err(|error| Refusal::input(format!("cannot make a temporary folder for the pack: {error}")))?;
    let path = folder.path().join("scenario.vcr");
    let draft = Outputs::new(false).create(&path)?;
    let packed = Packed { script, text, settings: Settings::default(), is_redacted: false, sources };
    packed.write(Err("it was packed for a sweep, without a result".to_owned()), draft)?;
    fs::read(&path).map_err(|error| Refusal::input(format!("cannot read the pack: {error}")))
}

pub(crate) fn pack(args: &PackArgs) -> Exit {
    make_pack(args).unwrap_or_else(Refusal::print)
}

fn make_pack(args: &PackArgs) -> Result<Exit, Refusal> {
    let output = args.output.clone().unwrap_or_else(|| default_pack(&args.file));
    let mut outputs = Outputs::new(args.force);
    outputs.reads(&args.file)?;
    let draft = outputs.create(&output)?;
    let settings = Settings {
        parameters: args.parameters.iter().cloned().collect(),
        seed: args.seed,
        uncertainty: args.uncertainty.unwrap_or(0),
    };
    let started = Instant::now();
    let (mut outcome, mut sources) = run_once(args, &settings, BTreeMap::new())?;
    let mut redacted = None;
    if args.redact {
        // The pack must have the result of the redacted files, so the scenario runs again.
        let copies = redacted.insert(Redacted::of(&sources)?);
        (outcome, sources) = run_once(args, &settings, copies.files_by_name())?;
    }
    let ran = started.elapsed();
    let packed = Packed { script: &args.file, text: None, settings, is_redacted: args.redact, sources: &sources };
    let manifest = packed.write(outcome.as_ref().map_err(ToString::to_string), draft)?;
    if !args.quiet {
        let bytes = fs::metadata(&output).map_or(0, |file| file.len());
        let (ran, all) = (ran.as_nanos() as f64, started.elapsed().as_nanos() as f64);
        eprint_line(format_args!(
            "packed {} into {} ({}) in {}, after running it in {}",
            counted(manifest.files.len(), "file"),
            output.display(),
            format_bytes(bytes as f64),
            format_ns(all - ran),
            format_ns(ran)
        ));
    }
    Ok(Exit::Passed)
}

/// Executes the run to pack. Errors of the script or its files are not packed but returned.
fn run_once(
    args: &PackArgs,
    settings: &Settings,
    files_by_name: BTreeMap<String, PathBuf>,
) -> Result<(Result<Outcome, ScenarioError>, Vec<SourceFile>), Refusal> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let options = RunOptions {
        seed: settings.seed,
        parameters: settings.parameters.clone(),
        threads: args.threads.map_or(cores, usize::from),
        uncertainty: usize::from(settings.uncertainty),
        files_by_name,
        leaves_recordings_out: true,
        keeps_step_digests: true,
        digests_inputs: true,
        ..RunOptions::default()
    };
    let reporter = Arc::new(TerminalReporter::new(args.quiet));
    let outcome = run_file(&args.file, options, Arc::clone(&reporter) as _);
    match &outcome {
        Err(error) if error.blame != Blame::Fault => return Err(error.clone().into()),
        Ok(outcome) if outcome.partial.is_some() => {
            let exit = crate::stop::cause().map_or(Exit::BadInput, crate::stop::Cause::exit);
            return Err(Refusal { exit, ..Refusal::input("the run was stopped; nothing was packed") });
        }
        _ => {}
    }
    Ok((outcome, reporter.sources()))
}

/// Packs a scenario whose run failed, for `vcr run --pack-on-failure`.
pub(crate) fn pack_failure(
    script: &Path,
    output: &str,
    settings: Settings,
    outcome: Result<&Outcome, &ScenarioError>,
    sources: &[SourceFile],
) {
    let output = if output.is_empty() { default_pack(script) } else { PathBuf::from(output) };
    // Only an existing pack, such as that of an earlier failure, is replaced.
    let mut outputs = Outputs::new(vcr_pack::is_pack(&output));
    let written = outputs.reads(script).and_then(|()| outputs.create(&output)).map_err(Refusal::from);
    let packed = Packed { script, text: None, settings, is_redacted: false, sources };
    match written.and_then(|draft| packed.write(outcome.map_err(ToString::to_string), draft)) {
        Ok(_) => eprint_line(format_args!("packed into {}; run it with: vcr run {0}", output.display())),
        Err(refused) => drop(refused.print()),
    }
}

/// Default name of a scenario's pack.
pub(crate) fn default_pack(script: &Path) -> PathBuf {
    PathBuf::from(script.file_name().unwrap_or(script.as_os_str())).with_extension(EXTENSION)
}

pub(crate) fn unpack(args: &UnpackArgs) -> Exit {
    unpack_into(args).unwrap_or_else(Refusal::print)
}

fn unpack_into(args: &UnpackArgs) -> Result<Exit, Refusal> {
    let folder = args.output.clone().unwrap_or_else(|| {
        let name = args.pack.file_stem().unwrap_or(args.pack.as_os_str());
        if args.pack.extension().is_some() { PathBuf::from(name) } else { PathBuf::from(name).with_extension("d") }
    });
    if folder.exists() {
        let message = format!("`{}` exists", folder.display());
        return Err(Refusal::input(message).hint("name another folder with --output"));
    }
    let failed = |error: io::Error| Refusal::input(format!("cannot write `{}`: {error}", folder.display()));
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(failed)?;
    // The folder is renamed after all checks have passed.
    let draft = tempfile::Builder::new().prefix(".vcr-unpack-").tempdir_in(parent).map_err(failed)?;
    let place = draft.path().join("pack");
    fs::create_dir(&place).map_err(failed)?;
    let manifest = vcr_pack::unpack(&args.pack, &place).map_err(|error| of_pack(&args.pack, error))?;
    fs::rename(&place, &folder).map_err(failed)?;
    let script = folder.join(&manifest.scenario);
    eprint_line(format_args!("unpacked {} into {}", counted(manifest.files.len(), "file"), folder.display()));
    eprint_line(format_args!("run it with: vcr run {}{}", script.display(), options_of(&manifest.settings)));
    let moved = manifest.inputs.iter().filter(|input| input.path.contains("/elsewhere/"));
    for input in moved {
        let place = folder.join(&input.path);
        eprint_line(format_args!(
            "note: `{}` of the script is {}; running the pack itself finds it",
            input.name,
            place.display()
        ));
    }
    Ok(Exit::Passed)
}

/// The settings as options of `vcr run`.
fn options_of(settings: &Settings) -> String {
    let mut text = String::new();
    for (key, value) in &settings.parameters {
        text.push_str(&format!(" -e {}", quoted(&format!("{key}={value}"))));
    }
    if let Some(seed) = settings.seed {
        text.push_str(&format!(" --seed {seed}"));
    }
    if settings.uncertainty > 0 {
        text.push_str(&format!(" --uncertainty {}", settings.uncertainty));
    }
    text
}

pub(crate) fn inspect(args: &InspectPackArgs) -> Exit {
    let manifest = match vcr_pack::verify(&args.pack) {
        Ok(manifest) => manifest,
        Err(error) => return of_pack(&args.pack, error).print(),
    };
    let mut out = anstream::stdout().lock();
    let written = if args.json {
        serde_json::to_writer_pretty(&mut out, &manifest).map_err(io::Error::from).and_then(|()| writeln!(out))
    } else {
        show(&mut out, &manifest)
    };
    printed(written, Exit::Passed)
}

fn show(out: &mut dyn Write, manifest: &Manifest) -> io::Result<()> {
    let redacted = if manifest.redacted { ", redacted" } else { "" };
    let version = printable(&manifest.vcr_version);
    writeln!(out, "\n  {BOLD}{}{BOLD:#}  by vcr {version}{redacted}", printable(&manifest.scenario))?;
    let options = options_of(&manifest.settings);
    if !options.is_empty() {
        writeln!(out, "  options:{}", printable(&options))?;
    }
    let expected = &manifest.expected;
    match (&expected.fingerprint, &expected.error) {
        (_, Some(error)) => writeln!(out, "  expected: the error {}", printable(error))?,
        (Some(fingerprint), None) => {
            let assertions = if expected.passed { "every assertion passed" } else { "an assertion failed" };
            writeln!(out, "  expected: {assertions}; fingerprint {}", printable(fingerprint))?;
        }
        (None, None) => writeln!(out, "  expected: nothing")?,
    }
    for run in &expected.runs {
        let steps: u64 = run.engines.iter().map(|engine| engine.steps).fold(0, u64::saturating_add);
        writeln!(
            out,
            "  run {}: {}, {}",
            printable(&run.name),
            counted(run.engines.len(), "engine"),
            counted(steps, "step")
        )?;
    }
    for input in &manifest.inputs {
        writeln!(
            out,
            "  {} {DIM}{}{DIM:#} {}",
            printable(&input.kind),
            printable(&input.name),
            printable(&input.path)
        )?;
    }
    writeln!(out, "\n  files, with their SHA-256:")?;
    for file in &manifest.files {
        let size = format_bytes(file.bytes as f64);
        writeln!(out, "  {}  {size:>10}  {}", &file.sha256.get(..16).unwrap_or(&file.sha256), printable(&file.path))?;
    }
    Ok(())
}
