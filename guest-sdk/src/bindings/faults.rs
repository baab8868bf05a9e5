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
use crate::faults::words;
use crate::{FaultGuest, parse_config};
use exports::vcr::guest::faults::Guest;

wit_bindgen::generate!({
    path: "../wit/v0_2",
    world: "failure-injector",
    with: { "vcr:guest/observe@0.2.0": crate::bindings::observe::vcr::guest::observe },
    pub_export_macro: true,
    default_bindings_module: "vcr_guest_sdk::bindings::faults",
});

/// The exported component of a guest.
pub struct Component<G>(PhantomData<G>);

impl<G: FaultGuest + Exported<Kept = G>> Guest for Component<G> {
    fn configure(config: String, seed: u64) -> Result<(), String> {
        G::slot().configure(|| G::configure(parse_config(&config)?, seed))
    }

    fn decide(now_ns: u64, step: u64, events: Vec<u64>, texts: Vec<String>) -> Result<Vec<u64>, String> {
        G::slot().with(|guest| words::decide(guest, now_ns, step, &events, &texts))
    }
}
