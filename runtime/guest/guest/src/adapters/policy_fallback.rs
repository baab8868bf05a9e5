//! The fallback of a failed scheduler policy.
//!
//! Preferences persist, so the fallback must know every current request and state all of its preferences when it
//! takes over.

use vcr_core::policy::{EngineView, PolicyError, PolicyEvent, Preference, SchedulingPolicy};

use crate::adapters::fallback::FailureSink;

/// A guest that its fallback replaces at the first failure.
pub struct PolicyWithFallback {
    guest: Option<Box<dyn SchedulingPolicy>>,
    fallback: Box<dyn SchedulingPolicy>,
    failed: FailureSink,
    /// The fallback's preferences for the request in each slot; none for a free slot.
    standings: Vec<Option<Standing>>,
    /// The fallback's answer to the current call.
    answer: Vec<Preference>,
}

#[derive(Clone, Copy, Debug)]
struct Standing {
    admission_rank: i64,
    eviction_rank: i64,
    chunk_cap: Option<u32>,
}

impl PolicyWithFallback {
    /// Pairs a guest with its fallback. If the guest could not be created, the fallback is used from the beginning.
    #[must_use]
    pub fn new(
        guest: Result<Box<dyn SchedulingPolicy>, PolicyError>,
        fallback: Box<dyn SchedulingPolicy>,
        failed: FailureSink,
    ) -> Self {
        let guest = guest.inspect_err(|error| failed(&error.to_string())).ok();
        Self { guest, fallback, failed, standings: Vec::new(), answer: Vec::new() }
    }

    fn note(&mut self, event: &PolicyEvent) {
        match *event {
            PolicyEvent::Arrived { slot, .. } => {
                let slot = slot as usize;
                if slot >= self.standings.len() {
                    self.standings.resize(slot + 1, None);
                }
                self.standings[slot] = Some(Standing { admission_rank: 0, eviction_rank: 0, chunk_cap: None });
            }
            PolicyEvent::Ended { slot, .. } => self.standings[slot as usize] = None,
            PolicyEvent::Admitted { .. } | PolicyEvent::Preempted { .. } => {}
        }
    }

    fn remember(&mut self) {
        for preference in &self.answer {
            let standing = self.standings.get_mut(preference.slot() as usize).and_then(Option::as_mut);
            // The caller reports unknown slots when it applies the answer.
            let Some(standing) = standing else { continue };
            match *preference {
                Preference::AdmissionRank { rank, .. } => standing.admission_rank = rank,
                Preference::EvictionRank { rank, .. } => standing.eviction_rank = rank,
                Preference::ChunkCap { tokens, .. } => standing.chunk_cap = tokens,
            }
        }
    }

    /// Appends all preferences of the fallback, to override those that the guest has set.
    fn push_all(&self, preferences: &mut Vec<Preference>) {
        for (slot, standing) in (0..).zip(&self.standings) {
            let Some(Standing { admission_rank, eviction_rank, chunk_cap }) = *standing else { continue };
            preferences.extend([
                Preference::AdmissionRank { slot, rank: admission_rank },
                Preference::EvictionRank { slot, rank: eviction_rank },
                Preference::ChunkCap { slot, tokens: chunk_cap },
            ]);
        }
    }
}

impl SchedulingPolicy for PolicyWithFallback {
    fn name(&self) -> &str {
        self.guest.as_ref().unwrap_or(&self.fallback).name()
    }

    fn decide(&mut self, batch: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), PolicyError> {
        let Some(guest) = &mut self.guest else { return self.fallback.decide(batch, preferences) };
        let said_before = preferences.len();
        let outcome = guest.decide(batch, preferences);
        batch.events.iter().for_each(|event| self.note(event));
        self.answer.clear();
        self.fallback.decide(batch, &mut self.answer)?;
        self.remember();
        if let Err(error) = outcome {
            (self.failed)(&error.to_string());
            self.guest = None;
            preferences.truncate(said_before);
            self.push_all(preferences);
        }
        Ok(())
    }
}

/// The ranks of vLLM's own policies, used by fallbacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RanksOfEngine {
    /// By arrival.
    Fcfs,
    /// By priority, then by arrival.
    Priority,
}

impl SchedulingPolicy for RanksOfEngine {
    fn name(&self) -> &str {
        match self {
            Self::Fcfs => "fcfs",
            Self::Priority => "priority",
        }
    }

    fn decide(&mut self, batch: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), PolicyError> {
        if *self == Self::Fcfs {
            return Ok(());
        }
        // A slot may be used by several requests in one batch; a preference applies to the last one.
        let mut ended = Vec::new();
        for event in batch.events.iter().rev() {
            match *event {
                PolicyEvent::Ended { slot, .. } => ended.push(slot),
                PolicyEvent::Arrived { slot, priority, .. } => {
                    if let Some(gone) = ended.iter().position(|other| *other == slot) {
                        ended.swap_remove(gone);
                        continue;
                    }
                    let rank = i64::from(priority);
                    preferences
                        .extend([Preference::AdmissionRank { slot, rank }, Preference::EvictionRank { slot, rank }]);
                }
                PolicyEvent::Admitted { .. } | PolicyEvent::Preempted { .. } => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use vcr_core::policy::Slo;

    use super::*;

    /// Ranks by prompt length, and fails after a number of calls.
    struct Tired {
        calls_left: u32,
    }

    impl SchedulingPolicy for Tired {
        fn name(&self) -> &str {
            "tired"
        }

        fn decide(&mut self, batch: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), PolicyError> {
            for event in batch.events {
                if let PolicyEvent::Arrived { slot, prompt_tokens, .. } = *event {
                    preferences.push(Preference::AdmissionRank { slot, rank: prompt_tokens.into() });
                    preferences.push(Preference::ChunkCap { slot, tokens: Some(1) });
                }
            }
            let error = || PolicyError { policy: "tired".to_owned(), reason: "it is tired".to_owned() };
            self.calls_left = self.calls_left.checked_sub(1).ok_or_else(error)?;
            Ok(())
        }
    }

    fn arrived(slot: u32, priority: i32) -> PolicyEvent {
        let (arrival_ns, prompt_tokens, max_tokens, tenant) = (0, 100, 1, 0);
        let slo = Slo::default();
        PolicyEvent::Arrived { slot, arrival_ns, prompt_tokens, max_tokens, priority, adapter: None, tenant, slo }
    }

    fn ask(policy: &mut dyn SchedulingPolicy, events: &[PolicyEvent]) -> Vec<Preference> {
        let batch = EngineView {
            now_ns: 0,
            budget_tokens: 1,
            running_slots: 1,
            free_blocks: 1,
            total_blocks: 1,
            block_size_tokens: 16,
            events,
            progress: &[],
        };
        let mut preferences = Vec::new();
        policy.decide(&batch, &mut preferences).expect("the fallback does not fail");
        preferences
    }

    #[test]
    fn who_takes_over_undoes_what_the_guest_has_said() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&heard);
        let failed: FailureSink =
            Arc::new(move |reason| kept.lock().expect("no holder panicked").push(reason.to_owned()));
        let guest: Box<dyn SchedulingPolicy> = Box::new(Tired { calls_left: 1 });
        let mut policy = PolicyWithFallback::new(Ok(guest), Box::new(RanksOfEngine::Priority), failed);
        let first = ask(&mut policy, &[arrived(0, 7), arrived(1, -3)]);
        assert_eq!(first[0], Preference::AdmissionRank { slot: 0, rank: 100 }, "the guest decides");
        let gone = PolicyEvent::Ended { slot: 0, computed_tokens: 0, output_tokens: 0 };
        let second = ask(&mut policy, &[gone, arrived(2, 5)]);
        let of = |slot, rank| {
            let tokens = None;
            [
                Preference::AdmissionRank { slot, rank },
                Preference::EvictionRank { slot, rank },
                Preference::ChunkCap { slot, tokens },
            ]
        };
        assert_eq!(second, [of(1, -3), of(2, 5)].concat());
        assert_eq!(heard.lock().expect("no holder panicked").len(), 1);
        let third = ask(&mut policy, &[arrived(0, 9)]);
        assert_eq!(third, of(0, 9)[..2], "from then on only what changes is said");
        assert_eq!(policy.name(), "priority");
    }

    #[test]
    fn nothing_is_said_of_a_request_that_came_and_went_in_one_call() {
        let gone = PolicyEvent::Ended { slot: 0, computed_tokens: 0, output_tokens: 0 };
        assert_eq!(ask(&mut RanksOfEngine::Priority, &[arrived(0, 1), gone]), []);
        let answer = ask(&mut RanksOfEngine::Priority, &[arrived(0, 1), gone, arrived(0, 2)]);
        assert_eq!(answer[0], Preference::AdmissionRank { slot: 0, rank: 2 });
    }
}
