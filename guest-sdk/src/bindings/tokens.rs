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

use vcr_policy::tokens::TokenWant;

use super::Exported;
use crate::{Remarks, TokenGuest, TokenRequest, TokenTable, parse_config};
use exports::vcr::guest::tokens::{self as wit, Failure, Guest};
use vcr::guest::{drafts, requests};

wit_bindgen::generate!({
    path: "../wit",
    world: "token-source",
    with: {
        "vcr:guest/types@0.1.0": crate::bindings::shared::vcr::guest::types,
        "vcr:guest/observe@0.1.0": crate::bindings::shared::vcr::guest::observe,
    },
    pub_export_macro: true,
    default_bindings_module: "vcr_guest_sdk::bindings::tokens",
});

/// The exported component of a guest.
pub struct Component<G>(PhantomData<G>);

impl<G: TokenGuest + Exported<Kept = TokenTable<G>>> Guest for Component<G> {
    fn configure(config: String, seed: u64) -> Result<(), Failure> {
        Ok(G::slot().configure(|| Ok(TokenTable::new(G::configure(parse_config(&config)?, seed)?)))?)
    }

    fn step(started: Vec<wit::TokenRequest>, ended: Vec<u32>, wants: wit::TokenWants) -> Result<Vec<u32>, Failure> {
        let rows = wants.slot.iter().zip(&wants.first_index).zip(&wants.count);
        let wants = rows.map(|((slot, first_index), count)| TokenWant {
            slot: *slot,
            first_index: *first_index,
            count: *count,
        });
        let started = started.iter().map(seen);
        Ok(G::slot().with(|table| table.step(started, &ended, wants, &mut ToHost))?)
    }
}

fn seen(request: &wit::TokenRequest) -> TokenRequest<'_> {
    TokenRequest {
        slot: request.slot,
        seed: request.seed,
        prompt: &request.prompt,
        max_tokens: request.max_tokens,
        min_tokens: request.min_tokens,
        eos_token: request.eos_token,
        stop_tokens: &request.stop_tokens,
        structured_output: request.structured_output.as_deref().unwrap_or(""),
        thinking_token_budget: request.thinking_token_budget,
    }
}

struct ToHost;

impl Remarks for ToHost {
    fn refuse(&mut self, slot: u32, reason: &str) {
        requests::refuse(slot, reason);
    }

    fn accept(&mut self, slot: u32, count: u32) {
        drafts::accept(slot, count);
    }
}
