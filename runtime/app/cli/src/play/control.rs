//! Options of the control plane.

use std::sync::Arc;

use clap::Args;
use vcr_live::control::{Addresses, ControlError, GpuMetrics, LatencyReader, Listeners, UnusableModel};

use super::guests::LiveGuests;
use super::latency::named_latency;
use super::unusable::Unusable;
use crate::service::with_causes;

#[derive(Debug, Args)]
#[command(next_help_heading = "Control plane (port 0 takes a free one)")]
pub(crate) struct ControlArgs {
    /// Serve /metrics and /healthz on this HOST:PORT.
    #[arg(long, value_name = "ADDRESS", env = "VCR_METRICS_ADDRESS")]
    pub(crate) metrics_address: Option<String>,

    /// Serve metrics, health and the control of running engines on this loopback HOST:PORT.
    #[arg(long, value_name = "ADDRESS", env = "VCR_ADMIN_ADDRESS")]
    pub(crate) admin_address: Option<String>,

    /// Serve DCGM_FI_* metrics of GPUs at /metrics of this HOST:PORT.
    #[arg(long, value_name = "ADDRESS", env = "VCR_GPU_METRICS_ADDRESS")]
    pub(crate) gpu_metrics_address: Option<String>,

    /// GPU that the DCGM_FI_* metrics describe.
    #[arg(long, value_name = "GPU", default_value = "h100-sxm", requires = "gpu_metrics_address")]
    pub(crate) gpu_metrics_gpu: String,
}

/// Listens at the addresses in the options. `gpus` are those of the GPU metrics.
pub(crate) fn listen(args: &ControlArgs, gpus: Option<GpuMetrics>) -> Result<Listeners, Unusable> {
    let addresses = Addresses {
        metrics: args.metrics_address.as_deref(),
        admin: args.admin_address.as_deref(),
        gpus: args.gpu_metrics_address.as_deref(),
    };
    Listeners::bind(&addresses)
        .map(|listeners| listeners.with_gpus(gpus))
        .map_err(|error| Unusable { hint: Some(hint(&error).to_owned()), message: with_causes(&error) })
}

fn hint(error: &ControlError) -> &'static str {
    match error {
        ControlError::NoAddress { .. } => "write it as HOST:PORT, such as 127.0.0.1:9090",
        ControlError::NotLoopback { .. } => {
            "use 127.0.0.1:PORT or [::1]:PORT; --metrics-address takes any address, and serves only reads"
        }
        ControlError::Bind { .. } => "port 0 takes a free one",
    }
}

/// Reads latency models like `--latency`.
pub(crate) fn latency_reader(guests: LiveGuests) -> LatencyReader {
    Arc::new(move |text, guest_config| {
        named_latency(&guests, "model", text, guest_config, None)
            .map_err(|Unusable { message, hint }| UnusableModel { message, hint })
    })
}
