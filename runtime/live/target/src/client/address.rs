//! Addresses of servers.

use hyper::Uri;
use vcr_cluster::TargetError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) is_tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The path before `/v1`, without a trailing slash.
    pub(crate) path: String,
}

impl Address {
    /// Parses `http://host:port/path`. A trailing `/v1` is dropped.
    pub(crate) fn parse(text: &str) -> Result<Self, TargetError> {
        let invalid = || {
            TargetError::with_hint(
                format!("invalid server address `{text}`: expected http://HOST:PORT or https://HOST:PORT"),
                "http(\"http://localhost:8000\", #{ model: \"...\" })",
            )
        };
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
        let path = path.strip_suffix("/v1").unwrap_or(path);
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { is_tls, host, port, path: path.to_owned() })
    }

    /// The address as in the `Host` header.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(out, "{scheme}://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_a_path() {
        let address = |text| Address::parse(text).map(|address| address.to_string()).map_err(|error| error.to_string());
        assert_eq!(address("http://localhost:8000").unwrap(), "http://localhost:8000");
        assert_eq!(address("http://localhost:8000/v1/").unwrap(), "http://localhost:8000");
        assert_eq!(address("https://example.com/llm/v1").unwrap(), "https://example.com:443/llm");
        assert_eq!(address("http://[::1]:8000").unwrap(), "http://[::1]:8000");
        for text in ["", "localhost:8000", "ftp://x", "http://", "http://a b", "http://u:p@x", "http://x/?a=b"] {
            assert!(address(text).unwrap_err().starts_with("invalid server address"), "{text}");
        }
    }
}
