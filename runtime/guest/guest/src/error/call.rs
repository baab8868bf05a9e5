//! Errors of calls and invalid answers.

use std::time::Duration;

use vcr_core::fault::FaultAction;
use vcr_core::policy::{Preference, PreferenceProblem};
use vcr_core::scale::DESIRED_ENGINES_MAX;

use super::HOST_HINT;

/// The reason why a call of a guest failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CallFault {
    #[error("{reason}")]
    Rejected { reason: String },
    #[error("this machine refused a resource, which is not the guest's fault: {reason}")]
    Host { reason: String },
    #[error("it looped forever or worked too long: it used its {fuel} fuel")]
    OutOfFuel { fuel: u64 },
    #[error("it took longer than the {limit:?} that a call may take")]
    TimedOut { limit: Duration },
    #[error("it called functions of `observe` more than {limit} times in one call")]
    TooManyObservations { limit: u32 },
    #[error("it asked for {asked_bytes} bytes of memory, but may have {limit_bytes}")]
    Memory {
        /// Size of the memory after growing.
        asked_bytes: usize,
        limit_bytes: usize,
    },
    #[error("it asked for more memory than it can address, and may have {limit_bytes} bytes")]
    MemoryBeyondType { limit_bytes: usize },
    #[error("it asked for a table of {asked} elements, but may have {limit}")]
    Table {
        /// Size of the table after growing.
        asked: usize,
        limit: usize,
    },
    #[error("it nested calls too deeply and overflowed its stack")]
    StackOverflow,
    #[error("it panicked, failed an assertion or ran out of memory{}", last_words(.last_line.as_deref()))]
    Panicked {
        /// Last line logged in this call; guests with the Rust SDK log the panic message.
        last_line: Option<String>,
    },
    #[error("it trapped: {reason}")]
    Trapped { reason: String },
    #[error("its answer is larger than the {limit_bytes} bytes that an answer may have")]
    AnswerTooLarge { limit_bytes: usize },
    #[error("it answered no duration for {steps} steps")]
    NoDurations { steps: usize },
    #[error("it answered {durations} durations for {steps} steps")]
    TooManyDurations { durations: usize, steps: usize },
    #[error("it priced the step starting at {start_ns} ns at {value} ns, which is {complaint}")]
    BadDuration {
        /// Virtual time at which the step starts.
        start_ns: u64,
        value: f64,
        /// The reason why the value is invalid.
        complaint: &'static str,
    },
    #[error("it priced a step starting at {start_ns} ns, at or after the horizon {horizon_ns} ns")]
    PastHorizon {
        /// Virtual time at which the step would start.
        start_ns: u64,
        /// Horizon of the call.
        horizon_ns: u64,
    },
    #[error("it answered {given} tokens, but {wanted} were wanted")]
    TokenCount { given: usize, wanted: usize },
    #[error("it called `refuse` outside of `step`")]
    RefusedOutsideStep,
    #[error("it refused the request in slot {slot}, where none has started and not ended")]
    RefusedNoRequest { slot: u32 },
    #[error("it called `refuse` more than {limit} times in one call")]
    TooManyRefusals { limit: usize },
    #[error("it called `accept` outside of `step`")]
    AcceptedOutsideStep,
    #[error("it accepted drafts of the request in slot {slot}, where none has started and not ended")]
    AcceptedNoRequest { slot: u32 },
    #[error("it called `accept` more than {limit} times in one call")]
    TooManyAcceptances { limit: usize },
    #[error("it answered {} entries of `{}` and {} of `{}` in `{record}`", lengths[0], names[0], lengths[1], names[1])]
    UnequalColumns { record: &'static str, names: &'static [&'static str; 2], lengths: [usize; 2] },
    #[error("its action {index}, `{action}`, {problem}")]
    BadAction {
        /// Index of the action in the answer.
        index: usize,
        action: FaultAction,
        /// The reason why the action is invalid.
        problem: ActionProblem,
    },
    #[error("its {preference} {problem}")]
    BadPreference {
        preference: Preference,
        /// The reason why the preference is invalid.
        problem: PreferenceProblem,
    },
    #[error("it chose the engine {chosen} for request {request}: expected one of {up}")]
    NoSuchWorker {
        /// Index that the guest returned.
        chosen: u32,
        request: u64,
        /// Indices of the offered engines, as text.
        up: String,
    },
    #[error("it refused request {request}, which has been with an engine before")]
    MustBeServed { request: u64 },
    #[error("it asks for {desired} engines, but at most {DESIRED_ENGINES_MAX} are allowed")]
    TooManyEngines {
        /// Number that the guest returned.
        desired: u32,
    },
    #[error("it had failed before: {first}")]
    FailedBefore { first: String },
}

/// The last log line as a suffix of the error of a panic.
fn last_words(line: Option<&str>) -> String {
    line.map_or_else(String::new, |line| format!("; its last log line: {line}"))
}

/// The reason why an action of a failure injector is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActionProblem {
    #[error("fails a request that has not arrived, has ended, or was failed before")]
    NoSuchRequest,
    #[error("takes longer than 1e18 ns")]
    TooLong,
    #[error("fails a utility call, but none was announced")]
    NoUtilityCall,
}

impl CallFault {
    /// The next step for the user, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Rejected { .. } | Self::FailedBefore { .. } | Self::Trapped { .. } => {
                return None;
            }
            Self::Host { .. } => HOST_HINT,
            Self::OutOfFuel { .. } => "look for a loop that does not end; if the work is honest, raise its `fuel`",
            Self::TimedOut { .. } => "look for a loop that does not end; if the work is honest, raise the time",
            Self::TooManyObservations { .. } => "sum up telemetry, and report it once in each call",
            Self::Memory { .. } | Self::MemoryBeyondType { .. } => "keep less state, or raise its `memory`",
            Self::Table { .. } => "tables hold functions and references: have fewer of them",
            Self::StackOverflow => "look for a recursion that does not end",
            Self::Panicked { .. } => "run the guest's own tests natively; to report why it fails, return an error",
            Self::AnswerTooLarge { .. } => "answer the request and no more",
            Self::NoDurations { .. } | Self::TooManyDurations { .. } | Self::PastHorizon { .. } => {
                "answer one duration for each step that starts before the horizon, and at least one"
            }
            Self::TokenCount { .. } => "answer exactly `count` tokens for each want, one want after another",
            Self::RefusedOutsideStep | Self::RefusedNoRequest { .. } => {
                "refuse requests that `started` has named and `ended` has not, during `step`"
            }
            Self::TooManyRefusals { .. } => "refuse each request once",
            Self::AcceptedOutsideStep | Self::AcceptedNoRequest { .. } => {
                "accept drafts of requests that `started` has named and `ended` has not, during `step`"
            }
            Self::TooManyAcceptances { .. } => "accept drafts of a request only where their number changes",
            Self::UnequalColumns { .. } => "the columns of a record have one entry each for every item",
            Self::BadAction { .. } => "`vcr guest wit failure-injector` says what each action may hold",
            Self::BadPreference { .. } => {
                "`vcr guest wit scheduler-policy` says of which requests a policy may state preferences"
            }
            Self::NoSuchWorker { .. } => "answer the index of one of `workers`, or `refuse`",
            Self::MustBeServed { .. } => "refuse a request only where its `may-refuse` is true",
            Self::TooManyEngines { .. } => "answer the wanted number of running and starting engines",
            Self::BadDuration { .. } => "a duration is a finite number of nanoseconds from 0 to 1e18",
        };
        Some(hint.into())
    }

    /// Whether the answer is invalid, as opposed to a failed call.
    pub(crate) fn is_about_answer(&self) -> bool {
        matches!(
            self,
            Self::NoDurations { .. }
                | Self::TooManyDurations { .. }
                | Self::BadDuration { .. }
                | Self::PastHorizon { .. }
                | Self::TokenCount { .. }
                | Self::RefusedOutsideStep
                | Self::RefusedNoRequest { .. }
                | Self::TooManyRefusals { .. }
                | Self::AcceptedOutsideStep
                | Self::AcceptedNoRequest { .. }
                | Self::TooManyAcceptances { .. }
                | Self::UnequalColumns { .. }
                | Self::BadAction { .. }
                | Self::BadPreference { .. }
                | Self::NoSuchWorker { .. }
                | Self::MustBeServed { .. }
                | Self::TooManyEngines { .. }
        )
    }

    pub(crate) fn with_hint(&self) -> String {
        match self.hint() {
            Some(hint) => format!("{self}; {hint}"),
            None => self.to_string(),
        }
    }
}
