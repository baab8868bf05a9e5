//! Options of OpenTelemetry traces.

use std::sync::Arc;

use clap::Args;
use vcr_frontend::engine::EngineObserver;
use vcr_frontend::traces::{Endpoint, TraceExporter, TracedEngines};

use crate::play::unusable::Unusable;

#[derive(Debug, Args)]
#[command(next_help_heading = "Traces")]
pub(crate) struct TraceArgs {
    /// Send a span for each request to this collector, by OTLP over HTTP.
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_traces_endpoint: Option<Endpoint>,

    /// Name of this service in traces.
    #[arg(long, value_name = "NAME", default_value = "vcr", env = "OTEL_SERVICE_NAME")]
    pub(crate) otel_service_name: String,
}

/// Traces beside `metrics`, if they are asked for.
pub(crate) fn traced(
    args: &TraceArgs,
    metrics: Arc<dyn EngineObserver>,
) -> Result<(Arc<dyn EngineObserver>, Option<TraceExporter>), Unusable> {
    let Some(endpoint) = args.otlp_traces_endpoint.clone() else { return Ok((metrics, None)) };
    let exporter = TraceExporter::start(endpoint, args.otel_service_name.clone())
        .map_err(|error| Unusable::new(format!("cannot start the thread of traces: {error}")))?;
    Ok((Arc::new(TracedEngines::new(metrics, exporter.sender())), Some(exporter)))
}
