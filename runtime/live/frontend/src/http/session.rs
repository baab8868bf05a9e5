//! Session cookies, as load balancers set them. The response to a request without the cookie sets it.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::server::ids::RequestIds;

pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");

/// The name of the cookie.
#[derive(Clone, Debug)]
pub struct SessionCookie(String);

impl SessionCookie {
    /// Creates a cookie with this name.
    pub fn new(name: &str) -> Result<Self, &'static str> {
        let is_name =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if is_name { Ok(Self(name.to_owned())) } else { Err("expected letters, digits, `-`, `_` and `.`") }
    }

    /// Sets the session header from the cookie, unless the request already has the header. A request without the
    /// cookie gets a new session, and the `Set-Cookie` value is returned.
    pub(crate) fn enter(&self, headers: &mut HeaderMap, ids: &RequestIds) -> Option<HeaderValue> {
        if headers.contains_key(SESSION_ID) {
            return None;
        }
        let known =
            headers.get_all(header::COOKIE).iter().filter_map(|cookie| cookie.to_str().ok()).find_map(|cookies| {
                cookies.split(';').find_map(|pair| pair.trim().strip_prefix(self.0.as_str())?.strip_prefix('='))
            });
        let session = known.map_or_else(|| ids.long().to_string(), str::to_owned);
        let set = known.is_none().then(|| format!("{}={session}; Path=/; HttpOnly; SameSite=Lax", self.0));
        // Values from a header and hexadecimal digits are valid in a header.
        headers.insert(SESSION_ID, HeaderValue::from_str(&session).ok()?);
        HeaderValue::from_str(&set?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entered(pairs: &[(&'static str, &'static str)]) -> (String, Option<String>) {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let set = SessionCookie::new("vcr").expect("a name").enter(&mut headers, &RequestIds::new());
        let text = |value: &HeaderValue| value.to_str().expect("text").to_owned();
        (text(&headers[SESSION_ID]), set.as_ref().map(text))
    }

    #[test]
    fn a_session_is_that_of_the_header_of_the_cookie_or_new() {
        assert_eq!(entered(&[("x-session-id", "a"), ("cookie", "vcr=b")]), ("a".to_owned(), None));
        assert_eq!(entered(&[("cookie", "vcrx=1; vcr=b")]), ("b".to_owned(), None));
        let (session, set) = entered(&[("cookie", "other=1")]);
        assert_eq!(set, Some(format!("vcr={session}; Path=/; HttpOnly; SameSite=Lax")));
        assert!(SessionCookie::new("a b").is_err() && SessionCookie::new("").is_err());
    }
}
