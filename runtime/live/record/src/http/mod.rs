//! Recording of HTTP exchanges, from a proxy's data to capture lines.
//!
//! A proxy passes each finished [`Exchange`] to an [`HttpRecorder`](crate::HttpRecorder). Its writer thread decodes
//! bodies, redacts secrets, and derives tokens and times of generations.

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

/// The current time, on the clock of [`Exchange`].
#[must_use]
pub fn now_ns() -> u64 {
    vcr_wire::monotonic_ns()
}
