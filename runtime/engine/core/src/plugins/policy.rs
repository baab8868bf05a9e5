//! Scheduling policies outside the engine: admission order, preemption victims, and chunk sizes.
//!
//! A [`SchedulingPolicy`] receives the events of one engine's requests and returns preferences, each of which applies
//! until the policy replaces it. The engine keeps its own rules (token budget, running slots, blocks), so a policy
//! can be unfair, but its schedule is always valid. [`crate::Engine::apply_policy`] calls the policy.

use vcr_policy::{Algorithm, decide};

pub use vcr_policy::scheduling::{EngineView, PolicyEvent, Preference, Progress, Slo};

/// Decides the admission order, the preemption victims and the chunk sizes of one engine.
///
/// It may keep state between calls. Equal construction and equal calls must give equal answers.
pub trait SchedulingPolicy: Send {
    /// The policy's name as the user knows it, for errors.
    fn name(&self) -> &str;

    /// Appends the preferences that change, at most one of each kind for a request. The requests must have
    /// arrived and not ended.
    ///
    /// # Errors
    /// If the policy cannot decide. The appended preferences are then invalid, and
    /// the policy must not be called again.
    fn decide(&mut self, batch: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), PolicyError>;
}

/// A policy that uses an [`Algorithm`] of `vcr-policy`.
#[derive(Clone, Debug)]
pub struct Native<A>(pub A);

impl<A: Algorithm + Send> SchedulingPolicy for Native<A> {
    fn name(&self) -> &str {
        A::NAME
    }

    fn decide(&mut self, batch: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), PolicyError> {
        decide(&mut self.0, batch, preferences);
        Ok(())
    }
}

/// The reason why a policy could not decide, or why its answer is invalid.
#[derive(Debug, thiserror::Error)]
#[error("scheduler policy `{policy}` failed: {reason}")]
pub struct PolicyError {
    /// The policy's name as the user knows it.
    pub policy: String,
    /// The problem and what to do about it.
    pub reason: String,
}

/// A problem of a preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the error texts describe them")]
pub enum PreferenceProblem {
    #[error("names no current request: that slot is empty")]
    NoSuchRequest,
    #[error("is the second of its kind for that slot in one answer")]
    SaidTwice,
    #[error("lets the request compute nothing: a chunk cap is at least 1")]
    NoTokens,
}

/// The data for checking the preferences of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    is_there: bool,
    /// Number of the last answer with a preference for the slot, and the kinds of preferences in it.
    said_in: u64,
    said: u8,
}

fn kind_bit(preference: &Preference) -> u8 {
    match preference {
        Preference::AdmissionRank { .. } => 1,
        Preference::EvictionRank { .. } => 1 << 1,
        Preference::ChunkCap { .. } => 1 << 2,
    }
}

/// Finds problems of preferences, based on the events that the policy received. Used for engines, and to
/// check a policy's answers before an engine gets them.
#[derive(Debug, Default)]
pub struct PreferenceCheck {
    slots: Vec<Known>,
    num_there: usize,
    answers: u64,
}

impl PreferenceCheck {
    /// Records an event that the policy receives.
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

    /// Number of requests that have arrived and not ended.
    #[must_use]
    pub fn num_there(&self) -> usize {
        self.num_there
    }

    /// Begins the check of a new answer.
    pub fn begin_answer(&mut self) {
        self.answers += 1;
    }

    /// Checks the next preference of an answer.
    pub fn check(&mut self, preference: &Preference) -> Result<(), PreferenceProblem> {
        let known = self.slots.get_mut(preference.slot() as usize).filter(|known| known.is_there);
        let known = known.ok_or(PreferenceProblem::NoSuchRequest)?;
        if known.said_in != self.answers {
            (known.said_in, known.said) = (self.answers, 0);
        }
        let kind = kind_bit(preference);
        if known.said & kind != 0 {
            return Err(PreferenceProblem::SaidTwice);
        }
        known.said |= kind;
        if matches!(preference, Preference::ChunkCap { tokens: Some(0), .. }) {
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
        let slo = Slo::default();
        PolicyEvent::Arrived { slot, arrival_ns, prompt_tokens, max_tokens, priority, adapter: None, tenant, slo }
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
        assert_eq!(check.check(&Preference::ChunkCap { slot: 2, tokens: Some(0) }), Err(PreferenceProblem::NoTokens));
        check.begin_answer();
        assert_eq!(check.check(&rank(2)), Ok(()), "another answer may say it again");
        check.note(&PolicyEvent::Ended { slot: 2, computed_tokens: 0, output_tokens: 0 });
        assert_eq!(check.check(&rank(2)), Err(PreferenceProblem::NoSuchRequest));
        assert_eq!(check.num_there(), 0);
    }
}
