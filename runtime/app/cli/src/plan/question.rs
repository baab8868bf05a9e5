//! Questions that files ask.

use std::path::Path;

use serde_json::{Map, Value};
use vcr_base::input::MAX_CONFIG_BYTES;

use crate::plan::args::QuestionArgs;
use crate::plan::space::Space;
use crate::refusal::Refusal;

/// The key of the file that is a document of its own.
const SPACE: &str = "space";

/// The question of a file, and the space that it states. Paths in it start at its folder.
pub(crate) fn read(path: &Path) -> Result<(QuestionArgs, Option<Space>), Refusal> {
    let invalid = |reason: String| Refusal::input(format!("invalid `{}`: {reason}", path.display()));
    let text = vcr_base::input::read_yaml(path, MAX_CONFIG_BYTES)
        .map_err(|error| Refusal::input(format!("cannot read `{}`: {error}", path.display())))?;
    let mut map: Map<String, Value> = yaml_serde::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    let space = map.remove(SPACE).map(serde_json::from_value).transpose();
    let space = space.map_err(|error: serde_json::Error| invalid(format!("`{SPACE}`: {error}")))?;
    let mut question: QuestionArgs =
        serde_json::from_value(Value::Object(map)).map_err(|error| invalid(error.to_string()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    for file in [&mut question.trace, &mut question.dataset].into_iter().flatten() {
        if vcr_base::input::remote::url(file).is_none() {
            *file = folder.join(&file);
        }
    }
    Ok((question, space))
}

/// The space of `--space`.
pub(crate) fn space(text: &str) -> Result<Space, Refusal> {
    yaml_serde::from_str(text).map_err(|error| Refusal::input(format!("invalid --space: {error}")))
}
