//! The `vcr` binary: argument parsing and printing, no logic of its own.

mod args;
mod exit;
mod guest;
mod guest_registry;
mod inspect;
mod play;
mod progress;
mod record;
mod replay;
mod run;
mod service;
mod style;
mod summary;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command, GuestCommand, InspectCommand};
use exit::Exit;
use inspect::captures;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let exit = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Play(args) => play::play(&args),
        Command::Replay(args) => replay::replay(&args),
        Command::Record(args) => record::record(&args),
        Command::Guest { command } => guest(&command),
        Command::Inspect { command } => inspect(&command),
        Command::Completions { shell } => {
            // Into memory first: the generator panics when a write fails.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "vcr", &mut script);
            exit::printed(std::io::stdout().write_all(&script), Exit::Passed)
        }
    };
    exit.into()
}

fn guest(command: &GuestCommand) -> Exit {
    match command {
        GuestCommand::New(args) => guest::new_command(args),
        GuestCommand::Build(args) => guest::build_command(args),
        GuestCommand::Inspect(args) => guest::inspect_command(args),
        GuestCommand::Check(args) => guest::check_command(args),
        GuestCommand::Pull(args) => guest_registry::pull(args),
        GuestCommand::Push(args) => guest_registry::push(args),
    }
}

fn inspect(command: &InspectCommand) -> Exit {
    match command {
        InspectCommand::Summarize(args) => captures::summarize(args),
        InspectCommand::Convert(args) => captures::convert(args),
        InspectCommand::Perfetto(args) => captures::perfetto(args),
        InspectCommand::Diff(args) => captures::diff(args),
        InspectCommand::GenDemo(args) => captures::gen_demo(args),
        InspectCommand::Schema => captures::schema(),
        InspectCommand::Conform(args) => inspect::conform(args),
        InspectCommand::Steps(args) => inspect::steps(args),
    }
}
