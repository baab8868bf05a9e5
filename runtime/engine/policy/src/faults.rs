//! Events of an engine, as failure injectors see them, and the faults that they answer.

use core::fmt;

/// An event in an engine since the last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultEvent<'a> {
    /// A request arrived.
    Arrived {
        /// Identifies the request from now on: a dense number that is reused after the request has ended.
        slot: u32,
        /// Its name at the frontend.
        request_id: &'a str,
        /// Tokens of its prompt.
        prompt_tokens: u32,
        /// Output tokens it may have.
        max_tokens: u32,
        /// Its priority; lower is sooner.
        priority: i32,
        /// Its adapter, if it has one.
        adapter: Option<u32>,
    },
    /// Output tokens a request has so far, after a step that gave it some.
    Emitted {
        /// The request.
        slot: u32,
        /// Number of all its output tokens.
        output_tokens: u32,
    },
    /// A request has ended, completed or not.
    Ended {
        /// The request; its slot is free again.
        slot: u32,
    },
    /// A utility call is about to be answered. At most one in a batch.
    Utility {
        /// Its name.
        method: &'a str,
    },
}

/// The events of one call of an injector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultBatch<'a> {
    /// The time; never less than in the call before.
    pub now_ns: u64,
    /// Steps that the engine has finished.
    pub step: u64,
    /// Events since the last call, oldest first; may be empty.
    pub events: &'a [FaultEvent<'a>],
}

/// A failure to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// The request ends with an error.
    FailRequest {
        /// A request that has arrived and not ended.
        slot: u32,
    },
    /// The engine does nothing for this long.
    Stall {
        /// Its duration, at most [`DURATION_NS_MAX`].
        duration_ns: u64,
    },
    /// The engine crashes; it restarts after this time, if given.
    Crash {
        /// Time until it is back, at most [`DURATION_NS_MAX`].
        restart_after_ns: Option<u64>,
    },
    /// The output message that is sent next is lost.
    DropMessage,
    /// The output message that is sent next is sent twice.
    DuplicateMessage,
    /// The output message that is sent next cannot be read.
    CorruptMessage,
    /// The output message that is sent next is late.
    DelayMessage {
        /// The delay, at most [`DURATION_NS_MAX`].
        by_ns: u64,
    },
    /// The next batch of KV events is lost.
    LoseKvEvents,
    /// The utility call announced in this batch fails.
    FailUtility,
}

/// The action as `wit/` writes it, with its values.
impl fmt::Display for FaultAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::FailRequest { slot } => write!(f, "fail-request({slot})"),
            Self::Stall { duration_ns } => write!(f, "stall({duration_ns})"),
            Self::Crash { restart_after_ns: None } => f.write_str("crash(none)"),
            Self::Crash { restart_after_ns: Some(delay_ns) } => write!(f, "crash({delay_ns})"),
            Self::DropMessage => f.write_str("drop-message"),
            Self::DuplicateMessage => f.write_str("duplicate-message"),
            Self::CorruptMessage => f.write_str("corrupt-message"),
            Self::DelayMessage { by_ns } => write!(f, "delay-message({by_ns})"),
            Self::LoseKvEvents => f.write_str("lose-kv-events"),
            Self::FailUtility => f.write_str("fail-utility"),
        }
    }
}

/// The longest duration in an action, in nanoseconds: about 32 years.
pub const DURATION_NS_MAX: u64 = 1_000_000_000_000_000_000;
