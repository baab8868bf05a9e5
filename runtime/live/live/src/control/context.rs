//! The state behind the answers.

use std::sync::Arc;

use crate::EnginesHandle;
use prometheus_client::registry::Registry;

use crate::control::{ClientFaultRules, FakeMetricValues, GuestReader, LatencyReader, metrics};

/// The state behind all answers.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) engines: EnginesHandle,
    pub(crate) latency: LatencyReader,
    pub(crate) registry: Arc<Registry>,
    /// Where clients are asked, and not a frontend.
    pub(crate) client_faults: Option<Arc<dyn ClientFaultRules>>,
    /// The same.
    pub(crate) fake_metrics: Option<Arc<dyn FakeMetricValues>>,
}

impl Context {
    pub(crate) fn new(
        engines: EnginesHandle,
        latency: LatencyReader,
        guests: Option<GuestReader>,
        client_faults: Option<Arc<dyn ClientFaultRules>>,
        fake_metrics: Option<Arc<dyn FakeMetricValues>>,
    ) -> Self {
        let registry = Arc::new(metrics::registry(engines.clone(), guests));
        Self { engines, latency, registry, client_faults, fake_metrics }
    }
}
