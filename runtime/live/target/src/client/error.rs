//! Errors of a client.

use vcr_cluster::record::FailReason;

/// The reason why a request got no complete answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("cannot connect to {address}: {reason}")]
    Connect { address: String, reason: String },
    #[error("no TLS connection to {address}: {reason}")]
    Tls { address: String, reason: String },
    #[error("the connection was lost: {0}")]
    Lost(String),
    #[error("the server's answer is invalid: {0}")]
    Garbage(String),
    #[error("the server answered with HTTP status {status}{}", of_body(body))]
    Status { status: u16, body: String },
    #[error("the server sent nothing for {0} s")]
    Silent(u64),
    #[error("the answer ended after {got} of {wanted} tokens, although `ignore_eos` was set")]
    Short { got: u32, wanted: u32 },
    #[error("the server ended the answer with an error: {0}")]
    Server(String),
}

fn of_body(body: &str) -> String {
    if body.is_empty() { String::new() } else { format!(": {body}") }
}

impl ClientError {
    pub(crate) fn reason(&self) -> FailReason {
        match self {
            Self::Connect { .. } | Self::Tls { .. } | Self::Lost(_) => FailReason::Connection,
            Self::Garbage(_) => FailReason::Garbage,
            Self::Status { status, .. } => FailReason::Status(*status),
            Self::Silent(_) => FailReason::Silent,
            Self::Short { .. } => FailReason::Short,
            Self::Server(_) => FailReason::Server,
        }
    }

    /// Whether a retry may succeed.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Lost(_) | Self::Server(_) => true,
            Self::Status { status, .. } => *status >= 500,
            Self::Tls { .. } | Self::Garbage(_) | Self::Silent(_) | Self::Short { .. } => false,
        }
    }
}
