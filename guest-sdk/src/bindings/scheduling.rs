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
use crate::{Policy, PolicyGuest, PolicyNumbers, parse_config};
use exports::vcr::guest::scheduling::Guest;

wit_bindgen::generate!({
    path: "../wit/v0_2",
    world: "scheduler-policy",
    pub_export_macro: true,
    default_bindings_module: "vcr_guest_sdk::bindings::scheduling",
});

/// The exported component of a guest.
pub struct Component<G>(PhantomData<G>);

impl<G: PolicyGuest + Exported<Kept = Policy<G>>> Guest for Component<G> {
    fn configure(config: String, seed: u64) -> Result<(), String> {
        G::slot().configure(|| Ok(Policy::new(G::configure(parse_config(&config)?, seed)?)))
    }

    fn decide(
        now_ns: u64,
        budget_tokens: u32,
        running_slots: u32,
        free_blocks: u32,
        total_blocks: u32,
        events: Vec<u64>,
        progress: Vec<u32>,
    ) -> Result<Vec<u64>, String> {
        let numbers = PolicyNumbers { now_ns, budget_tokens, running_slots, free_blocks, total_blocks };
        G::slot().with(|policy| policy.decide(numbers, &events, &progress))
    }
}
