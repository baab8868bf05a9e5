//! The address of a collector.

use std::fmt;
use std::str::FromStr;

/// Where collectors take traces, if the URL says no path.
const DEFAULT_PATH: &str = "/v1/traces";

/// The address of a collector: `http://HOST:PORT/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// HOST:PORT.
    pub(super) authority: String,
    pub(super) path: String,
}

/// A URL that traces cannot be sent to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected http://HOST:PORT or http://HOST:PORT/PATH, for OTLP over HTTP without TLS (port 4318 of most collectors)"
)]
pub struct EndpointError;

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let rest = text.trim().strip_prefix("http://").ok_or(EndpointError)?;
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let has_port = authority
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !has_port || authority.contains('@') || !is_plain(rest) {
            return Err(EndpointError);
        }
        let path = if path.is_empty() || path == "/" { DEFAULT_PATH } else { path };
        Ok(Self { authority: authority.to_owned(), path: path.to_owned() })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "http://{}{}", self.authority, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_a_port_and_perhaps_a_path() {
        let text = |url: &str| url.parse::<Endpoint>().map(|endpoint| endpoint.to_string());
        assert_eq!(text("http://localhost:4318").as_deref(), Ok("http://localhost:4318/v1/traces"));
        assert_eq!(text("http://[::1]:4318/x/y").as_deref(), Ok("http://[::1]:4318/x/y"));
        for url in [
            "localhost:4318",
            "https://localhost:4318",
            "grpc://localhost:4317",
            "http://localhost",
            "http://:4318",
            "http://a:0",
            "http://a:b@c:4318",
            "http://a:4318/x y",
        ] {
            assert_eq!(text(url), Err(EndpointError), "{url}");
        }
    }
}
