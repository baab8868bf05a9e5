//! The address of a trace collector.

use std::fmt;
use std::str::FromStr;

const DEFAULT_PATH: &str = "/v1/traces";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// OTLP over HTTP/1.1.
    Http,
    /// OTLP over gRPC.
    Grpc,
}

/// The address of a collector: `http://HOST:PORT/PATH` or `grpc://HOST:PORT`. With TLS, the scheme is `https` or
/// `grpcs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub(super) protocol: Protocol,
    pub(super) has_tls: bool,
    /// `HOST:PORT`.
    pub(super) authority: String,
    /// The path. Empty for gRPC.
    pub(super) path: String,
}

/// An invalid address of a collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected http://HOST:PORT/PATH or https:// for OTLP over HTTP (port 4318 of most collectors), grpc://HOST:PORT \
     or grpcs:// for OTLP over gRPC (port 4317)"
)]
pub struct EndpointError;

const SCHEMES: [(&str, Protocol, bool); 4] = [
    ("http://", Protocol::Http, false),
    ("https://", Protocol::Http, true),
    ("grpc://", Protocol::Grpc, false),
    ("grpcs://", Protocol::Grpc, true),
];

impl Endpoint {
    /// The host. IPv6 addresses have no brackets.
    pub(super) fn host(&self) -> &str {
        let host = self.authority.rsplit_once(':').map_or(&*self.authority, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let text = text.trim();
        let of_scheme = |(scheme, protocol, has_tls)| Some((text.strip_prefix(scheme)?, protocol, has_tls));
        let (rest, protocol, has_tls) = SCHEMES.into_iter().find_map(of_scheme).ok_or(EndpointError)?;
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let has_port = authority
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !has_port || authority.contains('@') || !is_plain(rest) {
            return Err(EndpointError);
        }
        let path = match (protocol, path) {
            (Protocol::Http, "" | "/") => DEFAULT_PATH,
            (Protocol::Grpc, "/") => "",
            (Protocol::Grpc, path) if !path.is_empty() => return Err(EndpointError),
            (_, path) => path,
        };
        Ok(Self { protocol, has_tls, authority: authority.to_owned(), path: path.to_owned() })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_own =
            |(_, protocol, has_tls): &&(&str, Protocol, bool)| (*protocol, *has_tls) == (self.protocol, self.has_tls);
        let scheme = SCHEMES.iter().find(is_own).map_or("", |(scheme, ..)| scheme);
        write!(out, "{scheme}{}{}", self.authority, self.path)
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
        assert_eq!(text("https://localhost:4318/").as_deref(), Ok("https://localhost:4318/v1/traces"));
        assert_eq!(text("grpc://localhost:4317/").as_deref(), Ok("grpc://localhost:4317"));
        assert_eq!(
            "grpcs://[::1]:4317".parse::<Endpoint>().map(|endpoint| endpoint.host().to_owned()),
            Ok("::1".into())
        );
        for url in [
            "localhost:4318",
            "ftp://localhost:4318",
            "grpc://localhost:4317/path",
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
