//! Scheduling policies outside the engine: order of admission, preemption victims, and chunk
//! sizes.
//!
//! A [`SchedulingPolicy`] receives the events of one engine's requests and returns
//! preferences, which last until it returns others. The engine keeps its
//! own rules - token budget, running slots, blocks -, so a policy can be unfair, and
//! never wrong. [`crate::Engine::apply_policy`] calls it.

use std::fmt;

/// No cap on the tokens that a request computes in one step.
pub const NO_CHUNK_CAP: u32 = u32::MAX;

/// An event of a request of an engine. Requests are named by slot: the
/// index of the engine's [`crate::RequestId`], a dense number that goes to
/// another request after this one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyEvent {
    /// It came in and waits.
    Arrived {
        /// The request.
        slot: u32,
        /// When it arrived, in nanoseconds.
        arrival_ns: u64,
        /// Tokens of its prompt.
        prompt_tokens: u32,
        /// Output tokens it may have.
        max_tokens: u32,
        /// Its priority; lower is sooner.
        priority: i32,
        /// The adapter it runs with, where it has one.
        lora: Option<u32>,
        /// Its tenant; 0 if unknown.
        tenant: u64,
    },
    /// It was admitted and runs.
    Admitted {
        /// The request.
        slot: u32,
        /// Tokens that it need not compute, because the prefix cache or a
        /// transfer brings them.
        cached_tokens: u32,
    },
    /// It was preempted and waits again; it lost all computed tokens.
    Preempted {
        /// The request.
        slot: u32,
    },
    /// It ended, completed or not.
    Ended {
        /// The request; its slot is free again, or soon will be.
        slot: u32,
        /// Its computed tokens at the end.
        computed_tokens: u32,
        /// Its output tokens.
        output_tokens: u32,
    },
}

/// Progress of a running request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The request.
    pub slot: u32,
    /// Its computed tokens: cached ones and those of steps in flight included.
    pub computed_tokens: u32,
    /// Its output tokens.
    pub output_tokens: u32,
}

/// The input of one call of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyBatch<'a> {
    /// The time; never less than in the call before.
    pub now_ns: u64,
    /// Token budget of the step.
    pub budget_tokens: u32,
    /// Number of further requests that may run.
    pub running_slots: u32,
    /// KV blocks without references.
    pub free_blocks: u32,
    /// KV blocks there are for requests.
    pub total_blocks: u32,
    /// Events since the last call, oldest first.
    pub events: &'a [PolicyEvent],
    /// The running requests whose computed or output tokens have changed since
    /// they were last reported, in the order of the running list.
    pub progress: &'a [Progress],
}

/// A policy's preference for one request from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// Its order of admission. The lowest rank is admitted first, and while that does not fit,
    /// no request behind it is; of equal ones the one that arrived first. 0 until it is set.
    AdmissionRank {
        /// The request.
        slot: u32,
        /// The rank.
        rank: i64,
    },
    /// Its order of preemption. The greatest rank is preempted first, of equal ones the one
    /// that arrived last. 0 until it is set.
    EvictionRank {
        /// The request.
        slot: u32,
        /// The rank.
        rank: i64,
    },
    /// The most tokens that it computes in one step.
    ChunkCap {
        /// The request.
        slot: u32,
        /// At least 1; [`NO_CHUNK_CAP`] for as many as there are, which holds
        /// until it is said.
        tokens: u32,
    },
}

impl Preference {
    /// The request.
    #[must_use]
    pub fn slot(&self) -> u32 {
        match *self {
            Self::AdmissionRank { slot, .. } | Self::EvictionRank { slot, .. } | Self::ChunkCap { slot, .. } => slot,
        }
    }

    /// One bit for each kind.
    fn kind_bit(&self) -> u8 {
        match self {
            Self::AdmissionRank { .. } => 1,
            Self::EvictionRank { .. } => 1 << 1,
            Self::ChunkCap { .. } => 1 << 2,
        }
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AdmissionRank { slot, rank } => write!(f, "admission rank {rank} of slot {slot}"),
            Self::EvictionRank { slot, rank } => write!(f, "eviction rank {rank} of slot {slot}"),
            Self::ChunkCap { slot, tokens } => write!(f, "chunk cap {tokens} of slot {slot}"),
        }
    }
}

/// Decides the order of admission, the preemption victims and the chunk sizes of one engine.
///
/// It may keep state from call to call. Given the same construction and the
/// same calls it must answer the same.
pub trait SchedulingPolicy: Send {
    /// Its name as the user knows it, for errors.
    fn name(&self) -> &str;

    /// Appends the preferences that change, of each request and kind one at
    /// most, of requests that have arrived and not ended.
    ///
    /// # Errors
    /// When the policy cannot decide. Appended preferences then are invalid, and
    /// the policy must not be asked again.
    fn decide(&mut self, batch: &PolicyBatch<'_>, preferences: &mut Vec<Preference>) -> Result<(), PolicyError>;
}

/// Why a policy could not decide, or not so.
#[derive(Debug, thiserror::Error)]
#[error("scheduler policy `{policy}` failed: {reason}")]
pub struct PolicyError {
    /// The policy's name as the user knows it.
    pub policy: String,
    /// The problem, and what to do about it.
    pub reason: String,
}

/// A problem of a preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreferenceProblem {
    /// It names no live request.
    #[error("is of a request that is not there: none in that slot has arrived and not ended")]
    NoSuchRequest,
    /// The same was said before in the same answer.
    #[error("is the second of its kind for that slot in one answer")]
    SaidTwice,
    /// Nothing would ever be computed.
    #[error("lets the request compute nothing: a chunk cap is at least 1")]
    NoTokens,
}

/// Knowledge about one slot.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    is_there: bool,
    /// The last answer with a preference for it, and the kinds of those.
    said_in: u64,
    said: u8,
}

/// Finds problems of preferences, by the events that the policy received: for engines, and for
/// checks of a policy's answers before they reach one.
#[derive(Debug, Default)]
pub struct PreferenceCheck {
    slots: Vec<Known>,
    num_there: usize,
    answers: u64,
}

impl PreferenceCheck {
    /// Follows the events that the policy receives.
    pub fn note(&mut self, event: &PolicyEvent) {
        match *event {
            PolicyEvent::Arrived { slot, .. } => {
                let slot = slot as usize;
                if slot >= self.slots.len() {
                    self.slots.resize(slot + 1, Known::default());
                }
                self.num_there += usize::from(!self.slots[slot].is_there);
                self.slots[slot] = Known { is_there: true, ..Known::default() };
            }
            PolicyEvent::Ended { slot, .. } => {
                if let Some(known) = self.slots.get_mut(slot as usize) {
                    self.num_there -= usize::from(known.is_there);
                    known.is_there = false;
                }
            }
            PolicyEvent::Admitted { .. } | PolicyEvent::Preempted { .. } => {}
        }
    }

    /// Requests that have arrived and not ended.
    #[must_use]
    pub fn num_there(&self) -> usize {
        self.num_there
    }

    /// A new answer is about to be checked.
    pub fn begin_answer(&mut self) {
        self.answers += 1;
    }

    /// Checks the next preference of an answer.
    ///
    /// # Errors
    /// Its problem.
    pub fn check(&mut self, preference: &Preference) -> Result<(), PreferenceProblem> {
        let known = self.slots.get_mut(preference.slot() as usize).filter(|known| known.is_there);
        let known = known.ok_or(PreferenceProblem::NoSuchRequest)?;
        if known.said_in != self.answers {
            (known.said_in, known.said) = (self.answers, 0);
        }
        let kind = preference.kind_bit();
        if known.said & kind != 0 {
            return Err(PreferenceProblem::SaidTwice);
        }
        known.said |= kind;
        if matches!(preference, Preference::ChunkCap { tokens: 0, .. }) {
            return Err(PreferenceProblem::NoTokens);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived(slot: u32) -> PolicyEvent {
        let (arrival_ns, prompt_tokens, max_tokens, priority, tenant) = (0, 1, 1, 0, 0);
        PolicyEvent::Arrived { slot, arrival_ns, prompt_tokens, max_tokens, priority, lora: None, tenant }
    }

    #[test]
    fn a_preference_is_of_a_request_that_is_there_and_said_once() {
        let mut check = PreferenceCheck::default();
        check.note(&arrived(2));
        check.begin_answer();
        let rank = |slot| Preference::AdmissionRank { slot, rank: 1 };
        assert_eq!(check.check(&rank(2)), Ok(()));
        assert_eq!(check.check(&rank(2)), Err(PreferenceProblem::SaidTwice));
        assert_eq!(check.check(&Preference::EvictionRank { slot: 2, rank: 1 }), Ok(()));
        assert_eq!(check.check(&rank(1)), Err(PreferenceProblem::NoSuchRequest));
        assert_eq!(check.check(&rank(u32::MAX)), Err(PreferenceProblem::NoSuchRequest));
        assert_eq!(check.check(&Preference::ChunkCap { slot: 2, tokens: 0 }), Err(PreferenceProblem::NoTokens));
        check.begin_answer();
        assert_eq!(check.check(&rank(2)), Ok(()), "another answer may say it again");
        check.note(&PolicyEvent::Ended { slot: 2, computed_tokens: 0, output_tokens: 0 });
        assert_eq!(check.check(&rank(2)), Err(PreferenceProblem::NoSuchRequest));
        assert_eq!(check.num_there(), 0);
    }
}
