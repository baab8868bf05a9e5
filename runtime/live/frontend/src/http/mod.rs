//! HTTP around the API: sockets, TLS, API keys, CORS, request ids, the access log, and limits.

mod around;
mod body;
mod client_tls;
mod connection;
mod head_timer;
mod large;
mod layers;
mod listen;
mod paged;
mod pod;
mod protocol;
mod session;
mod stream_panics;
#[cfg(test)]
mod tests;
mod threads;
mod tls;

pub use around::{Around, Before, Client, Innermost, Next, Service};
pub use body::BodyLimits;
pub use client_tls::client_tls;
pub use connection::ConnectionControl;
pub use layers::{ApiKeys, Cors, RequestLog};
pub use listen::{ListenError, ListenOptions, bind, serve};
pub use paged::PageSite;
pub use pod::PodHeaders;
pub(crate) use session::SESSION_ID;
pub use session::SessionCookie;
pub use threads::{ServerThreads, ThreadPool};
pub use tls::{ClientCertificates, ServerCertificate, Tls, TlsError, TlsSettings};
