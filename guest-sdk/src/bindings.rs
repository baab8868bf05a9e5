//! The component interface, generated from `wit/`, and its adapter to
//! [`LatencyGuest`](crate::LatencyGuest).

#![allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    reason = "generated code follows the rules of its generator"
)]

use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::marker::PhantomData;

use crate::{Batch, LatencyGuest, parse_config};
use exports::vcr::guest::latency::{Guest, GuestModel, Model};

wit_bindgen::generate!({
    path: "../wit/v0_1",
    world: "latency-model",
    pub_export_macro: true,
    default_bindings_module: "vcr_guest_sdk::bindings",
});

/// The exported component of a guest.
pub struct Component<G>(PhantomData<G>);

/// The exported resource: a model behind the shared reference that the
/// interface hands out. The host never calls one instance twice at a time.
pub struct ModelCell<G>(RefCell<G>);

impl<G: LatencyGuest> Guest for Component<G> {
    type Model = ModelCell<G>;
}

impl<G: LatencyGuest> GuestModel for ModelCell<G> {
    fn configure(config: String, seed: u64) -> Result<Model, String> {
        let guest = G::configure(parse_config(&config)?, seed)?;
        Ok(Model::new(Self(RefCell::new(guest))))
    }

    fn price(&self, start_ns: u64, horizon_ns: u64, shapes: Vec<u64>) -> Result<Vec<f64>, String> {
        let batch = Batch::new(start_ns, horizon_ns, &shapes)?;
        let mut durations_ns = Vec::with_capacity(batch.len());
        self.0.borrow_mut().price_batch(&batch, &mut durations_ns)?;
        Ok(durations_ns)
    }
}
