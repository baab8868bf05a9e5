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
use crate::{Remarks, TokenGuest, TokenTable, parse_config};
use exports::vcr::guest::tokens::Guest;
use vcr::guest::{drafts, requests};

wit_bindgen::generate!({
    path: "../wit/v0_2",
    world: "token-source",
    with: { "vcr:guest/observe@0.2.0": crate::bindings::observe::vcr::guest::observe },
    pub_export_macro: true,
    default_bindings_module: "vcr_guest_sdk::bindings::tokens",
});

/// The exported component of a guest.
pub struct Component<G>(PhantomData<G>);

impl<G: TokenGuest + Exported<Kept = TokenTable<G>>> Guest for Component<G> {
    fn configure(config: String, seed: u64) -> Result<(), String> {
        G::slot().configure(|| Ok(TokenTable::new(G::configure(parse_config(&config)?, seed)?)))
    }

    fn step(
        started: Vec<u64>,
        request_tokens: Vec<u32>,
        structured_outputs: Vec<String>,
        ended: Vec<u32>,
        wants: Vec<u32>,
    ) -> Result<Vec<u32>, String> {
        G::slot().with(|table| table.step(&started, &request_tokens, &structured_outputs, &ended, &wants, &mut ToHost))
    }
}

/// Passes remarks on to the host.
struct ToHost;

impl Remarks for ToHost {
    fn refuse(&mut self, slot: u32, reason: &str) {
        requests::refuse(slot, reason);
    }

    fn accept(&mut self, slot: u32, count: u32) {
        drafts::accept(slot, count);
    }
}
