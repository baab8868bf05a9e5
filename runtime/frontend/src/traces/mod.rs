//! OpenTelemetry traces: a span for each request, with vLLM's attributes, sent by OTLP
//! over HTTP.
//!
//! `context.rs` takes the caller's span from a request's headers, `observer.rs` makes spans
//! of what engines send, `export.rs` sends them from a thread of its own. Without an endpoint
//! none of it runs.

mod context;
mod endpoint;
mod export;
mod observer;
mod proto;

pub use context::propagate;
pub use endpoint::{Endpoint, EndpointError};
pub use export::{SpanSender, TraceExporter};
pub use observer::TracedEngines;
