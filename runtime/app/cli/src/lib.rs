//! The commands of `vcr`: argument parsing and printing only.
//!
//! The binary calls [`main`]; the console script of the Python package calls [`command`]. The in-process functions of
//! that package are in [`library`], which prints nothing.

#[cfg(not(all(feature = "live", feature = "serve", feature = "fit", feature = "nixl", feature = "rendezvous")))]
mod absent;
#[cfg(feature = "serve")]
mod announce;
mod args;
mod check;
mod compare;
mod deferred;
mod exit;
#[cfg(feature = "fit")]
mod fit;
mod gate;
mod guest;
mod health;
mod help;
mod inspect;
pub mod library;
mod man;
mod merge;
mod new;
mod pack;
#[cfg(feature = "serve")]
mod page;
mod plan;
#[cfg(feature = "live")]
mod play;
#[cfg(feature = "live")]
mod record;
mod refusal;
mod replay;
mod report;
mod run;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "live")]
mod service;
mod stop;
mod sweep;
mod tables;
mod terminal;
mod upload;
mod values;
mod words;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use args::{Command, GuestCommand, InspectCommand};
pub use exit::Exit;
use inspect::captures;

/// Entry point of the binary.
#[must_use]
pub fn main() -> ExitCode {
    #[cfg(feature = "serve")]
    if let Some(code) = serve::rendering_process() {
        return code;
    }
    command(std::env::args_os().collect()).into()
}

/// Executes a command line, beginning with the program's name. From then on, signals are handled; a second one ends
/// it.
pub fn command(words: Vec<OsString>) -> Exit {
    vcr_base::input::on_notice(|text| exit::eprint_line(format_args!("{text}")));
    #[cfg(feature = "store")]
    vcr_store::Store::install();
    let time = words::time(&words);
    if let Err(error) = stop::watch().and_then(|()| time.map_or(Ok(()), stop::limit)) {
        exit::print_error(&format!("cannot watch for signals: {error}"), None);
        return Exit::BadInput;
    }
    let cli = match words::parsed(words) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            let text = terminal::text::without_parse_messages(error.render().ansi().to_string());
            exit::eprint_line(format_args!("{}", text.trim_end()));
            return Exit::BadInput;
        }
        // `--help` or `--version`.
        Err(error) => error.exit(),
    };
    if let Some(timeout) = cli.timeout.filter(|_| time.is_none())
        && let Err(error) = stop::limit(timeout)
    {
        exit::print_error(&format!("cannot watch for the end of --timeout: {error}"), None);
        return Exit::BadInput;
    }
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Check(args) => check::check(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::New { command } => new::new(&command),
        #[cfg(feature = "live")]
        Command::Play(args) => play::play(&args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::serve(&args),
        #[cfg(not(feature = "serve"))]
        Command::Serve(_) => absent::refused("vcr serve", "serve"),
        Command::Health(args) => health::health(&args),
        #[cfg(feature = "live")]
        Command::Record(args) => record::record(&args),
        #[cfg(not(feature = "live"))]
        Command::Play(_) => absent::refused("vcr play", "live"),
        #[cfg(not(feature = "live"))]
        Command::Record(_) => absent::refused("vcr record", "live"),
        #[cfg(feature = "fit")]
        Command::Fit(args) => fit::fit(&args),
        #[cfg(feature = "fit")]
        Command::Calibrate(args) => fit::calibrate(&args),
        #[cfg(not(feature = "fit"))]
        Command::Calibrate(_) => absent::refused("vcr calibrate", "fit"),
        #[cfg(not(feature = "fit"))]
        Command::Fit(_) => absent::refused("vcr fit", "fit"),
        Command::Pack(args) => pack::pack(&args),
        Command::Unpack(args) => pack::unpack(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::Merge(args) => merge::merge(&args),
        Command::Mirror(args) => gate::mirror::mirror(&args),
        Command::Gate(args) => gate::gate(&args),
        Command::Replay(args) => replay::replay(&args),
        Command::Report(args) => report::report(&args),
        Command::Guest { command } => guest(&command),
        Command::Inspect { command } => inspect(&command),
        Command::Tables { command } => tables::tables(&command),
        Command::Completions { shell } => {
            // Generate into memory, because the generator panics when a write fails.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut args::command(), "vcr", &mut script);
            exit::printed(std::io::stdout().write_all(&script), Exit::Passed)
        }
        Command::Upload(args) => upload::upload(&args),
        Command::Man(args) => man::man(&args),
    }
}

fn guest(command: &GuestCommand) -> Exit {
    match command {
        GuestCommand::New(args) => guest::new_command(args),
        GuestCommand::Build(args) => guest::build_command(args),
        GuestCommand::Inspect(args) => guest::inspect_command(args),
        GuestCommand::Check(args) => guest::check_command(args),
        GuestCommand::Bench(args) => guest::bench_command(args),
        GuestCommand::Call(args) => guest::call_command(args),
        GuestCommand::Wit(args) => guest::wit_command(args),
        GuestCommand::Vocabulary(args) => guest::vocabulary_command(args),
        GuestCommand::Pull(args) => guest::registry::pull(args),
        GuestCommand::Push(args) => guest::registry::push(args),
    }
}

fn inspect(command: &InspectCommand) -> Exit {
    match command {
        InspectCommand::Summarize(args) => captures::summarize(args),
        InspectCommand::Convert(args) => captures::convert(args),
        InspectCommand::Perfetto(args) => captures::perfetto(args),
        InspectCommand::Diff(args) => captures::diff(args),
        InspectCommand::GenDemo(args) => captures::gen_demo(args),
        InspectCommand::Pack(args) => pack::inspect(args),
        InspectCommand::Schema => captures::schema(),
        InspectCommand::Conform(args) => inspect::conform(args),
        InspectCommand::Steps(args) => inspect::steps(args),
        InspectCommand::Pressure(args) => inspect::pressure::pressure(args),
        InspectCommand::Model(args) => inspect::model::model(args),
        InspectCommand::VllmArgs(args) => inspect::vllm_args::vllm_args(args),
        #[cfg(feature = "live")]
        InspectCommand::KvBench(args) => inspect::kv_bench::kv_bench(args),
        #[cfg(not(feature = "live"))]
        InspectCommand::KvBench(_) => absent::refused("vcr inspect kv-bench", "live"),
    }
}
