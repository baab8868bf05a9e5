//! Outcomes of requests, and their causes.

use vcr_core::RejectReason;

/// The end of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It has not, yet.
    #[default]
    Unfinished,
    /// It has its complete output.
    Completed,
    /// Refused: it could never run.
    Rejected(RejectReason),
    /// Refused by the router: all engines had too much to do.
    Shed,
    /// Lost to a fault.
    Failed(FailReason),
    /// Its client cancelled it.
    GivenUp(GiveUp),
}

impl Outcome {
    /// Its name in `requests.jsonl`.
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

    /// Why it was refused, lost or cancelled, if its status does not state this.
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

/// Why a client gave its request up. The order is that at equal times.
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

/// Why a request was lost.
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
