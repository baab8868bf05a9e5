//! Reads questions from files.

use std::path::Path;

use serde_json::{Map, Value};
use vcr_base::input::MAX_CONFIG_BYTES;

use crate::plan::args::QuestionArgs;
use crate::plan::space::Space;
use crate::plan::yaml::underscored;
use crate::refusal::Refusal;

/// Reads the options of [`QuestionArgs`] from a file. Relative paths start at the file's folder.
pub(crate) fn read(path: &Path) -> Result<QuestionArgs, Refusal> {
    let invalid = |reason: String| Refusal::input(format!("invalid `{}`: {reason}", path.display()));
    let text = vcr_base::input::read_yaml(path, MAX_CONFIG_BYTES)
        .map_err(|error| Refusal::input(format!("cannot read `{}`: {error}", path.display())))?;
    let map: Map<String, Value> = yaml_serde::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    let map = underscored(map).map_err(invalid)?;
    let mut question: QuestionArgs =
        serde_json::from_value(Value::Object(map)).map_err(|error| invalid(error.to_string()))?;
    if let Some(text) = &question.space {
        parse(text).map_err(|reason| invalid(format!("`space`: {reason}")))?;
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    for file in [&mut question.trace, &mut question.dataset].into_iter().flatten() {
        if vcr_base::input::remote::url(file).is_none() {
            *file = folder.join(&file);
        }
    }
    for text in question.model.iter_mut().chain(&mut question.latency) {
        // A text that is not an existing path is a name.
        let path = folder.join(&text);
        if let Some(path) = path.to_str().filter(|_| path.exists()) {
            *text = path.to_owned();
        }
    }
    Ok(question)
}

pub(crate) fn space(text: &str) -> Result<Space, Refusal> {
    stated(text).map(|(space, _)| space)
}

/// A space, and the names of the values that its text states.
pub(crate) fn stated(text: &str) -> Result<(Space, Vec<String>), Refusal> {
    parse(text).map_err(|reason| Refusal::input(format!("invalid --space: {reason}")))
}

fn parse(text: &str) -> Result<(Space, Vec<String>), String> {
    let map: Map<String, Value> = yaml_serde::from_str(text).map_err(|error| error.to_string())?;
    let map = underscored(map)?;
    let names = map.keys().cloned().collect();
    let space = serde_json::from_value(Value::Object(map)).map_err(|error| error.to_string())?;
    Ok((space, names))
}
