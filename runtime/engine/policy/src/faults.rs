//! Events of an engine that failure injectors receive, and the faults that they answer with.

use core::fmt;

/// An event in an engine since the last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultEvent<'a> {
    /// A request arrived.
    Arrived {
        /// Identifies the request from now on. Slots are dense numbers, which are reused after a request has ended.
        slot: u32,
        /// The request's name at the frontend.
        request_id: &'a str,
        /// Number of prompt tokens.
        prompt_tokens: u32,
        /// Maximum number of output tokens.
        max_tokens: u32,
        /// The priority; lower is served sooner.
        priority: i32,
        /// The adapter, if any.
        adapter: Option<u32>,
    },
    /// A step has given a request output tokens.
    Emitted {
        /// Slot of the request.
        slot: u32,
        /// Number of all output tokens so far.
        output_tokens: u32,
    },
    /// A request has ended, completely or not.
    Ended {
        /// Slot of the request. It is free again.
        slot: u32,
    },
    /// A utility call is about to be answered. There is at most one in a batch.
    Utility {
        /// Name of the utility method.
        method: &'a str,
    },
}

/// The events for one call of an injector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultBatch<'a> {
    /// The time. It never decreases from call to call.
    pub now_ns: u64,
    /// Number of steps that the engine has finished.
    pub step: u64,
    /// Events since the last call, oldest first. May be empty.
    pub events: &'a [FaultEvent<'a>],
}

/// A failure to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// The request ends with an error.
    FailRequest {
        /// Slot of a request that has arrived and not ended.
        slot: u32,
    },
    /// The engine does nothing for this long.
    Stall {
        /// The duration, at most [`DURATION_NS_MAX`].
        duration_ns: u64,
    },
    /// The engine crashes and, if a time is given, restarts after that time.
    Crash {
        /// Time until the restart, at most [`DURATION_NS_MAX`].
        restart_after_ns: Option<u64>,
    },
    /// The next output message is lost.
    DropMessage,
    /// The next output message is sent twice.
    DuplicateMessage,
    /// The next output message cannot be read.
    CorruptMessage,
    /// The next output message is late.
    DelayMessage {
        /// The delay, at most [`DURATION_NS_MAX`].
        by_ns: u64,
    },
    /// The next batch of KV events is lost.
    LoseKvEvents,
    /// The utility call announced in this batch fails.
    FailUtility,
}

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

/// The maximum duration in an action, in nanoseconds: about 32 years.
pub const DURATION_NS_MAX: u64 = 1_000_000_000_000_000_000;
