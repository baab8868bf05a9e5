//! Reasons for failed transfers.

use std::fmt;

/// The kind of a failure, for metrics and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// The peer's host is not an allowed one.
    NotAllowed,
    /// The peer cannot be reached: the host is unknown, or nothing listens there.
    Unreachable,
    /// The peer refuses, or a fault does.
    Refused,
    /// The other side does not speak this protocol and version.
    Protocol,
    /// The layouts of the two engines do not match.
    Mismatch,
    /// The peer is another engine, or was restarted after it computed the prompt.
    Restarted,
    /// The peer does not hold these blocks, or no longer.
    NotHeld,
    /// The connection broke.
    PeerLost,
    /// The deadline passed.
    TimedOut,
    /// The bytes differ from the block's content.
    Corrupt,
    /// This engine cancelled the transfer.
    Cancelled,
    /// This engine has reached a limit, or its system refuses.
    Local,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 12] = [
        Self::NotAllowed,
        Self::Unreachable,
        Self::Refused,
        Self::Protocol,
        Self::Mismatch,
        Self::Restarted,
        Self::NotHeld,
        Self::PeerLost,
        Self::TimedOut,
        Self::Corrupt,
        Self::Cancelled,
        Self::Local,
    ];

    /// The name of the kind in metrics and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotAllowed => "not_allowed",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Protocol => "protocol",
            Self::Mismatch => "mismatch",
            Self::Restarted => "restarted",
            Self::NotHeld => "not_held",
            Self::PeerLost => "peer_lost",
            Self::TimedOut => "timed_out",
            Self::Corrupt => "corrupt",
            Self::Cancelled => "cancelled",
            Self::Local => "local",
        }
    }

    /// The kind with this number in messages.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The kind's number in messages.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// The reason why a transfer failed, or a plane cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TransferError {
    pub kind: ErrorKind,
    /// A sentence that names the peer and the cause.
    pub message: String,
}

impl TransferError {
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_name_the_kinds() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), Some(kind));
        }
        assert_eq!(ErrorKind::from_code(12), None);
    }
}
