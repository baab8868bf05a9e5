//! Gates: limits on errors, read from a file.

use std::collections::BTreeMap;
use std::path::Path;

use vcr_compare::Gate;

use crate::error::FitError;

/// Reads the table `[gates]` of a TOML file, with entries such as `"ttft p50" = "< 10%"`.
///
/// # Errors
/// If the file cannot be read, or an entry is not a gate.
pub fn read_gates(path: &Path) -> Result<Vec<Gate>, FitError> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        gates: BTreeMap<String, String>,
    }
    let text = vcr_base::input::read_text(path, vcr_base::input::MAX_CONFIG_BYTES)
        .map_err(|source| FitError::Read { path: path.to_owned(), source })?;
    let file: File = toml::from_str(&text).map_err(|error| {
        FitError::Gates(format!(
            "{}: {error}; expected a table [gates] with entries such as \"ttft p50\" = \"< 10%\"",
            path.display()
        ))
    })?;
    let gates = file.gates.iter().map(|(subject, limit)| format!("{subject} {limit}").parse());
    gates.collect::<Result<_, String>>().map_err(|what| FitError::Gates(format!("{}: {what}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_read_from_toml() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("gates.toml");
        std::fs::write(&path, "[gates]\n\"ttft p50\" = \"< 10%\"\nthroughput = \"< 3%\"\n").expect("it is written");
        let gates = read_gates(&path).expect("valid");
        let expected = ["throughput < 3%", "ttft p50 < 10%"].map(|text| text.parse::<Gate>().expect("valid"));
        assert_eq!(gates, expected);
        std::fs::write(&path, "[gates]\n\"ttft p50\" = \"10%\"\n").expect("it is written");
        assert!(read_gates(&path).expect_err("it is none").to_string().contains("invalid gate `ttft p50 10%`"));
    }
}
