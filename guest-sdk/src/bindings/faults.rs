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
use exports::vcr::guest::faults::{Action, Event, Failure, Guest};

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

    fn decide(now_ns: u64, step: u64, events: Vec<Event>) -> Result<Vec<Action>, Failure> {
        let seen = seen(&events);
        let mut actions = Vec::new();
        G::slot().with(|guest| guest.decide(&FaultBatch { now_ns, step, events: &seen }, &mut actions))?;
        Ok(actions.iter().map(action).collect())
    }
}

fn seen(events: &[Event]) -> Vec<FaultEvent<'_>> {
    let mut seen = Vec::with_capacity(events.len());
    for event in events {
        match event {
            Event::Arrived(arrived) => seen.push(FaultEvent::Arrived {
                slot: arrived.slot,
                request_id: &arrived.request_id,
                prompt_tokens: arrived.prompt_tokens,
                max_tokens: arrived.max_tokens,
                priority: arrived.priority,
                adapter: arrived.adapter,
            }),
            Event::Emitted(emitted) => {
                let rows = emitted.slot.iter().zip(&emitted.output_tokens);
                seen.extend(rows.map(|(slot, tokens)| FaultEvent::Emitted { slot: *slot, output_tokens: *tokens }));
            }
            Event::Ended(slot) => seen.push(FaultEvent::Ended { slot: *slot }),
            Event::Utility(method) => seen.push(FaultEvent::Utility { method }),
        }
    }
    seen
}

fn action(action: &FaultAction) -> Action {
    match *action {
        FaultAction::FailRequest { slot } => Action::FailRequest(slot),
        FaultAction::Stall { duration_ns } => Action::Stall(duration_ns),
        FaultAction::Crash { restart_after_ns } => Action::Crash(restart_after_ns),
        FaultAction::DropMessage => Action::DropMessage,
        FaultAction::DuplicateMessage => Action::DuplicateMessage,
        FaultAction::CorruptMessage => Action::CorruptMessage,
        FaultAction::DelayMessage { by_ns } => Action::DelayMessage(by_ns),
        FaultAction::LoseKvEvents => Action::LoseKvEvents,
        FaultAction::FailUtility => Action::FailUtility,
    }
}
