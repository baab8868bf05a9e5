//! `--config FILE`: arguments in a YAML file. Arguments on the command line override them
//! (`FlexibleArgumentParser._pull_args_from_config`).

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::vllm_args::ArgumentError;
use crate::vllm_args::table::{self, Takes};

const ARGUMENT: &str = "--config";

/// Inserts the words of the file before the given words, but after the model.
pub(crate) fn insert(
    words: &[String],
    folder: &Path,
    files: &mut Vec<(String, PathBuf)>,
) -> Result<Vec<String>, ArgumentError> {
    let is_config = |word: &String| word == ARGUMENT || word.starts_with("--config=");
    let Some(at) = words.iter().position(is_config) else { return Ok(words.to_vec()) };
    let (file, behind) = match words[at].split_once('=') {
        Some((_, file)) => (file.to_owned(), at + 1),
        None => {
            let file = words.get(at + 1).ok_or_else(|| ArgumentError::NoValue { name: ARGUMENT.to_owned() })?;
            (file.clone(), at + 2)
        }
    };
    if words[behind..].iter().any(is_config) {
        let reason = "expected one file".to_owned();
        return Err(ArgumentError::ConfigFile { file, reason });
    }
    let path = folder.join(&file);
    let config = read(&path).map_err(|reason| ArgumentError::ConfigFile { file: file.clone(), reason })?;
    files.push((file, path));
    let has_model = words.first().is_some_and(|first| !first.starts_with('-'));
    let mut all: Vec<String> = words[..usize::from(has_model)].to_vec();
    for (key, value) in &config {
        // A model on the command line overrides the model in the file.
        if !(has_model && key == "model") {
            push(&mut all, key, value);
        }
    }
    all.extend_from_slice(&words[usize::from(has_model)..at]);
    all.extend_from_slice(&words[behind..]);
    Ok(all)
}

fn read(path: &Path) -> Result<Map<String, Value>, String> {
    if !path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
        return Err("expected a file whose name ends in .yaml or .yml".to_owned());
    }
    let text =
        vcr_base::input::read_yaml(path, vcr_base::input::MAX_CONFIG_BYTES).map_err(|error| error.to_string())?;
    yaml_serde::from_str(&text).map_err(|error| format!("expected arguments and their values as YAML: {error}"))
}

fn push(words: &mut Vec<String>, key: &str, value: &Value) {
    let name = format!("--{key}");
    match value {
        Value::Bool(true) => words.push(name),
        Value::Bool(false) => {
            let is_switch = |name: &str| table::find(name).is_some_and(|argument| argument.takes == Takes::Switch);
            if is_switch(&name.replace('_', "-")) {
                words.push(format!("--no-{key}"));
            }
        }
        Value::Array(items) => {
            if !items.is_empty() {
                words.push(name);
                words.extend(items.iter().map(text));
            }
        }
        other => words.extend([name, text(other)]),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "None".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inserted(yaml: &str, words: &[&str]) -> Result<String, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("c.yaml"), yaml).expect("it is writable");
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let all = insert(&words, folder.path(), &mut Vec::new()).map_err(|error| error.to_string())?;
        Ok(all.join(" "))
    }

    #[test]
    fn arguments_of_the_command_line_come_behind_those_of_the_file() {
        let yaml = "model: other\nmax-num-seqs: 8\nenable_prefix_caching: false\nenforce-eager: true\nserved-model-name: [a, b]\n";
        let file = "--no-enable_prefix_caching --enforce-eager --max-num-seqs 8";
        assert_eq!(
            inserted(yaml, &["m", "--port", "80", "--config", "c.yaml", "--max-num-seqs", "4"]),
            Ok(format!("m {file} --served-model-name a b --port 80 --max-num-seqs 4"))
        );
        assert_eq!(inserted(yaml, &["--config=c.yaml"]), Ok(format!("{file} --model other --served-model-name a b")));
        let nested = "speculative-config: {method: ngram, num_speculative_tokens: 3}";
        let wanted = r#"--speculative-config {"method":"ngram","num_speculative_tokens":3}"#;
        assert_eq!(inserted(nested, &["--config", "c.yaml"]), Ok(wanted.to_owned()));
    }

    #[test]
    fn other_files_are_refused() {
        for (words, wanted) in [
            (&["--config"][..], "invalid `--config`: expected a value after it"),
            (&["--config", "c.json"], "expected a file whose name ends in .yaml or .yml"),
            (&["--config", "none.yaml"], "invalid `--config none.yaml`: "),
            (&["--config", "c.yaml", "--config", "c.yaml"], "expected one file"),
            (&["--config", "c.yaml"], "expected arguments and their values as YAML"),
        ] {
            let error = inserted("- a list", words).expect_err("it cannot be used");
            assert!(error.contains(wanted), "{error}");
        }
    }
}
