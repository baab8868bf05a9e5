use alloc::vec::Vec;

use vcr_core::policy::{PolicyBatch, PolicyError, PolicyEvent, Preference, SchedulingPolicy};

use crate::{Algorithm, Arrival, PreferenceSink};

/// A policy of the engine core that decides as an [`Algorithm`].
#[derive(Clone, Debug)]
pub struct Native<A>(pub A);

impl<A: Algorithm + Send> SchedulingPolicy for Native<A> {
    fn name(&self) -> &str {
        A::NAME
    }

    fn decide(&mut self, batch: &PolicyBatch<'_>, preferences: &mut Vec<Preference>) -> Result<(), PolicyError> {
        for event in batch.events {
            match *event {
                PolicyEvent::Arrived { slot, arrival_ns, prompt_tokens, tenant, .. } => {
                    self.0.arrived(&Arrival { slot, arrival_ns, prompt_tokens, tenant });
                }
                PolicyEvent::Admitted { slot, cached_tokens } => self.0.admitted(slot, cached_tokens),
                PolicyEvent::Preempted { slot } => self.0.preempted(slot),
                PolicyEvent::Ended { slot, output_tokens, .. } => self.0.ended(slot, output_tokens),
            }
        }
        for progress in batch.progress {
            self.0.progressed(progress.slot, progress.output_tokens);
        }
        self.0.decide(&mut List(preferences));
        Ok(())
    }
}

struct List<'a>(&'a mut Vec<Preference>);

impl PreferenceSink for List<'_> {
    fn admission_rank(&mut self, slot: u32, rank: i64) {
        self.0.push(Preference::AdmissionRank { slot, rank });
    }

    fn eviction_rank(&mut self, slot: u32, rank: i64) {
        self.0.push(Preference::EvictionRank { slot, rank });
    }

    fn chunk_cap(&mut self, slot: u32, tokens: u32) {
        self.0.push(Preference::ChunkCap { slot, tokens });
    }
}
