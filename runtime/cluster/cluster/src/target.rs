//! Targets of runs, and the interface of target drivers.
//!
//! This crate implements only virtual time. All other targets need clocks, sockets and processes, and live in other
//! crates. They measure a run by [`MeasuredRun`](crate::MeasuredRun).

use std::fmt;

use crate::config::RunConfig;
use crate::error::SimError;
use crate::observe::Observer;
use crate::report::Report;

/// Target of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Target {
    /// Simulated engines in virtual time.
    #[default]
    Virtual,
    /// Engines of this process in real time, called directly.
    Live,
    /// Live engines behind the HTTP server of `vcr serve`, in this process.
    Serve(ServeTarget),
    /// Live engines behind vLLM's own frontend, which the run starts and stops.
    Frontend(FrontendTarget),
    /// Any server with OpenAI's API.
    Http(HttpTarget),
}

/// The HTTP server of `vcr serve`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServeTarget {
    /// Faults that clients meet, in the form of `--client-fault`. Without a `path` they only affect completions.
    pub client_faults: Vec<String>,
}

/// vLLM's own frontend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrontendTarget {
    /// The program `vllm-rs`.
    pub binary: String,
    /// The folder of the model whose tokenizer the frontend loads.
    pub model: String,
    /// The vLLM minor version of the frontend, such as `0.33`; None to detect it.
    pub line: Option<String>,
    /// Further command-line arguments.
    pub args: Vec<String>,
}

/// A server with OpenAI's API.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpTarget {
    /// `http://host:port` or `https://host:port`, with any path that precedes `/v1`.
    pub url: String,
    /// The model's name; None for the first model of the server.
    pub model: Option<String>,
    /// The environment variable with the API key.
    pub api_key_env: Option<String>,
    /// Headers of every request.
    pub headers: Vec<(String, String)>,
    /// The form in which prompts are sent.
    pub prompts: Prompts,
    /// A folder with the model's `tokenizer.json`, for prompts sent as text.
    pub tokenizer: Option<String>,
    /// Upper bound of prompt token ids. With None, the server's tokenizer is asked, or a bound that suits most
    /// models is used.
    pub vocab_size: Option<u32>,
    /// A file with certificates (PEM) to trust in addition to the system's.
    pub ca_file: Option<String>,
    /// Longest wait for the next bytes of an answer, in nanoseconds.
    pub idle_timeout_ns: Option<u64>,
    /// The server's models that stand for the LoRA adapters of workloads.
    pub adapters: AdapterNames,
    /// The header or field by which requests identify their session.
    pub sessions: SessionNames,
}

/// The header or field by which the requests of a session identify it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionNames {
    /// The header that carries the session's name.
    pub header: Option<String>,
    /// The token that an answer provides for the next turn of its session.
    pub token: Option<SessionToken>,
}

/// A token that a server or its router returns with an answer and expects in the session's next turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionToken {
    /// Cookies.
    Cookie,
    /// The value of the response header with this name.
    Header(String),
}

/// The names of LoRA adapters, by their numbers in workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterNames {
    /// A text with `{}` as the placeholder for the number.
    Pattern(String),
    /// Names by adapter number, from 0.
    Listed(Vec<String>),
}

impl Default for AdapterNames {
    fn default() -> Self {
        Self::Pattern("adapter-{}".to_owned())
    }
}

impl AdapterNames {
    /// The name of the adapter with this number, if it has one.
    #[must_use]
    pub fn name(&self, number: u32) -> Option<String> {
        match self {
            Self::Pattern(pattern) => Some(pattern.replace("{}", &number.to_string())),
            Self::Listed(names) => names.get(number as usize).cloned(),
        }
    }

    /// The number of the adapter with this name, if there is one.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u32> {
        match self {
            Self::Pattern(pattern) => {
                let (before, after) = pattern.split_once("{}")?;
                name.strip_prefix(before)?.strip_suffix(after)?.parse().ok()
            }
            Self::Listed(names) => names.iter().position(|other| other == name).and_then(|place| place.try_into().ok()),
        }
    }
}

/// The form in which prompts are sent to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prompts {
    /// Token ids if the server accepts them, otherwise texts.
    #[default]
    Auto,
    /// Token ids.
    TokenIds,
    /// Texts with exactly the given number of tokens.
    Text,
}

impl Target {
    /// The names of all targets, in the order of the documentation.
    pub const NAMES: [&'static str; 5] = ["virtual", "live", "serve", "frontend", "http"];

    /// The target's name in scripts and reports.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Virtual => Self::NAMES[0],
            Self::Live => Self::NAMES[1],
            Self::Serve(_) => Self::NAMES[2],
            Self::Frontend(_) => Self::NAMES[3],
            Self::Http(_) => Self::NAMES[4],
        }
    }

    /// Whether runs use virtual time.
    #[must_use]
    pub const fn is_virtual(&self) -> bool {
        matches!(self, Self::Virtual)
    }
}

/// Executes runs in real time.
pub trait TargetDriver: fmt::Debug + Send + Sync {
    /// Checks that the target can execute a run, before anything starts.
    ///
    /// # Errors
    /// When the target cannot execute the run, with the part of the run that it does not support.
    fn check(&self, target: &Target, run: &RunConfig) -> Result<(), TargetError>;

    /// Names of the models that a server serves; empty if it is not a server or does not tell.
    fn models(&self, _target: &Target) -> Vec<String> {
        Vec::new()
    }

    /// Executes a run and measures it.
    ///
    /// # Errors
    /// When the target cannot be reached or used. Failed requests are not errors, but part of the report.
    fn run(&self, target: &Target, run: RunConfig, observer: &mut dyn Observer) -> Result<Report, TargetError>;
}

/// The reason why a target could not execute a run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the error texts describe them")]
pub enum TargetError {
    #[error("{message}")]
    Unusable {
        /// The problem.
        message: String,
        /// The next step.
        hint: Option<String>,
    },
    #[error("{0}")]
    Failed(String),
    /// The run is invalid on every target.
    #[error(transparent)]
    Run(#[from] SimError),
}

impl TargetError {
    /// An unusable target, without a hint.
    pub fn unusable(message: impl Into<String>) -> Self {
        Self::Unusable { message: message.into(), hint: None }
    }

    /// An unusable target, with a hint.
    pub fn with_hint(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Unusable { message: message.into(), hint: Some(hint.into()) }
    }
}
