//! Text of a model: tokenizers, chat templates, incremental detokenization and generated text.

mod builtin;
mod decode;
mod english;
mod error;
mod files;
mod folder;
pub mod python;
mod reasoning;
mod source;
mod stop;
mod template;
mod tokenizer;
pub mod tools;

pub use decode::Detokenizer;
pub use english::{English, EnglishText};
pub use error::{TemplateError, TemplateErrorKind, TextError};
pub use folder::{GenerationConfig, ModelFolder};
pub use minijinja::Value;
pub use minijinja::value::ValueKind;
pub use reasoning::{Phase, ReasoningError, ReasoningForm};
pub use source::{TextModel, TextSource};
pub use stop::{StopMatch, StopStrings};
pub use template::{ChatTemplate, ContentFormat, TemplateRequest, render_in_processes, serve_renderings};
pub use tokenizer::Tokenizer;
