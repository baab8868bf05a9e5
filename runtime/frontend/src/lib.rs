//! The frontend of `vcr serve`: vLLM's OpenAI-compatible HTTP server, in the same
//! process as the live engines.
//!
//! `engine/` sends requests to the engines and hands on their outputs; `generate/`
//! makes sampling parameters of requests and text of outputs; `api/` has a module
//! for each endpoint, `dialects/` translates other APIs; `server/` holds what they
//! share, and serves connections; `http/`, `metrics/` and `faults/` are layers around
//! all endpoints.

mod api;
pub mod dialects;
pub mod engine;
pub mod faults;
mod generate;
pub mod http;
pub mod metrics;
pub mod server;

pub use api::router;
pub use engine::{EngineClient, EngineError};
pub use server::error::ApiError;
pub use server::model::Model;
pub use server::{App, ServerOptions};
