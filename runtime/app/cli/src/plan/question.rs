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
    let map: Map<String, Value> = yaml_serde::from_str(text).or_else(|error| {
        // As in other options, the braces around several values may be left out.
        let is_whole = text.trim_start().starts_with('{');
        let inside = (!is_whole).then(|| yaml_serde::from_str(&format!("{{{text}}}")).ok()).flatten();
        inside.ok_or_else(|| error.to_string())
    })?;
    let map = underscored(map)?;
    let names = map.keys().cloned().collect();
    let space = serde_json::from_value(Value::Object(map)).map_err(|error| error.to_string())?;
    Ok((space, names))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn spaces_need_no_braces() {
        let expected = parse("{tensor_parallel: [1, 2], max_num_seqs: 64}").expect("a space");
        for text in ["tensor_parallel: [1, 2], max_num_seqs: 64", "tensor-parallel: [1, 2]\nmax-num-seqs: 64"] {
            assert_eq!(parse(text).as_ref(), Ok(&expected), "{text}");
        }
        assert!(parse("tensor_parallel: [1, 2], max").is_err() && parse("{tensor_parallel: [1, 2]").is_err());
    }
}
