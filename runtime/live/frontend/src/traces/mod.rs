//! OpenTelemetry traces: one span per request with vLLM's attributes, sent by OTLP over HTTP or gRPC.
//!
//! `context.rs` reads the caller's span from request headers. `observer.rs` creates spans from the engines'
//! messages. `export.rs` sends them from its own thread through `transport.rs`. Without an endpoint, none of this
//! runs.

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
