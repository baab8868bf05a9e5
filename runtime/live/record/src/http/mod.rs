//! Exchanges over HTTP: from a proxy's data to lines of a capture.
//!
//! A proxy hands each [`Exchange`] that has ended to an [`HttpRecorder`](crate::HttpRecorder). Its writer undoes encodings, replaces
//! secrets, and derives tokens and times of generations.

mod answer;
mod decode;
mod events;
mod exchange;
mod generation;
mod json_path;
mod secrets;

pub use answer::{AnswerReader, AnswerTokens, prompt_tokens};
pub use exchange::{Exchange, HttpObserver, TokenCounter, lines_of};
pub use json_path::{JsonPath, JsonPathError};
pub use secrets::{REDACTED, RedactRules, is_secret_name};

pub(crate) use exchange::{HttpLines, HttpRules};
pub(crate) use generation::SAMPLING_PARAMETERS;
pub(crate) use secrets::Secrets;

/// Now, on the clock of [`Exchange`].
#[must_use]
pub fn now_ns() -> u64 {
    vcr_wire::monotonic_ns()
}
