use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A problem with a model's files or with a text.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("model folder `{}` has no `{file}`: {needed}", folder.display())]
    Missing {
        folder: PathBuf,
        /// Name of the file, or of the folder in it.
        file: String,
        /// Its purpose, or the next step.
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
    /// The template takes more work, time or memory than it may.
    Limit,
    /// No process is free to render it.
    Busy,
    /// The template asks for another file.
    File,
    /// The request does not fit the options, such as nothing to continue.
    Request,
    /// Any other failure while it renders.
    Render,
}

/// A chat template's failure.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
#[error("{}{reason}", line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct TemplateError {
    pub kind: TemplateErrorKind,
    /// The template's line, from 1, where it is known.
    pub line: Option<usize>,
    /// The problem; for [`TemplateErrorKind::Raised`], the template's own words.
    pub reason: String,
}
