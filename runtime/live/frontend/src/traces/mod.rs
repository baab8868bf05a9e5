//! OpenTelemetry traces: a span for each request, with vLLM's attributes, sent by OTLP
//! over HTTP or gRPC.
//!
//! `context.rs` reads the caller's span from a request's headers, `observer.rs` makes spans from
//! the engines' messages, `export.rs` sends them from a thread of its own through `transport.rs`.
//! Without an endpoint none of it runs.

mod context;
mod endpoint;
mod export;
mod observer;
mod proto;
mod transport;

pub use context::propagate;
pub use endpoint::{Endpoint, EndpointError};
pub use export::{SpanSender, TraceExporter};
pub use observer::TracedEngines;
