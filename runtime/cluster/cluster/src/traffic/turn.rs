//! Turns of sessions, and the turns after them.

use vcr_base::random::Stream;
use vcr_core::Prompt;

/// One request of a workload.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) prompt: Prompt,
    pub(crate) max_tokens: u32,
    /// After how many output tokens a stop token comes, if before `max_tokens`.
    pub(crate) stop_after: Option<u32>,
    pub(crate) priority: i32,
    pub(crate) strict_priority: u32,
    /// Index among the policy classes of the trace.
    pub(crate) policy_class: Option<u32>,
    /// Number of its class in the workload.
    pub(crate) class: u32,
    /// Its LoRA adapter.
    pub(crate) adapter: Option<u32>,
    /// Number of the session in its workload.
    pub(crate) session: u64,
    /// Position in the session, from 0.
    pub(crate) turn: u32,
    /// Attempts of its client before this one, if there were any.
    pub(crate) earlier: Option<Earlier>,
    pub(crate) follow_up: FollowUp,
    /// The row of the trace that is answered as recorded, if it is.
    pub(crate) played_row: Option<u32>,
}

/// Attempts at a request before the present one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Earlier {
    pub(crate) attempts: u32,
    pub(crate) first_sent_ns: u64,
}

/// The turn after one that has ended.
#[derive(Debug)]
pub(crate) enum FollowUp {
    /// The session has ended.
    None,
    /// A row of the workload's trace, `delay_ns` later.
    TraceRow {
        row: u32,
        copy: u32,
        delay_ns: u64,
        /// The prompt of this turn, if the next one extends it.
        conversation: Option<Box<Prompt>>,
    },
    /// The requests that wait for this node of the workload's graph.
    Waiters { node: u64 },
    /// Another drawn turn.
    Drawn(Box<DrawnSession>),
}

impl FollowUp {
    /// Whether the next turn's prompt repeats the answer to this one.
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
    /// Number of its class in the workload.
    pub(super) class: u32,
    pub(super) adapter: Option<u32>,
    /// Number of its conversation in the data set, if it has one.
    pub(super) dialogue: u32,
}
