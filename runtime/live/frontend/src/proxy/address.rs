//! Addresses of servers.

use std::str::FromStr;

use hyper::Uri;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Whether the server uses TLS.
    pub is_tls: bool,
    /// The host name or IP address, without brackets.
    pub host: String,
    pub port: u16,
    /// A prefix for request paths, without a trailing slash.
    pub path: String,
}

/// An invalid address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid server address `{0}`: expected http://HOST:PORT or https://HOST:PORT, with a path if it has one")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    /// Parses an address. A trailing `/v1` is dropped, because requests have it.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let invalid = || AddressError(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(invalid)?;
        if uri.query().is_some() || uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(invalid());
        }
        let path = uri.path().trim_end_matches('/');
        let path = path.strip_suffix("/v1").unwrap_or(path).to_owned();
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { is_tls, host, port, path })
    }
}

impl Address {
    /// The address as in the `Host` header.
    pub(crate) fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.is_tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", if self.is_tls { "https" } else { "http" }, self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_a_path() {
        let address = |text: &str| text.parse::<Address>().map(|address| address.to_string());
        assert_eq!(address("http://localhost:8000").unwrap(), "http://localhost:8000");
        assert_eq!(address("https://example.com/llm/v1/").unwrap(), "https://example.com/llm");
        assert_eq!(address("http://[::1]:80/a").unwrap(), "http://[::1]/a");
        for text in ["", "localhost:8000", "ftp://x", "http://", "http://a b", "http://u:p@x", "http://x/?a=b"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
