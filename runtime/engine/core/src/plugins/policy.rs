//! Scheduling policies outside the engine: order of admission, preemption victims, and chunk sizes.
//!
//! A [`SchedulingPolicy`] receives the events of one engine's requests and returns preferences, which last
//! until it returns others. The engine keeps its own rules (token budget, running slots, blocks), so a policy
//! can be unfair, but never invalid. [`crate::Engine::apply_policy`] calls it.

use vcr_policy::{Algorithm, decide};

pub use vcr_policy::scheduling::{EngineView, PolicyEvent, Preference, Progress, Slo};

/// Decides the order of admission, the preemption victims and the chunk sizes of one engine.
///
/// It may keep state between calls. Equal construction and equal calls must give equal answers.
pub trait SchedulingPolicy: Send {
    /// Its name as the user knows it, for errors.
    fn name(&self) -> &str;

    /// Appends the preferences that change, of each request and kind one at
    /// most, of requests that have arrived and not ended.
    ///
    /// # Errors
    /// When the policy cannot decide. Appended preferences then are invalid, and
    /// the policy must not be asked again.
    fn decide(&mut self, batch: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), PolicyError>;
}

/// A policy that decides as an [`Algorithm`] of `vcr-policy`.
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

/// Why a policy could not decide, or not so.
#[derive(Debug, thiserror::Error)]
#[error("scheduler policy `{policy}` failed: {reason}")]
pub struct PolicyError {
    /// The policy's name as the user knows it.
    pub policy: String,
    /// The problem and its remedy.
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

/// Knowledge about one slot.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    is_there: bool,
    /// The last answer with a preference for it, and the kinds of that answer.
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
