//! Interfaces of everything that decides or measures for an engine and can be replaced.

mod context;
pub mod factory;
pub mod fault;
pub mod latency;
pub mod policy;
pub mod request_times;
pub mod route;
pub mod scale;
mod token_source;
pub mod tokens;

pub use context::PluginContext;
pub use token_source::TokenSource;
