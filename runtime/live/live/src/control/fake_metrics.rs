//! Invented metrics of a server: shown, changed, and removed at run time.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::control::Refusal;
use crate::control::body::{Change, ChangeBody, Nothing};
use crate::control::listen::Context;

/// The invented metrics of a server, which alone knows their names and values.
pub trait FakeMetricValues: Send + Sync {
    /// The values by name; empty while the real metrics are served.
    fn values(&self) -> Map<String, Value>;

    /// Sets these values and leaves all others.
    ///
    /// # Errors
    /// Some value is invalid; nothing has changed then.
    fn set(&self, values: Map<String, Value>) -> Result<(), String>;

    /// Serves the real metrics again.
    fn clear(&self);
}

#[derive(Debug, Deserialize)]
pub(crate) struct FakeMetricsChange(Map<String, Value>);

impl ChangeBody for FakeMetricsChange {
    const EXAMPLE: &'static str = r#"{"running-requests": 10, "kv-cache-usage": "ramp:0:1:30s"}"#;
}

#[derive(Debug, Serialize)]
pub(crate) struct FakeMetricsView {
    fake_metrics: Map<String, Value>,
}

fn values_of(context: &Context) -> Result<&Arc<dyn FakeMetricValues>, Refusal> {
    context.fake_metrics.as_ref().ok_or_else(|| {
        Refusal::new(StatusCode::NOT_FOUND, "metrics are the frontend's here").hint("vcr serve has metrics of its own")
    })
}

fn view(values: &Arc<dyn FakeMetricValues>) -> Json<FakeMetricsView> {
    Json(FakeMetricsView { fake_metrics: values.values() })
}

pub(crate) async fn list(State(context): State<Context>) -> Result<Json<FakeMetricsView>, Refusal> {
    values_of(&context).map(view)
}

pub(crate) async fn set(
    State(context): State<Context>,
    Change(FakeMetricsChange(change)): Change<FakeMetricsChange>,
) -> Result<Json<FakeMetricsView>, Refusal> {
    let values = values_of(&context)?;
    let names = change.keys().cloned().collect::<Vec<_>>().join(", ");
    tracing::info!("command: serve the made-up metrics {names}");
    values.set(change).map_err(Refusal::bad)?;
    Ok(view(values))
}

pub(crate) async fn clear(
    State(context): State<Context>,
    Change(Nothing {}): Change<Nothing>,
) -> Result<Json<FakeMetricsView>, Refusal> {
    let values = values_of(&context)?;
    values.clear();
    tracing::info!("command: serve the real metrics");
    Ok(view(values))
}
