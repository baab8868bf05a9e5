//! `vcr guest build`, and the other commands about guests.

pub(crate) mod args;
mod bench;
mod call;
mod check;
pub(crate) mod config;
mod inspect;
mod new;
pub(crate) mod registry;
mod vocabulary;
mod wit;

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use vcr_guest::{GuestModule, Limits};
use vcr_guest_tools::build::{
    BuildError, BuiltGuest, Options, Progress, build, build_workspace, default_out_dir, is_one,
};

pub(crate) use bench::bench_command;
pub(crate) use call::call_command;
pub(crate) use check::check_command;
pub(crate) use inspect::inspect_command;
pub(crate) use new::new_command;
pub(crate) use vocabulary::vocabulary_command;
pub(crate) use wit::wit_command;

use crate::exit::{Exit, eprint_line, print_error, printed};
use args::BuildArgs;

fn build_all(args: &BuildArgs) -> Result<Vec<BuiltGuest>, BuildError> {
    let mut options = Options::from_env()?;
    options.bootstrap |= args.bootstrap;
    // In a project's folder, the default is that project.
    let here = Path::new(".");
    let default = [if !Path::new("guests").exists() && is_one(here) { here.to_owned() } else { "guests".into() }];
    let paths = if args.paths.is_empty() { &default[..] } else { &args.paths[..] };
    let spinner = spinner(args.quiet);
    let mut report = |progress: Progress<'_>| show(&progress, spinner.as_ref(), args.quiet);
    let mut built = Vec::new();
    for path in paths {
        // A folder is either a guest or a workspace of guests.
        if is_one(path) {
            built.push(build_guest(path, args.out.as_deref(), &options, &mut report)?);
        } else {
            let out = args.out.clone().unwrap_or_else(|| path.join("dist"));
            built.extend(build_workspace(path, &out, &options, &mut report)?);
        }
    }
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    Ok(built)
}

/// Builds the guest in a folder into `out`, by default into its own output folder.
pub(crate) fn build_guest(
    path: &Path,
    out: Option<&Path>,
    options: &Options,
    report: &mut dyn FnMut(Progress<'_>),
) -> Result<BuiltGuest, BuildError> {
    let out = out.map_or_else(|| default_out_dir(path), |out| Ok(out.to_owned()))?;
    build(path, &out, options, report)
}

pub(crate) fn build_command(args: &BuildArgs) -> Exit {
    let built = match build_all(args) {
        Ok(built) => built,
        Err(error) => {
            let without_path = "name the folder of a guest: `vcr guest build FOLDER`; `vcr guest new` makes one";
            let hint = error.hint().or_else(|| args.paths.is_empty().then(|| without_path.to_owned()));
            print_error(&error, hint.as_deref());
            return Exit::BadInput;
        }
    };
    // Checks that the host accepts the guest, and caches its compiled code for the first run.
    for guest in &built {
        if !args.quiet {
            eprint_line(format_args!("compiling {} for this machine", guest.component.display()));
        }
        if let Err(error) = GuestModule::load(&guest.component, Limits::default()) {
            print_error(&error, error.hint().as_deref());
            return Exit::BadInput;
        }
    }
    printed(print(args, &built), Exit::Passed)
}

fn print(args: &BuildArgs, built: &[BuiltGuest]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        let rows: Vec<_> = built.iter().map(row).collect();
        return writeln!(out, "{:#}", serde_json::Value::Array(rows));
    }
    for guest in built {
        writeln!(out, "{}  {} bytes  sha256 {}", guest.component.display(), guest.size_bytes, guest.digest)?;
    }
    Ok(())
}

fn row(guest: &BuiltGuest) -> serde_json::Value {
    serde_json::json!({
        "name": guest.name,
        "component": guest.component.display().to_string(),
        "size_bytes": guest.size_bytes,
        "sha256": guest.digest,
        "toolchain": guest.toolchain,
    })
}

fn spinner(quiet: bool) -> Option<indicatif::ProgressBar> {
    if quiet || !std::io::stderr().is_terminal() {
        return None;
    }
    let spinner = indicatif::ProgressBar::new_spinner();
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    Some(spinner)
}

/// Lines of cargo move past on a terminal; elsewhere they are printed as the stages are.
fn show(progress: &Progress<'_>, spinner: Option<&indicatif::ProgressBar>, quiet: bool) {
    match (spinner, progress) {
        (Some(spinner), Progress::Cargo { .. }) => spinner.set_message(progress.to_string()),
        (Some(spinner), _) => spinner.println(progress.to_string()),
        (None, _) if quiet => {}
        (None, _) => eprint_line(format_args!("{progress}")),
    }
}
