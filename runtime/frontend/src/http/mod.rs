//! HTTP around the API: sockets, TLS, API keys, CORS, request ids, the access
//! log, and limits.

mod around;
mod connection;
mod large;
mod layers;
mod listen;
mod stream_panics;
#[cfg(test)]
mod tests;
mod tls;

pub use around::Around;
pub use connection::{ConnectionControl, PeerAddress};
pub use layers::{ApiKeys, Cors, RequestId, RequestLog};
pub use listen::{ListenError, ListenOptions, bind, serve};
pub use tls::{ClientCertificates, Tls, TlsError, TlsFiles};
