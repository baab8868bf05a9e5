//! Errors of a model or of its settings.

/// The reason why a model cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    #[error("unknown model `{name}`: expected a config.json, a folder with one, or a name that `vcr inspect model --list` prints{}", did_you_mean(.hints))]
    Unknown { name: String, hints: Vec<String> },
    #[error("invalid model `{place}`: {reason}")]
    File { place: String, reason: String },
    #[error("invalid model `{place}`: expected a field `{field}`")]
    Missing {
        /// The file, or the model's name.
        place: String,
        field: String,
    },
    #[error("invalid model `{place}`: `{field}` is {value}: expected {expected}")]
    Field {
        /// The file, or the model's name.
        place: String,
        field: String,
        value: String,
        expected: String,
    },
    #[error("invalid model `{place}`: architecture `{found}` {reason}")]
    Architecture {
        /// The file, or the model's name.
        place: String,
        found: String,
        /// The reason, and the most similar known architecture.
        reason: String,
    },
    #[error("invalid `{field}`: {reason}")]
    Serving {
        field: &'static str,
        /// The problem and the allowed values.
        reason: String,
    },
    #[error("{0}")]
    Memory(String),
}

fn did_you_mean(hints: &[String]) -> String {
    let names: Vec<String> = hints.iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", names.join(" or ")) }
}

pub(crate) fn gib(bytes: f64) -> String {
    format!("{:.2} GiB", bytes / 1_073_741_824.0)
}
