//! The frontend of `vcr serve`: vLLM's OpenAI-compatible HTTP server, in the same process as the live engines.
//!
//! `engine/` sends requests to the engines and receives their outputs. `generate/` converts requests to sampling
//! parameters and outputs to text. `parse/` extracts reasoning and tool calls. `media/` counts images, audio and
//! video. `api/` has a module for each endpoint. `dialects/` translates other APIs. `server/` holds shared state.
//!
//! Around the API, `http/` has sockets, TLS, API keys and CORS. `faults/` injects client faults. `metrics/` has
//! Prometheus metrics, and `traces/` sends spans of requests. `proxy/` records any server and answers from
//! recordings. `page/` is the page at `/_vcr/`, and `tee` observes bodies. Three modules parse files:
//! `options_file` for options, `llm_d/` for configurations of llm-d-inference-sim, and `answers` for data sets.

mod alarm;
pub mod answers;
mod api;
pub mod dialects;
pub mod engine;
pub mod faults;
mod front;
mod generate;
pub mod http;
pub mod llm_d;
mod media;
pub mod metrics;
pub mod options_file;
pub mod page;
mod parse;
pub mod proxy;
pub mod server;
mod tee;
pub mod traces;

pub use alarm::Alarm;
pub use api::{RenderedApi, render_body, render_generate};
pub use engine::{Admission, EngineClient, EngineError};
pub use front::HttpServer;
pub use media::{EncoderAddress, EncoderOnly, ImageOptions, MediaLimits, MediaRules};
pub use server::adapters::Adapters;
pub use server::chats::{CallParsing, ChatOptions};
pub use server::error::{ApiError, ERROR_KINDS, ErrorKind};
pub use server::frontend_kind::FrontendKind;
pub use server::model::Model;
pub use server::schema_backend::SchemaBackend;
pub use server::structures::StructureCheck;
pub use server::{App, ServerOptions};
