//! `vcr serve --config`: options from files, and the origin of each value.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use vcr_frontend::llm_d::Translation;
use vcr_frontend::options_file::{self, Setting};

use super::operations::llm_d_config;
use super::vllm_flags::normalized;
use crate::exit::{Exit, printed};

/// The config files, with the ids of the options that each has set.
static FROM_FILES: std::sync::OnceLock<Vec<FromFile>> = std::sync::OnceLock::new();

/// The words of the command line.
static LINE: std::sync::OnceLock<Vec<OsString>> = std::sync::OnceLock::new();

/// The translated config of llm-d-inference-sim.
static TRANSLATION: std::sync::OnceLock<Translation> = std::sync::OnceLock::new();

/// A file, and the ids of the options that it has set.
type FromFile = (String, Vec<String>);

/// Options whose values must not be shown.
const SECRETS: &[&str] = &["api_key", "tenant_key"];

/// Parses the command line. For `vcr serve --config FILE`, the file sets options that are not on the command line.
pub(crate) fn matches(command: Command, line: &[OsString]) -> Result<ArgMatches, clap::Error> {
    if !line.iter().any(|word| word == "serve") {
        return command.try_get_matches_from(line);
    }
    let normalized = normalized(line);
    let line = normalized.as_slice();
    let matches = command.clone().try_get_matches_from(line)?;
    let Some(("serve", serve)) = matches.subcommand() else { return Ok(matches) };
    // A process has only one server.
    _ = LINE.set(line.to_vec());
    let (own, peers) = (path_of(serve, "config"), path_of(serve, "llm_d_config"));
    if own.is_none() && peers.is_none() {
        return Ok(matches);
    }
    let mut known = command.clone();
    known.build();
    let subcommand = known.find_subcommand("serve").cloned().unwrap_or_default();
    let refused = |option: &str, path: &Path, reason: String| {
        let text = format!("{option} {}: {reason}\n", path.display());
        clap::Error::raw(ErrorKind::ValueValidation, text).with_cmd(&command)
    };
    let mut further = Vec::new();
    let mut from_files: Vec<FromFile> = Vec::new();
    if let Some(path) = own {
        let added = read(path).and_then(|values| arguments(&values, &subcommand, serve));
        let added = added.map_err(|reason| refused("--config", path, reason))?;
        let ids = added.iter().map(|(id, _)| id.clone()).collect();
        from_files.push((path.display().to_string(), ids));
        further.extend(added.into_iter().flat_map(|(_, words)| words));
    }
    if let Some(path) = peers {
        let translation = llm_d_config(path).map_err(|reason| refused("--llm-d-config", path, reason))?;
        let given = from_files.iter().flat_map(|(_, ids)| ids.iter().map(String::as_str)).collect::<Vec<_>>();
        let added = translated(&translation.options, &subcommand, serve, &given);
        let (ids, words): (Vec<String>, Vec<OsString>) = added.into_iter().unzip();
        from_files.push((path.display().to_string(), ids));
        further.extend(words);
        _ = TRANSLATION.set(translation);
    }
    // A process parses only one command line.
    _ = FROM_FILES.set(from_files);
    command.try_get_matches_from(line.iter().cloned().chain(further))
}

fn path_of<'a>(serve: &'a ArgMatches, id: &str) -> Option<&'a Path> {
    serve.get_one::<std::path::PathBuf>(id).map(std::path::PathBuf::as_path)
}

/// The ids and words of the translated options that are set neither on the command line, nor in the environment, nor in
/// the other file, which sets `in_file`.
fn translated(
    options: &[(&'static str, Option<String>)],
    serve: &Command,
    given: &ArgMatches,
    in_file: &[&str],
) -> Vec<(String, OsString)> {
    // The parser reports unknown options.
    let id_of = |option: &str| {
        let arg = serve.get_arguments().find(|arg| is_named(arg, option.trim_start_matches("--")));
        arg.map_or(option, |arg| arg.get_id().as_str()).to_owned()
    };
    let is_free = |id: &str| {
        let source = given.try_contains_id(id).ok().and_then(|_| given.value_source(id));
        !in_file.contains(&id) && !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let word = |(option, value): &(&str, Option<String>)| match value {
        Some(value) => format!("{option}={value}").into(),
        None => (*option).into(),
    };
    let with_id = |option: &(&'static str, Option<String>)| (id_of(option.0), word(option));
    options.iter().map(with_id).filter(|(id, _)| is_free(id)).collect()
}

/// Logs the settings of a llm-d-inference-sim config that are ignored.
pub(crate) fn log_translation() {
    if let Some(translation) = TRANSLATION.get() {
        for setting in &translation.ignored {
            tracing::info!("--llm-d-config: no effect of {setting}");
        }
        for setting in &translation.missing {
            tracing::warn!("--llm-d-config: cannot honour {setting}");
        }
    }
}

fn read(path: &Path) -> Result<BTreeMap<String, Setting>, String> {
    let text =
        vcr_base::input::read_yaml(path, vcr_base::input::MAX_CONFIG_BYTES).map_err(|error| error.to_string())?;
    options_file::parse(&text)
}

/// The words of options that neither flags nor the environment set, with option ids.
fn arguments(
    values: &BTreeMap<String, Setting>,
    serve: &Command,
    given: &ArgMatches,
) -> Result<Vec<(String, Vec<OsString>)>, String> {
    let mut added = Vec::new();
    for (name, value) in values {
        let flag = name.replace('_', "-");
        let arg = serve.get_arguments().find(|arg| is_named(arg, &flag));
        let arg = arg.filter(|arg| {
            !matches!(arg.get_id().as_str(), "config" | "llm_d_config" | "show_config" | "help" | "help_all")
        });
        let arg = arg.ok_or_else(|| format!("unknown option `{name}`: expected the name of an option of vcr serve"))?;
        let id = arg.get_id().as_str();
        let source = given.try_contains_id(id).ok().and_then(|_| given.value_source(id));
        if matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            continue;
        }
        let words =
            words(arg, &flag, value).map_err(|expected| format!("invalid value of `{name}`: expected {expected}"))?;
        added.push((id.to_owned(), words));
    }
    Ok(added)
}

fn is_named(arg: &Arg, flag: &str) -> bool {
    let aliases = arg.get_all_aliases().unwrap_or_default();
    arg.get_long() == Some(flag) || aliases.contains(&flag) || (arg.is_positional() && arg.get_id() == flag)
}

fn words(arg: &Arg, flag: &str, value: &Setting) -> Result<Vec<OsString>, &'static str> {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return match value {
            Setting::Bool(true) => Ok(vec![format!("--{flag}").into()]),
            Setting::Bool(false) | Setting::Unset => Ok(Vec::new()),
            _ => Err("true or false"),
        };
    }
    let one = |value: &Setting| -> Result<OsString, &'static str> {
        let text = value.word().ok_or("a text, a number, a map, or a list of them")?;
        Ok(if arg.is_positional() { text.into() } else { format!("--{flag}={text}").into() })
    };
    match value {
        Setting::Unset => Ok(Vec::new()),
        Setting::List(values) if takes_several(arg) => values.iter().map(one).collect(),
        Setting::List(_) => Err("one value"),
        value => Ok(vec![one(value)?]),
    }
}

fn takes_several(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append) || arg.get_value_delimiter().is_some()
}

/// Prints every option with its value and origin.
pub(crate) fn show() -> Exit {
    let mut command = crate::args::command();
    let line = LINE.get().map(Vec::as_slice).unwrap_or_default();
    let Ok(matches) = matches(command.clone(), line) else { return Exit::BadInput };
    command.build();
    let (Some(serve), Some((_, given))) = (command.find_subcommand("serve"), matches.subcommand()) else {
        return Exit::BadInput;
    };
    let mut out = String::new();
    for arg in serve.get_arguments() {
        let id = arg.get_id().as_str();
        let is_of_vllm = arg.is_hide_set() && source(arg, given) == "default";
        if is_of_vllm || matches!(id, "help" | "help_all" | "config" | "show_config") {
            continue;
        }
        let raw = given.try_get_raw(id).ok().flatten();
        let values: Vec<_> = raw.into_iter().flatten().map(|value| value.to_string_lossy().into_owned()).collect();
        let name = arg.get_long().unwrap_or(id);
        let value = match values.as_slice() {
            [] => "(none)".to_owned(),
            _ if SECRETS.contains(&id) => "(hidden)".to_owned(),
            values => values.join(", "),
        };
        out.push_str(&format!("{name}: {value}  # {}\n", source(arg, given)));
    }
    printed(std::io::stdout().write_all(out.as_bytes()), Exit::Passed)
}

fn source(arg: &Arg, given: &ArgMatches) -> String {
    let id = arg.get_id().as_str();
    let gave_it = |(_, ids): &&FromFile| ids.iter().any(|of_file| of_file == id);
    if let Some((file, _)) = FROM_FILES.get().and_then(|files| files.iter().find(gave_it)) {
        return format!("file {file}");
    }
    match given.try_contains_id(id).ok().and_then(|_| given.value_source(id)) {
        Some(ValueSource::CommandLine) => "flag".to_owned(),
        Some(ValueSource::EnvVariable) => {
            format!("environment {}", arg.get_env().unwrap_or_default().to_string_lossy())
        }
        _ => "default".to_owned(),
    }
}
