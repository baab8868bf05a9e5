//! From the words of a command line to a command.

use std::ffi::OsString;

use clap::FromArgMatches;

use crate::args::{self, Cli, Command};
#[cfg(feature = "serve")]
use crate::serve::config_file;
use crate::values;

/// Options that print the version, where nothing else is asked for.
const VERSION: [&str; 2] = ["--version", "-V"];

/// Reads a command line; that of `vcr serve` is completed by the file of `--config`.
pub(crate) fn parsed(words: Vec<OsString>) -> Result<Cli, clap::Error> {
    if let [_, word] = &words[..]
        && VERSION.iter().any(|version| word == version)
    {
        // Installers and scripts ask often, and need no commands declared for that.
        clap::Command::new("vcr").version(env!("CARGO_PKG_VERSION")).try_get_matches_from(&words)?;
    }
    if words.iter().any(|word| word.to_str().is_some_and(|word| word.contains("://"))) {
        // Help, and what is wrong with the words, come before stores are asked.
        values::look(|| args::command().try_get_matches_from(&words))?;
    }
    #[cfg(feature = "serve")]
    let matches = config_file::matches(args::command(), &words);
    #[cfg(not(feature = "serve"))]
    let matches = args::command().try_get_matches_from(&words);
    let mut cli = Cli::from_arg_matches(&matches?)?;
    // Sweeps say the same words again: with other values, or to other processes.
    match &mut cli.command {
        Command::Replay(args) => args.words = words,
        Command::Run(args) => args.words = words,
        _ => {}
    }
    Ok(cli)
}
