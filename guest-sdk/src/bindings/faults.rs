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
use crate::{FaultAction, FaultBatch, FaultEvent, FaultGuest, parse_config};
use exports::vcr::guest::faults::{self as wit, Failure, Guest};

wit_bindgen::generate!({
    path: "../wit",
    world: "failure-injector",
    with: {
        "vcr:guest/types@0.1.0": crate::bindings::shared::vcr::guest::types,
        "vcr:guest/observe@0.1.0": crate::bindings::shared::vcr::guest::observe,
    },
    pub_export_macro: true,
    default_bindings_module: "vcr_guest_sdk::bindings::faults",
});

/// The exported component of a guest.
pub struct Component<G>(PhantomData<G>);

impl<G: FaultGuest + Exported<Kept = G>> Guest for Component<G> {
    fn configure(config: String, seed: u64) -> Result<(), Failure> {
        Ok(G::slot().configure(|| G::configure(parse_config(&config)?, seed))?)
    }

    fn decide(now_ns: u64, step: u64, events: Vec<wit::FaultEvent>) -> Result<Vec<wit::FaultAction>, Failure> {
        let seen = seen(&events);
        let mut actions = Vec::new();
        G::slot().with(|guest| guest.decide(&FaultBatch { now_ns, step, events: &seen }, &mut actions))?;
        Ok(actions.iter().map(action).collect())
    }
}

fn seen(events: &[wit::FaultEvent]) -> Vec<FaultEvent<'_>> {
    let mut seen = Vec::with_capacity(events.len());
    for event in events {
        match event {
            wit::FaultEvent::Arrived(arrived) => seen.push(FaultEvent::Arrived {
                slot: arrived.slot,
                request_id: &arrived.request_id,
                prompt_tokens: arrived.prompt_tokens,
                max_tokens: arrived.max_tokens,
                priority: arrived.priority,
                adapter: arrived.adapter,
            }),
            wit::FaultEvent::Emitted(emitted) => {
                let rows = emitted.slot.iter().zip(&emitted.output_tokens);
                seen.extend(rows.map(|(slot, tokens)| FaultEvent::Emitted { slot: *slot, output_tokens: *tokens }));
            }
            wit::FaultEvent::Ended(slot) => seen.push(FaultEvent::Ended { slot: *slot }),
            wit::FaultEvent::Utility(method) => seen.push(FaultEvent::Utility { method }),
        }
    }
    seen
}

fn action(action: &FaultAction) -> wit::FaultAction {
    match *action {
        FaultAction::FailRequest { slot } => wit::FaultAction::FailRequest(slot),
        FaultAction::Stall { duration_ns } => wit::FaultAction::Stall(duration_ns),
        FaultAction::Crash { restart_after_ns } => wit::FaultAction::Crash(restart_after_ns),
        FaultAction::DropMessage => wit::FaultAction::DropMessage,
        FaultAction::DuplicateMessage => wit::FaultAction::DuplicateMessage,
        FaultAction::CorruptMessage => wit::FaultAction::CorruptMessage,
        FaultAction::DelayMessage { by_ns } => wit::FaultAction::DelayMessage(by_ns),
        FaultAction::LoseKvEvents => wit::FaultAction::LoseKvEvents,
        FaultAction::FailUtility => wit::FaultAction::FailUtility,
    }
}
