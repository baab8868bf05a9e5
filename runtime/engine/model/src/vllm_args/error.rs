//! Errors in a command line of `vllm serve`.

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// A version that is not known.
    #[error("invalid vLLM version `{found}`: expected one of {expected}")]
    Version {
        /// As it was given.
        found: String,
        /// All of them.
        expected: String,
    },
    /// A GPU that is not known.
    #[error("invalid GPU `{found}`: expected one of {expected}")]
    Gpu {
        /// As it was given.
        found: String,
        /// All of them.
        expected: String,
    },
    /// Quotes or backslashes that do not end.
    #[error("invalid command line: expected every quotation mark to be closed")]
    Quotes,
    /// Another command.
    #[error("invalid command `{found}`: expected `vllm serve MODEL ...` or its arguments alone")]
    Command {
        /// Its first word.
        found: String,
    },
    /// A second word that no argument takes.
    #[error("invalid argument `{found}`: expected one model, here `{model}`, and arguments that begin with `-`")]
    Word {
        /// The word.
        found: String,
        /// The word that is the model.
        model: String,
    },
    /// An argument that no version has.
    #[error("unknown argument `{found}`{}", .hint.as_ref().map(|name| format!(": did you mean `{name}`?")).unwrap_or_default())]
    Unknown {
        /// As it was written.
        found: String,
        /// The nearest name.
        hint: Option<String>,
    },
    /// The beginning of several arguments.
    #[error("ambiguous argument `{found}`: it may be {names}")]
    Ambiguous {
        /// As it was written.
        found: String,
        /// Those that begin with it.
        names: String,
    },
    /// An argument of other versions.
    #[error("vLLM {minor} has no `{name}`: {since}")]
    OtherVersion {
        /// The argument.
        name: String,
        /// The version that was asked for.
        minor: String,
        /// The versions that have it, in words.
        since: String,
    },
    /// An argument without its value.
    #[error("invalid `{name}`: expected a value after it")]
    NoValue {
        /// The argument.
        name: String,
    },
    /// A value behind a switch.
    #[error("invalid `{name}={value}`: expected `{name}` or `--no-{}` alone", .name.trim_start_matches('-'))]
    ValueOfSwitch {
        /// The switch.
        name: String,
        /// Value of the argument.
        value: String,
    },
    /// A value that the argument does not take.
    #[error("invalid `{name} {value}`: expected {expected}")]
    Value {
        /// The argument.
        name: String,
        /// Its value.
        value: String,
        /// Allowed values.
        expected: String,
    },
    /// A file of `--config` that cannot be used.
    #[error("invalid `--config {file}`: {reason}")]
    ConfigFile {
        /// As it was named.
        file: String,
        /// The problem.
        reason: String,
    },
    /// A model that cannot be used, or not so.
    #[error("{0}")]
    Model(String),
    /// A setting that changes decisions in a way that is not simulated.
    #[error("`{written}` is not simulated: {reason}")]
    NotSimulated {
        /// Argument and value.
        written: String,
        /// Why not, and what to do.
        reason: String,
    },
}
