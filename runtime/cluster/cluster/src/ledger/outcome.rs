//! Outcomes of requests, and their causes.

use vcr_core::RejectReason;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The request has not ended.
    #[default]
    Unfinished,
    /// The client has the complete output.
    Completed,
    /// The request was refused because it could never run.
    Rejected(RejectReason),
    /// The router refused the request because all engines had too much load.
    Shed,
    /// A fault ended the request.
    Failed(FailReason),
    /// The client cancelled the request.
    GivenUp(GiveUp),
}

impl Outcome {
    /// The outcome's name in `requests.jsonl`.
    #[must_use]
    pub fn status(&self) -> &'static str {
        match self {
            Self::Unfinished => "unfinished",
            Self::Completed => "completed",
            Self::Rejected(_) => "rejected",
            Self::Shed => "shed",
            Self::Failed(_) => "failed",
            Self::GivenUp(GiveUp::Cancelled) => "cancelled",
            Self::GivenUp(_) => "timeout",
        }
    }

    /// The cause of a rejection, failure or cancellation, if the status does not already state it.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Rejected(reason) => Some(reason.to_string()),
            Self::Failed(reason) => Some(reason.to_string()),
            Self::GivenUp(GiveUp::Cancelled) => None,
            Self::GivenUp(reason) => Some(reason.to_string()),
            Self::Unfinished | Self::Completed | Self::Shed => None,
        }
    }
}

/// The reason why a client cancelled a request. The order of the variants is the order at equal times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[allow(missing_docs, reason = "the error texts describe them")]
pub enum GiveUp {
    #[error("no first token within the timeout")]
    FirstToken,
    #[error("no whole answer within the timeout")]
    Timeout,
    #[error("the deadline passed")]
    Deadline,
    #[error("the client cancelled it")]
    Cancelled,
}

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[allow(missing_docs, reason = "the error texts describe them")]
pub enum FailReason {
    #[error("the engine crashed")]
    EngineCrash,
    #[error("its client gave it up, as recorded")]
    Aborted,
    #[error("it failed, as recorded")]
    Recorded,
    #[error("a failure was injected")]
    Injected,
    #[error("no engine of the pool is up or will be")]
    NoEngine,
    #[error("the server answered with HTTP status {0}")]
    Status(u16),
    #[error("the server ended it with an error")]
    Server,
    #[error("the connection was lost")]
    Connection,
    #[error("the server's answer is invalid")]
    Garbage,
    #[error("the answer ended before its requested number of tokens")]
    Short,
    #[error("the server sent nothing for too long")]
    Silent,
}
