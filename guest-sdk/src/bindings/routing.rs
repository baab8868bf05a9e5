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
use crate::router::words;
use crate::{RouterGuest, parse_config};
use exports::vcr::guest::routing::Guest;

wit_bindgen::generate!({
    path: "../wit/v0_2",
    world: "router",
    pub_export_macro: true,
    default_bindings_module: "vcr_guest_sdk::bindings::routing",
});

/// The exported component of a guest.
pub struct Component<G>(PhantomData<G>);

impl<G: RouterGuest + Exported<Kept = G>> Guest for Component<G> {
    fn configure(config: String, seed: u64) -> Result<(), String> {
        G::slot().configure(|| G::configure(parse_config(&config)?, seed))
    }

    fn route(
        now_ns: u64,
        ended: Vec<u64>,
        request: Vec<u64>,
        blocks: Vec<u64>,
        workers: Vec<u64>,
    ) -> Result<u32, String> {
        G::slot().with(|guest| words::route(guest, now_ns, &ended, &request, &blocks, &workers))
    }
}
