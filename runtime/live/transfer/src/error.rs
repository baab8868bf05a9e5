//! Reasons for failed transfers.

use std::fmt;

/// The kind of a failure, as metrics and tests know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// The peer's host is not on the list of allowed ones.
    NotAllowed,
    /// The peer cannot be reached: no such host, nothing listens there.
    Unreachable,
    /// The peer, or a fault, refuses.
    Refused,
    /// The other side is not a peer of this plane, or of another version.
    Protocol,
    /// The layouts of both engines do not fit together.
    Mismatch,
    /// The peer is another engine, or has been restarted since it computed the prompt.
    Restarted,
    /// The peer does not hold the blocks: never, no longer, or others.
    NotHeld,
    /// The connection broke.
    PeerLost,
    /// The deadline passed.
    TimedOut,
    /// The bytes differ from the block's.
    Corrupt,
    /// This engine gave the transfer up.
    Cancelled,
    /// This engine cannot: a limit, or the system.
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

    /// Its name in metrics and messages.
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

    /// The kind of this number in messages.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Its number in messages.
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

/// Why a transfer failed, or a plane cannot start.
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
