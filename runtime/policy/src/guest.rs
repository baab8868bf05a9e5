//! Policies as those of guests.

use alloc::vec::Vec;

use vcr_guest_sdk::{PolicyBatch, PolicyEvent, Preference};

use crate::{Algorithm, Arrival, PreferenceSink};

/// Has an [`Algorithm`] decide upon a guest's input.
pub fn decide(algorithm: &mut impl Algorithm, batch: &PolicyBatch<'_>, preferences: &mut Vec<Preference>) {
    for event in batch.events {
        match *event {
            PolicyEvent::Arrived { slot, arrival_ns, prompt_tokens, tenant, .. } => {
                algorithm.arrived(&Arrival { slot, arrival_ns, prompt_tokens, tenant });
            }
            PolicyEvent::Admitted { slot, cached_tokens } => algorithm.admitted(slot, cached_tokens),
            PolicyEvent::Preempted { slot } => algorithm.preempted(slot),
            PolicyEvent::Ended { slot, output_tokens, .. } => algorithm.ended(slot, output_tokens),
        }
    }
    for progress in batch.progress {
        algorithm.progressed(progress.slot, progress.output_tokens);
    }
    algorithm.decide(&mut List(preferences));
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
        self.0.push(Preference::ChunkCap { slot, tokens: Some(tokens) });
    }
}
