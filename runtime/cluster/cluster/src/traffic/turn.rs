//! Turns of sessions, and what follows a turn.

use vcr_base::random::Stream;
use vcr_core::Prompt;

#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) prompt: Prompt,
    pub(crate) max_tokens: u32,
    /// Number of output tokens before a stop token, if less than `max_tokens`.
    pub(crate) stop_after: Option<u32>,
    pub(crate) priority: i32,
    pub(crate) strict_priority: u32,
    /// Index of the policy class in the trace.
    pub(crate) policy_class: Option<u32>,
    /// Number of the class in the workload.
    pub(crate) class: u32,
    pub(crate) adapter: Option<u32>,
    /// Number of the session in its workload.
    pub(crate) session: u64,
    /// Position in the session, from 0.
    pub(crate) turn: u32,
    pub(crate) earlier: Option<Earlier>,
    pub(crate) follow_up: FollowUp,
    /// The row of the trace with the recorded answer, if the turn is answered as recorded.
    pub(crate) played_row: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Earlier {
    pub(crate) attempts: u32,
    pub(crate) first_sent_ns: u64,
}

/// The continuation of a session after a turn has ended.
#[derive(Debug)]
pub(crate) enum FollowUp {
    /// Nothing: the session has ended.
    None,
    /// The next request is a row of the workload's trace. It arrives `delay_ns` after the end of the turn.
    TraceRow {
        row: u32,
        copy: u32,
        delay_ns: u64,
        /// The prompt of the ended turn, if the next turn extends it.
        conversation: Option<Box<Prompt>>,
    },
    /// The requests that wait for this node of the workload's graph.
    Waiters { node: u64 },
    /// Another drawn turn.
    Drawn(Box<DrawnSession>),
}

impl FollowUp {
    /// Whether the prompt of the next turn repeats the answer of the ended turn.
    pub(crate) fn needs_answer(&self) -> bool {
        matches!(self, Self::Drawn(_) | Self::TraceRow { conversation: Some(_), .. })
    }
}

/// A synthetic session between two turns.
#[derive(Debug)]
pub(crate) struct DrawnSession {
    pub(super) rng: Stream,
    pub(super) number: u64,
    pub(super) next_turn: u32,
    pub(super) turns: u32,
    pub(super) conversation: Prompt,
    /// Number of the class in the workload.
    pub(super) class: u32,
    pub(super) adapter: Option<u32>,
    /// Number of the conversation in the data set, if there is one.
    pub(super) dialogue: u32,
}
