//! The state behind the answers.

use std::sync::Arc;

use prometheus_client::registry::Registry;
use vcr_live::EnginesHandle;

use crate::{GuestReader, LatencyReader, metrics};

/// The state behind all answers.
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
