//! Access control of the page: who may open it, and what requests it may make.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// The address of the page, and its allowed visitors.
#[derive(Clone, Debug, Default)]
pub struct Audience {
    /// A host name or address of the page in addition to this machine's.
    pub host: Option<String>,
    /// Whether other machines may access the page.
    pub is_open: bool,
}

/// The client of a request to the page.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// Whether the request arrived at the page's own address.
    pub is_at_own: bool,
}

const SEC_FETCH_SITE: &str = "sec-fetch-site";

impl Audience {
    /// Admits a request, or returns the reason why not.
    ///
    /// Another site's page could send requests on behalf of its viewer; the browser shows this in `Origin` or
    /// `Sec-Fetch-Site`. It could also resolve its own name to this machine's address, so only known host names are
    /// accepted.
    pub(super) fn check(&self, request: &Request, peer: Peer) -> Result<(), Refused> {
        let headers = request.headers();
        if !self.is_open && !peer.address.ip().to_canonical().is_loopback() {
            let hint = "--ui-address HOST:PORT serves the page to other machines";
            return Err(refused("the page is served to this machine only", hint));
        }
        let host = host_of(request);
        if !host.as_deref().is_some_and(|host| self.is_known(host)) {
            let message = format!("the page is not served as `{}`", host.unwrap_or_default());
            return Err(refused(&message, "ask for it by an address, such as http://127.0.0.1:8000/_vcr/"));
        }
        let is_own_origin = |origin: &str| {
            let authority = origin.split_once("://").map(|(_, authority)| authority);
            authority.is_some_and(|authority| Some(authority) == authority_of(request).as_deref())
        };
        let is_cross_site = text(headers, SEC_FETCH_SITE).is_some_and(|site| !["same-origin", "none"].contains(&site));
        let is_cross_origin = text(headers, header::ORIGIN.as_str()).is_some_and(|origin| !is_own_origin(origin));
        if (is_cross_site && !is_opening(request)) || is_cross_origin {
            return Err(refused("pages of other sites may not ask here", "open /_vcr/ itself"));
        }
        Ok(())
    }

    fn is_known(&self, host: &str) -> bool {
        let is_own = self.host.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(host));
        let address = host.trim_start_matches('[').trim_end_matches(']');
        is_own || host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
    }
}

/// Removes the headers that name the origin, because the request comes from this page.
pub(super) fn vouch(request: &mut Request) {
    request.headers_mut().remove(header::ORIGIN);
    request.headers_mut().remove(SEC_FETCH_SITE);
}

/// Whether a link on another site opens the page. The page then makes its own requests.
fn is_opening(request: &Request) -> bool {
    let is_page = matches!(request.uri().path(), "/_vcr" | "/_vcr/");
    is_page && request.method() == Method::GET && text(request.headers(), "sec-fetch-mode") == Some("navigate")
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// `HOST:PORT`, as the client wrote it.
fn authority_of(request: &Request) -> Option<String> {
    let of_uri = request.uri().authority().map(ToString::to_string);
    of_uri.or_else(|| text(request.headers(), header::HOST.as_str()).map(str::to_owned))
}

fn host_of(request: &Request) -> Option<String> {
    let authority = authority_of(request)?;
    let end = match authority.rfind(']') {
        Some(bracket) => bracket + 1,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    Some(authority[..end].to_owned())
}

/// The reason why a request is refused, and a remedy.
#[derive(Debug)]
pub(super) struct Refused {
    message: String,
    hint: &'static str,
}

pub(super) fn refused(message: &str, hint: &'static str) -> Refused {
    Refused { message: message.to_owned(), hint }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (StatusCode::FORBIDDEN, axum::Json(json!({"error": self.message, "hint": self.hint}))).into_response()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn asked(path: &str, headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).expect("a request")
    }

    fn from(address: &str) -> Peer {
        Peer { address: address.parse().expect("an address"), is_at_own: false }
    }

    const API: &str = "/_vcr/api/requests";

    #[test]
    fn only_this_machine_asks_unless_it_is_open() {
        let request = asked(API, &[("host", "127.0.0.1:8000")]);
        let closed = Audience::default();
        for address in ["127.0.0.1:9", "[::1]:9", "[::ffff:127.0.0.1]:9"] {
            assert!(closed.check(&request, from(address)).is_ok(), "{address}");
        }
        assert!(closed.check(&request, from("192.0.2.1:9")).is_err());
        let open = Audience { is_open: true, ..Audience::default() };
        assert!(open.check(&request, from("192.0.2.1:9")).is_ok());
    }

    #[test]
    fn names_that_another_site_could_own_are_refused() {
        let audience = Audience { host: Some("box.example".to_owned()), is_open: true };
        let check = |host: &str| audience.check(&asked(API, &[("host", host)]), from("127.0.0.1:9")).is_ok();
        for host in ["localhost:8000", "127.0.0.1:8000", "[::1]:8000", "10.0.0.1", "Box.example:1"] {
            assert!(check(host), "{host}");
        }
        for host in ["evil.example:8000", "localhost.evil.example", "", "box.example.evil"] {
            assert!(!check(host), "{host}");
        }
        assert!(audience.check(&asked(API, &[]), from("127.0.0.1:9")).is_err(), "no host");
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let check = |path: &str, more: &[(&str, &str)]| {
            let headers = [&[("host", "127.0.0.1:8000")], more].concat();
            Audience::default().check(&asked(path, &headers), from("127.0.0.1:9")).is_ok()
        };
        assert!(check(API, &[("origin", "http://127.0.0.1:8000"), ("sec-fetch-site", "same-origin")]));
        assert!(check(API, &[("sec-fetch-site", "none")]));
        for (name, value) in [
            ("origin", "http://127.0.0.1:9000"),
            ("origin", "null"),
            ("origin", "http://evil.example"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert!(!check(API, &[(name, value)]), "{name}: {value}");
        }
        // A link may open the page.
        let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
        assert!(check("/_vcr/", &link) && !check(API, &link));
    }
}
