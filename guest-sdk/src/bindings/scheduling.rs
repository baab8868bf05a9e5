#![allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    reason = "generated code follows the rules of its generator"
)]

use alloc::string::String;
use alloc::vec::Vec;
use core::marker::PhantomData;

use super::Exported;
use crate::{EngineView, Policy, PolicyEvent, PolicyGuest, Preference, Progress, parse_config};
use exports::vcr::guest::scheduling::{self as wit, ChunkCaps, Failure, Guest, Preferences, Ranks};

wit_bindgen::generate!({
    path: "../wit",
    world: "scheduler-policy",
    with: {
        "vcr:guest/types@0.1.0": crate::bindings::shared::vcr::guest::types,
        "vcr:guest/observe@0.1.0": crate::bindings::shared::vcr::guest::observe,
    },
    pub_export_macro: true,
    default_bindings_module: "vcr_guest_sdk::bindings::scheduling",
});

/// The exported component of a guest.
pub struct Component<G>(PhantomData<G>);

impl<G: PolicyGuest + Exported<Kept = Policy<G>>> Guest for Component<G> {
    fn configure(config: String, seed: u64) -> Result<(), Failure> {
        Ok(G::slot().configure(|| Ok(Policy::new(G::configure(parse_config(&config)?, seed)?)))?)
    }

    fn decide(engine: wit::EngineView) -> Result<Preferences, Failure> {
        let events: Vec<PolicyEvent> = engine.events.iter().map(event).collect();
        let columns = &engine.progress;
        let rows = columns.slot.iter().zip(&columns.computed_tokens).zip(&columns.output_tokens);
        let row = |((slot, computed), output): ((&u32, &u32), &u32)| Progress {
            slot: *slot,
            computed_tokens: *computed,
            output_tokens: *output,
        };
        let progress: Vec<Progress> = rows.map(row).collect();
        let batch = EngineView {
            now_ns: engine.now_ns,
            budget_tokens: engine.budget_tokens,
            running_slots: engine.running_slots,
            free_blocks: engine.free_blocks,
            total_blocks: engine.total_blocks,
            block_size_tokens: engine.block_size_tokens,
            events: &events,
            progress: &progress,
        };
        Ok(G::slot().with(|policy| policy.decide(&batch).map(columns_of))?)
    }
}

fn event(event: &wit::PolicyEvent) -> PolicyEvent {
    match *event {
        wit::PolicyEvent::Arrived(ref arrived) => PolicyEvent::Arrived {
            slot: arrived.slot,
            arrival_ns: arrived.arrival_ns,
            prompt_tokens: arrived.prompt_tokens,
            max_tokens: arrived.max_tokens,
            priority: arrived.priority,
            adapter: arrived.adapter,
            tenant: arrived.tenant,
            slo: arrived.slo.into(),
        },
        wit::PolicyEvent::Admitted(ref admitted) => {
            PolicyEvent::Admitted { slot: admitted.slot, cached_tokens: admitted.cached_tokens }
        }
        wit::PolicyEvent::Preempted(slot) => PolicyEvent::Preempted { slot },
        wit::PolicyEvent::Ended(ref ended) => PolicyEvent::Ended {
            slot: ended.slot,
            computed_tokens: ended.computed_tokens,
            output_tokens: ended.output_tokens,
        },
    }
}

/// Copies the preferences into columns of exact capacity, so that the answer is not reallocated.
fn columns_of(preferences: &[Preference]) -> Preferences {
    let (mut admissions, mut evictions, mut caps, mut lifted) = (0, 0, 0, 0);
    for preference in preferences {
        match preference {
            Preference::AdmissionRank { .. } => admissions += 1,
            Preference::EvictionRank { .. } => evictions += 1,
            Preference::ChunkCap { tokens: Some(_), .. } => caps += 1,
            Preference::ChunkCap { tokens: None, .. } => lifted += 1,
        }
    }
    let ranks = |entries| Ranks { slot: Vec::with_capacity(entries), rank: Vec::with_capacity(entries) };
    let mut answer = Preferences {
        admission: ranks(admissions),
        eviction: ranks(evictions),
        chunk_caps: ChunkCaps { slot: Vec::with_capacity(caps), tokens: Vec::with_capacity(caps) },
        uncapped: Vec::with_capacity(lifted),
    };
    for preference in preferences {
        match *preference {
            Preference::AdmissionRank { slot, rank } => {
                answer.admission.slot.push(slot);
                answer.admission.rank.push(rank);
            }
            Preference::EvictionRank { slot, rank } => {
                answer.eviction.slot.push(slot);
                answer.eviction.rank.push(rank);
            }
            Preference::ChunkCap { slot, tokens: Some(tokens) } => {
                answer.chunk_caps.slot.push(slot);
                answer.chunk_caps.tokens.push(tokens);
            }
            Preference::ChunkCap { slot, tokens: None } => answer.uncapped.push(slot),
        }
    }
    answer
}
