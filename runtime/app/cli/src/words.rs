//! Parses command lines.

use std::ffi::OsString;
use std::time::Duration;

use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue};
use vcr_base::suggestion::nearest;

use crate::args::{self, Cli, Command};
#[cfg(feature = "serve")]
use crate::serve::config_file;
use crate::values;

/// Options that print the version, if they are the only word.
const VERSION: [&str; 2] = ["--version", "-V"];

/// Finds the time limit in the words before they are parsed, because it also limits parsing, which may fetch files.
/// [`parsed`] reports invalid limits.
pub(crate) fn time(words: &[OsString]) -> Option<Duration> {
    let mut texts = words.iter().map_while(|word| word.to_str()).take_while(|word| *word != "--");
    let rest = |word: &str| {
        word.strip_prefix("--timeout").filter(|rest| rest.is_empty() || rest.starts_with('=')).map(str::to_owned)
    };
    let rest = texts.by_ref().find_map(rest)?;
    let value = rest.strip_prefix('=').or_else(|| texts.next())?;
    values::timeout(value).ok()
}

/// Parses a command line. For `vcr serve --config FILE`, includes the options in the file.
pub(crate) fn parsed(words: Vec<OsString>) -> Result<Cli, clap::Error> {
    if let [_, word] = &words[..]
        && VERSION.iter().any(|version| word == version)
    {
        // Installers and scripts ask for the version often, so no commands are declared for it.
        clap::Command::new("vcr").version(env!("CARGO_PKG_VERSION")).try_get_matches_from(&words)?;
    }
    if words.iter().any(|word| word.to_str().is_some_and(|word| word.contains("://"))) {
        // Handle help and invalid words before stores are queried.
        values::look(|| args::command().try_get_matches_from(&words))?;
    }
    #[cfg(feature = "serve")]
    let matches = config_file::matches(args::command(), &words);
    #[cfg(not(feature = "serve"))]
    let matches = args::command().try_get_matches_from(&words);
    let matches = matches.map_err(|error| with_suggestion(error, &words))?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    // Sweeps repeat the words with other values or in other processes.
    match &mut cli.command {
        Command::Replay(args) => args.words = words,
        Command::Run(args) => args.words = words,
        _ => {}
    }
    Ok(cli)
}

/// Adds a suggestion: the command closest to an unknown one, or the command that reads the named file. clap suggests
/// nothing for short words with swapped letters.
fn with_suggestion(error: clap::Error, words: &[OsString]) -> clap::Error {
    let mut error = with_forms(error, words);
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    if error.get(ContextKind::SuggestedSubcommand).is_some() {
        return error;
    }
    let command = command_of(words.iter().take_while(|word| *word != unknown.as_str()));
    let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    if let Some(found) = nearest(unknown, names) {
        let found = ContextValue::Strings(vec![found.to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, found);
    } else if command.get_name() == "inspect" && unknown.contains(['.', '/']) {
        let summarize = format!("a file needs a command, such as `vcr inspect summarize {unknown}`");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![summarize.into()]));
    }
    error
}

/// For an option given under two of its names, shows both names.
fn with_forms(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let (Some(ContextValue::String(option)), Some(prior)) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::PriorArg))
    else {
        return error;
    };
    if *prior != ContextValue::String(option.clone()) {
        return error;
    }
    let command = command_of(words.iter());
    let Some(argument) = command.get_arguments().find(|argument| argument.to_string() == *option) else { return error };
    let names = argument.get_long_and_visible_aliases().into_iter().flatten();
    let names: Vec<&str> = names.chain(argument.get_all_aliases().into_iter().flatten()).collect();
    let mut given: Vec<&str> = Vec::new();
    for word in words.iter().filter_map(|word| word.to_str()?.strip_prefix("--")) {
        let word = word.split_once('=').map_or(word, |(name, _)| name);
        if names.contains(&word) && !given.contains(&word) {
            given.push(word);
        }
    }
    if let [first, second, ..] = given[..] {
        error.insert(ContextKind::InvalidArg, ContextValue::String(format!("--{first}")));
        error.insert(ContextKind::PriorArg, ContextValue::String(format!("--{second}")));
    }
    error
}

/// The command that the words select, with its options.
fn command_of<'a>(words: impl Iterator<Item = &'a OsString>) -> clap::Command {
    let mut command = args::command();
    for word in words.skip(1).filter_map(|word| word.to_str()) {
        if let Some(found) = command.find_subcommand(word) {
            command = found.clone();
        }
    }
    command.build();
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_command_is_known_before_its_words_are_read() {
        let time = |line: &str| time(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in ["vcr --timeout 5s run a", "vcr run a --timeout=5s", "vcr run --timeout-x 1s --timeout 5s --seed x"]
        {
            assert_eq!(time(line), Some(Duration::from_secs(5)), "{line}");
        }
        for line in ["vcr run a", "vcr run --timeout", "vcr run --timeout soon", "vcr run -- --timeout 5s"] {
            assert_eq!(time(line), None, "{line}");
        }
    }

    #[test]
    fn a_mistyped_command_has_a_suggestion() {
        let said = |words: &[&str]| {
            let words = std::iter::once("vcr").chain(words.iter().copied()).map(OsString::from).collect();
            let Err(error) = parsed(words) else { panic!("there is no such command") };
            error.render().to_string()
        };
        for (words, found) in [
            (&["rnu", "x.rhai"][..], "run"),
            (&["chekc"], "check"),
            (&["inspect", "stesp"], "steps"),
            (&["--timeout", "5s", "gaet"], "gate"),
            (&["guest", "bulid"], "build"),
        ] {
            let text = said(words);
            assert!(text.contains("tip: ") && text.contains(&format!("'{found}'")), "{words:?}: {text}");
        }
        assert!(!said(&["xylophone"]).contains("tip: a similar"));
        let text = said(&["inspect", "day.jsonl.zst"]);
        assert!(text.contains("such as `vcr inspect summarize day.jsonl.zst`"), "{text}");
    }
}
