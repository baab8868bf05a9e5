use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A problem with a model's files or with a text.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("model folder `{}` has no `{file}`: {needed}", folder.display())]
    Missing {
        folder: PathBuf,
        /// The missing file or subfolder.
        file: String,
        /// The file's purpose, or what to do next.
        needed: String,
    },
    #[error("cannot read `{}`: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("invalid file `{}`: {reason}", path.display())]
    Invalid { path: PathBuf, reason: String },
    #[error("the text cannot be tokenized: {0}")]
    Encode(String),
    #[error("invalid chat template: {0}")]
    Template(#[from] TemplateError),
}

/// The kind of a template's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TemplateErrorKind {
    /// The template does not compile.
    Syntax,
    /// The template itself called `raise_exception`.
    Raised,
    /// The template exceeds a limit of work, time or memory.
    Limit,
    /// No process is free to render the template.
    Busy,
    /// The template refers to another file.
    File,
    /// The request does not fit its options, for example there is no message to continue.
    Request,
    /// Any other failure during rendering.
    Render,
}

/// A chat template's failure.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
#[error("{}{reason}", line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct TemplateError {
    pub kind: TemplateErrorKind,
    /// The line in the template, from 1, if known.
    pub line: Option<usize>,
    /// The problem. For [`TemplateErrorKind::Raised`], the message that the template raised.
    pub reason: String,
}
