//! `cargo xtask dist`: all files of a release, in `target/dist`; and `cargo xtask advisories`:
//! known vulnerabilities of its dependencies.
//!
//! The same commit, toolchain and target give the same bytes: archives have the commit's time and a
//! fixed order, and no file names a folder of the machine. Other tools do their own jobs (objcopy,
//! cargo-about, cargo-cyclonedx); a missing one is named with the command that installs it.

mod advisories;
mod archive;
mod binary;
mod checkout;
mod contents;
mod dependencies;
mod dist;
mod error;
mod provenance;
mod target;
mod tool;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::target::Target;

/// Tasks around a release.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make the files of a release: archive, line tables, SBOM, provenance, checksums.
    Dist(DistArgs),
    /// Check all lock files with cargo-deny against the snapshot of advisories, without a network.
    Advisories(AdvisoriesArgs),
}

/// Options of `cargo xtask advisories`.
#[derive(Debug, Args)]
struct AdvisoriesArgs {
    /// Take the advisories of this file instead of `xtask/advisories/snapshot.md`.
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,

    /// cargo-deny [default: the one in target/tools, else on PATH].
    #[arg(long, value_name = "FILE")]
    deny: Option<PathBuf>,
}

/// Options of `cargo xtask dist`.
#[derive(Debug, Args)]
struct DistArgs {
    /// Target triple [default: the host's]; for glibc with the version that the binary must run with, such
    /// as aarch64-unknown-linux-gnu.2.28. Any but the host's bare triple is built by cargo-zigbuild.
    #[arg(long, value_name = "TRIPLE[.GLIBC]")]
    target: Option<Target>,

    /// Package this binary instead of building one with the profile `dist`.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,

    /// Program of the same version that runs here, if the binary does not: it writes completions
    /// and manual pages. Without it the binary itself is run, by the runner in Cargo's variable
    /// CARGO_TARGET_TRIPLE_RUNNER for the target, if it is set.
    #[arg(long, value_name = "FILE")]
    runnable: Option<PathBuf>,

    /// Take this file for the licences of dependencies instead of running cargo-about, which takes
    /// a minute to read the sources of all crates.
    #[arg(long, value_name = "FILE")]
    licences: Option<PathBuf>,

    /// Folder of the files.
    #[arg(long, value_name = "DIR", default_value = "target/dist")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Dist(args) => {
            dist::dist(&args).map(|files| files.iter().for_each(|file| println!("{}", file.display())))
        }
        Command::Advisories(args) => advisories::advisories(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            if let Some(hint) = error.hint() {
                eprintln!("\nhint: {hint}");
            }
            ExitCode::from(2)
        }
    }
}
