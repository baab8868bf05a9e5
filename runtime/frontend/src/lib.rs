//! The frontend of `vcr serve`: vLLM's OpenAI-compatible HTTP server, in the same
//! process as the live engines.
//!
//! `engine/` sends requests to the engines and hands on their outputs; `generate/`
//! makes sampling parameters of requests and text of outputs; `api/` has a module
//! for each endpoint; `server/` holds what they share, and serves connections.

mod api;
pub mod engine;
mod english;
mod generate;
pub mod server;

pub use api::router;
pub use engine::{EngineClient, EngineError};
pub use english::EnglishTokens;
pub use server::error::ApiError;
pub use server::model::Model;
pub use server::{App, ServerOptions};
