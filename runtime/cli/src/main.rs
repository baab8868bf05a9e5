//! The `vcr` binary: argument parsing and printing, no logic of its own.

mod args;
mod exit;
mod guest;
mod progress;
mod run;
mod summary;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command, GuestCommand};
use exit::Exit;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let exit = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Guest { command: GuestCommand::Build(args) } => guest::build_command(&args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "vcr", &mut std::io::stdout());
            Exit::Passed
        }
    };
    exit.into()
}
