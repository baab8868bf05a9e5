//! Options of OpenTelemetry traces.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use vcr_frontend::engine::EngineObserver;
use vcr_frontend::traces::{Endpoint, TraceExporter, TracedEngines};

use crate::play::unusable::Unusable;

#[derive(Debug, Args)]
#[command(next_help_heading = "Traces")]
pub(crate) struct TraceArgs {
    /// Send a span for each request to this collector, by OTLP over HTTP (http, https) or
    /// gRPC (grpc, grpcs).
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_traces_endpoint: Option<Endpoint>,

    /// Additional certificate authorities of the collector (PEM).
    #[arg(long, value_name = "FILE", env = "OTEL_EXPORTER_OTLP_CERTIFICATE")]
    pub(crate) otlp_traces_certificate: Option<PathBuf>,

    /// Name of this service in traces.
    #[arg(long, value_name = "NAME", default_value = "vcr", env = "OTEL_SERVICE_NAME")]
    pub(crate) otel_service_name: String,
}

/// Adds traces to `metrics`, if enabled.
pub(crate) fn traced(
    args: &TraceArgs,
    metrics: Arc<dyn EngineObserver>,
) -> Result<(Arc<dyn EngineObserver>, Option<TraceExporter>), Unusable> {
    let Some(endpoint) = args.otlp_traces_endpoint.clone() else { return Ok((metrics, None)) };
    let authorities = match &args.otlp_traces_certificate {
        None => None,
        Some(path) => Some(vcr_base::input::read_bytes(path, vcr_base::input::MAX_CONFIG_BYTES).map_err(|error| {
            Unusable::new(format!("invalid --otlp-traces-certificate {}: {error}", path.display()))
        })?),
    };
    let exporter = TraceExporter::start(endpoint, args.otel_service_name.clone(), authorities.as_deref())
        .map_err(|error| Unusable::new(format!("cannot start the exporter of traces: {error}")))?;
    Ok((Arc::new(TracedEngines::new(metrics, exporter.sender())), Some(exporter)))
}
