//! The client of a server with OpenAI's API: identifies the server, sends requests, reads metrics.

pub(crate) mod address;
pub(crate) mod completions;
pub(crate) mod disaggregated;
pub(crate) mod error;
pub(crate) mod metrics;
pub(crate) mod pool;
mod recorded;
pub(crate) mod scraper;
pub(crate) mod server;
pub(crate) mod sessions;
mod sse;
pub(crate) mod tls;
pub(crate) mod words;
