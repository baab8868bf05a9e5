//! Errors of a model, or of its settings.

/// Why a model cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// Neither a file nor a name of the table.
    #[error("unknown model `{name}`: expected a config.json, a folder with one, or a name of the table{}", did_you_mean(.hints))]
    Unknown {
        /// As it was given.
        name: String,
        /// The nearest names.
        hints: Vec<String>,
    },
    /// A file that is not a `config.json`.
    #[error("invalid model `{place}`: {reason}")]
    File {
        /// The file.
        place: String,
        /// The problem.
        reason: String,
    },
    /// A field that is needed.
    #[error("invalid model `{place}`: expected a field `{field}`")]
    Missing {
        /// The file or the name.
        place: String,
        /// The field.
        field: String,
    },
    /// A field with another value.
    #[error("invalid model `{place}`: `{field}` is {value}: expected {expected}")]
    Field {
        /// The file or the name.
        place: String,
        /// The field.
        field: String,
        /// Its value.
        value: String,
        /// Allowed values.
        expected: String,
    },
    /// An architecture whose layers are not known, or not followed.
    #[error("invalid model `{place}`: architecture `{found}` {reason}")]
    Architecture {
        /// The file or the name.
        place: String,
        /// The architecture.
        found: String,
        /// Why, and the nearest that is known.
        reason: String,
    },
    /// Something of how it is served.
    #[error("invalid `{field}`: {reason}")]
    Serving {
        /// The setting.
        field: &'static str,
        /// The problem and the allowed values.
        reason: String,
    },
    /// Memory that does not hold the weights or one sequence.
    #[error("{0}")]
    Memory(String),
}

/// The hint that names models like the unknown one.
fn did_you_mean(hints: &[String]) -> String {
    let names: Vec<String> = hints.iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", names.join(" or ")) }
}

/// Bytes for people.
pub(crate) fn gib(bytes: f64) -> String {
    format!("{:.2} GiB", bytes / 1_073_741_824.0)
}
