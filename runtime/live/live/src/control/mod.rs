//! The control plane: observes and changes live engines over HTTP.
//!
//! It has two parts, each at its own address. The *metrics* part is read-only (`/metrics`, `/healthz`) and may be
//! served at any address. The *admin* part adds routes that change engines. Any of its clients can stop them, so it
//! refuses addresses that other machines can reach. `docs/reference/play` describes both.
//!
//! This module owns a thread, sockets and the wording of answers. The engines carry out the commands; the caller
//! reads names of latency models with its [`LatencyReader`].
//!
//! ```no_run
//! # fn parts() -> (vcr_live::LiveEngines, vcr_live::control::LatencyReader) { unimplemented!() }
//! use vcr_live::control::{Addresses, Listeners};
//!
//! // Bind before the engines start, so that a bad address is refused before they connect.
//! let listeners = Listeners::bind(&Addresses { admin: Some("127.0.0.1:9090"), ..Addresses::default() })?;
//! let (engines, latency) = parts();
//! let control = listeners.serve(engines.handle(), latency)?;
//! engines.wait()?;
//! drop(control);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod body;
mod change;
mod client_faults;
mod fake_metrics;
mod gpu_metrics;
mod listen;
mod metrics;
mod routes;
mod server;
mod view;

use std::sync::Arc;

use crate::LatencyFactory;

pub use client_faults::ClientFaultRules;
pub use fake_metrics::FakeMetricValues;
pub use gpu_metrics::GpuMetrics;
pub use listen::{Addresses, ControlError, Listeners};
pub use server::ControlPlane;

/// Routes that another server may serve.
pub type Routes = axum::Router;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// Makes a latency model from a user's text and an optional guest configuration in JSON. Also
/// returns the model's name.
pub type LatencyReader =
    Arc<dyn Fn(&str, Option<&str>) -> Result<(LatencyFactory, String), UnusableModel> + Send + Sync>;

/// Reads the telemetry of the engines' guests, in a fixed order.
pub type GuestReader = Arc<dyn Fn() -> Vec<GuestSample> + Send + Sync>;

/// One item of a guest's telemetry.
#[derive(Clone, Debug, PartialEq)]
pub struct GuestSample {
    /// The guest's name.
    pub guest: String,
    /// Rank of the engine; `None` for a guest that serves all engines.
    pub engine: Option<u32>,
    pub value: GuestValue,
}

/// A value of a guest's telemetry, or of its host.
#[derive(Clone, Debug, PartialEq)]
pub enum GuestValue {
    /// A counter and its total.
    Counter(String, u64),
    /// A gauge and its latest value.
    Gauge(String, f64),
    /// Number of dropped notes.
    Dropped(u64),
    /// Number of failures that the guest's fallback handled.
    Failures(u64),
}

/// The reason why a text is not a latency model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableModel {
    /// The problem.
    pub message: String,
    /// Advice for fixing the problem.
    pub hint: Option<String>,
}

#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    message: String,
    hint: Option<String>,
}

/// The JSON body of a refusal.
#[derive(Serialize)]
struct Body {
    error: String,
    hint: Option<String>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), hint: None }
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(Body { error: self.message, hint: self.hint })).into_response()
    }
}
