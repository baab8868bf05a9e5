//! `cargo xtask dist`: everything that a release consists of, in `target/dist`.
//!
//! The same commit, toolchain and target give the same bytes: archives have the commit's time and
//! an order of their own, and no file names a folder of the machine. Other people's tools do what
//! they are made for (objcopy, cargo-about, cargo-cyclonedx); one that is missing is named with
//! the command that installs it.

mod archive;
mod binary;
mod checkout;
mod contents;
mod dependencies;
mod dist;
mod error;
mod provenance;
mod tool;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

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
}

/// Options of `cargo xtask dist`.
#[derive(Debug, Args)]
struct DistArgs {
    /// Target triple [default: the host's].
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,

    /// Package this binary in place of building one with the profile `dist`.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,

    /// Program of the same version that runs here, where the binary does not: it writes completions
    /// and manual pages.
    #[arg(long, value_name = "FILE")]
    runnable: Option<PathBuf>,

    /// Take this file for the licences of dependencies in place of running cargo-about, which takes a
    /// minute to read the sources of all crates.
    #[arg(long, value_name = "FILE")]
    licences: Option<PathBuf>,

    /// Folder of the files.
    #[arg(long, value_name = "DIR", default_value = "target/dist")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let Command::Dist(args) = Cli::parse().command;
    match dist::dist(&args) {
        Ok(files) => {
            files.iter().for_each(|file| println!("{}", file.display()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            if let Some(hint) = error.hint() {
                eprintln!("\nhint: {hint}");
            }
            ExitCode::from(2)
        }
    }
}
