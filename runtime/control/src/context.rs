//! What the answers are made of.

use std::sync::Arc;

use prometheus_client::registry::Registry;
use vcr_live::EnginesHandle;

use crate::{GuestReader, LatencyReader, metrics};

/// What all answers are made of.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) engines: EnginesHandle,
    pub(crate) latency: LatencyReader,
    pub(crate) registry: Arc<Registry>,
}

impl Context {
    pub(crate) fn new(engines: EnginesHandle, latency: LatencyReader, guests: Option<GuestReader>) -> Self {
        let registry = Arc::new(metrics::registry(engines.clone(), guests));
        Self { engines, latency, registry }
    }
}
