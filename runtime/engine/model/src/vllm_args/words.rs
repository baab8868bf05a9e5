//! Splits a command line into arguments with their values.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use vcr_base::suggestion::nearest;

use crate::vllm_args::ArgumentError;
use crate::vllm_args::config_file;
use crate::vllm_args::table::{self, Argument, TABLE, Takes};

const COMMANDS: &[&[&str]] = &[&["vllm", "serve"], &["-m", "vllm.entrypoints.openai.api_server"]];

const CONTAINER_PROGRAMS: [&str; 3] = ["docker", "nerdctl", "podman"];

/// Name of vLLM's image, after its registry and before its tag.
const IMAGE: &str = "vllm/vllm-openai";

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Given {
    Switch(bool),
    Value(String),
    Values(Vec<String>),
}

#[derive(Clone, Debug)]
pub(crate) struct Word {
    pub(crate) argument: &'static Argument,
    pub(crate) given: Given,
}

impl Word {
    pub(crate) fn text(&self) -> String {
        match &self.given {
            Given::Switch(on) => on.to_string(),
            Given::Value(value) => value.clone(),
            Given::Values(values) => values.join(" "),
        }
    }
}

pub(crate) fn split(command: &str) -> Result<Vec<String>, ArgumentError> {
    // A backslash at the end of a line continues it.
    let line = command.replace("\\\r\n", " ").replace("\\\n", " ");
    shlex::split(&line).ok_or(ArgumentError::Quotes)
}

/// The arguments of a command line, in order. The model becomes `--model`. Problems are added to
/// `errors`.
pub(crate) fn read(
    words: Result<Vec<String>, ArgumentError>,
    minor: u8,
    folder: &Path,
    files: &mut Vec<(String, PathBuf)>,
    errors: &mut Vec<ArgumentError>,
) -> Vec<Word> {
    let words = words.and_then(|words| config_file::insert(arguments_of(&words)?, folder, files));
    let words = match words {
        Ok(words) => words,
        Err(error) => {
            errors.push(error);
            return Vec::new();
        }
    };
    let mut reader = Reader { words: &words, at: 0, minor, read: Vec::new(), dotted: Vec::new(), model: None };
    while reader.at < reader.words.len() {
        if let Err(error) = reader.next() {
            errors.push(error);
        }
    }
    reader.finish()
}

/// The words after the command, without the variables in front of it.
fn arguments_of(words: &[String]) -> Result<&[String], ArgumentError> {
    for command in COMMANDS {
        let starts = |at: &usize| {
            let Some(window) = words.get(*at..*at + command.len()) else { return false };
            let program = window[0].rsplit('/').next().unwrap_or_default();
            program == command[0] && window[1..].iter().eq(command[1..].iter().copied())
        };
        if let Some(at) = (0..words.len()).find(starts) {
            return Ok(&words[at + command.len()..]);
        }
    }
    let words = &words[words.iter().take_while(|word| is_variable(word)).count()..];
    let runs = |pair: &[String]| CONTAINER_PROGRAMS.contains(&pair[0].as_str()) && pair[1] == "run";
    if let Some(at) = words.windows(2).position(runs) {
        return of_container(&words[at..]);
    }
    match words.first() {
        Some(first) if !first.starts_with('-') && words.len() > 1 && !words[1].starts_with('-') => {
            Err(ArgumentError::Command { found: first.clone() })
        }
        _ => Ok(words),
    }
}

/// The words after the image of `docker run`, whose entry point is `vllm serve`.
fn of_container(words: &[String]) -> Result<&[String], ArgumentError> {
    let image = words.iter().position(|word| !word.starts_with('-') && word.contains(IMAGE));
    match image.filter(|at| !words[..*at].iter().any(|word| word.starts_with("--entrypoint"))) {
        Some(at) => Ok(&words[at + 1..]),
        None => Err(ArgumentError::Container { found: words[0].clone() }),
    }
}

/// Whether a word is `NAME=value`, which sets a variable of the environment.
fn is_variable(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(is_name)
    })
}

struct Reader<'a> {
    words: &'a [String],
    at: usize,
    minor: u8,
    read: Vec<Word>,
    /// Values of arguments such as `--speculative-config.method`, by the name of the argument.
    dotted: Vec<(&'static Argument, Map<String, Value>)>,
    model: Option<String>,
}

impl Reader<'_> {
    fn next(&mut self) -> Result<(), ArgumentError> {
        let word = &self.words[self.at];
        self.at += 1;
        if word == "--" {
            return Ok(());
        }
        if !word.starts_with('-') || word == "-" {
            return self.positional(word);
        }
        if let Some(level) = word.strip_prefix("-O") {
            return self.optimization(level);
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        let (name, path) = match name.split_once('.') {
            Some((name, path)) => (name, Some(path)),
            None => (name, None),
        };
        let name = if name.starts_with("--") { name.replace('_', "-") } else { name.to_owned() };
        let (argument, is_on) = match self.find(&name) {
            Ok(found) => found,
            Err(error) => {
                // The value of an unknown argument must not be read as another argument.
                let has_value = value.is_none() && self.words.get(self.at).is_some_and(|next| !is_argument(next));
                self.at += usize::from(has_value);
                return Err(error);
            }
        };
        if !(argument.since..=argument.until).contains(&self.minor) {
            if matches!(argument.takes, Takes::Value) && value.is_none() {
                self.at += 1;
            }
            return Err(ArgumentError::OtherVersion {
                name: argument.name.to_owned(),
                minor: format!("0.{}", self.minor),
                since: argument.versions(),
            });
        }
        let given = match argument.takes {
            Takes::Nothing | Takes::Switch => match value {
                Some(value) => return Err(ArgumentError::ValueOfSwitch { name: argument.name.to_owned(), value }),
                None => Given::Switch(is_on),
            },
            Takes::Value => Given::Value(self.value(argument, value)?),
            Takes::Values => Given::Values(self.values(argument, value)?),
        };
        match (path, given) {
            (Some(path), Given::Value(value)) => self.set_dotted(argument, path, &value),
            (_, given) => self.read.push(Word { argument, given }),
        }
        Ok(())
    }

    fn positional(&mut self, word: &str) -> Result<(), ArgumentError> {
        if let Some(model) = &self.model {
            return Err(ArgumentError::Word { found: word.to_owned(), model: model.clone() });
        }
        self.model = Some(word.to_owned());
        let argument = table::find("--model").expect("the table has it");
        self.read.push(Word { argument, given: Given::Value(word.to_owned()) });
        Ok(())
    }

    /// Handles `-O3`, `-O=3` and `-O 3`.
    fn optimization(&mut self, level: &str) -> Result<(), ArgumentError> {
        // `-O.mode 3` sets a key of `--compilation-config`.
        let name = if level.starts_with('.') { "--compilation-config" } else { "--optimization-level" };
        let argument = table::find(name).expect("the table has it");
        let level = match level.strip_prefix('.') {
            Some(path) => path.split_once('=').map_or("", |(_, value)| value),
            None => level.trim_start_matches('='),
        };
        let value = self.value(argument, (!level.is_empty()).then(|| level.to_owned()))?;
        self.read.push(Word { argument, given: Given::Value(value) });
        Ok(())
    }

    /// Finds the argument with this name, or with this beginning of a name, as argparse does. Also returns whether a
    /// switch is on.
    fn find(&self, name: &str) -> Result<(&'static Argument, bool), ArgumentError> {
        let is_off = |argument: &Argument| {
            argument.takes == Takes::Switch
                && name.strip_prefix("--no-").is_some_and(|rest| argument.name[2..] == *rest)
        };
        let exact = TABLE.iter().find(|argument| argument.names().any(|known| known == name) || is_off(argument));
        if let Some(argument) = exact {
            return Ok((argument, !is_off(argument)));
        }
        let here = |argument: &&Argument| (argument.since..=argument.until).contains(&self.minor);
        let starts: Vec<&'static Argument> = TABLE
            .iter()
            .filter(|argument| {
                here(argument) && name.len() > 2 && name.starts_with("--") && argument.name.starts_with(name)
            })
            .collect();
        match starts[..] {
            [argument] => Ok((argument, true)),
            [] => {
                let names = TABLE.iter().filter(|argument| argument.name.len() > 2).map(|argument| argument.name);
                let hint = nearest(name, names).map(ToOwned::to_owned);
                Err(ArgumentError::Unknown { found: name.to_owned(), hint })
            }
            _ => {
                let names: Vec<&str> = starts.iter().map(|argument| argument.name).collect();
                Err(ArgumentError::Ambiguous { found: name.to_owned(), names: names.join(", ") })
            }
        }
    }

    fn value(&mut self, argument: &Argument, value: Option<String>) -> Result<String, ArgumentError> {
        if let Some(value) = value {
            return Ok(value);
        }
        let next = self.words.get(self.at).filter(|next| !is_argument(next));
        self.at += usize::from(next.is_some());
        next.cloned().ok_or_else(|| ArgumentError::NoValue { name: argument.name.to_owned() })
    }

    fn values(&mut self, argument: &Argument, value: Option<String>) -> Result<Vec<String>, ArgumentError> {
        let mut values = vec![self.value(argument, value)?];
        while let Some(next) = self.words.get(self.at).filter(|next| !is_argument(next)) {
            values.push(next.clone());
            self.at += 1;
        }
        Ok(values)
    }

    /// Sets a key of an argument's JSON, as `--speculative-config.method ngram` does.
    fn set_dotted(&mut self, argument: &'static Argument, path: &str, value: &str) {
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        let known = self.dotted.iter().position(|(known, _)| known.name == argument.name);
        let at = known.unwrap_or_else(|| {
            self.dotted.push((argument, Map::new()));
            self.dotted.len() - 1
        });
        let mut map = &mut self.dotted[at].1;
        let mut keys = path.split('.').peekable();
        while let Some(key) = keys.next() {
            if keys.peek().is_none() {
                map.insert(key.to_owned(), value);
                return;
            }
            let inner = map.entry(key).or_insert_with(|| Value::Object(Map::new()));
            if !inner.is_object() {
                *inner = Value::Object(Map::new());
            }
            map = inner.as_object_mut().expect("it is an object now");
        }
    }

    fn finish(mut self) -> Vec<Word> {
        for (argument, map) in self.dotted {
            self.read.push(Word { argument, given: Given::Value(Value::Object(map).to_string()) });
        }
        self.read
    }
}

fn is_argument(word: &str) -> bool {
    word.starts_with('-') && word.len() > 1 && word[1..].parse::<f64>().is_err()
}
