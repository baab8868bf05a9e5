//! Identification of sessions in requests: by a header, or with a token from the previous answer.

use std::cell::RefCell;
use std::collections::BTreeMap;

use hyper::header::{COOKIE, HeaderMap, HeaderName, HeaderValue, SET_COOKIE};
use vcr_cluster::{IssuedRequest, SessionNames, SessionToken, TargetError};

use crate::engines::book::name_of;

/// The workload and number of a session.
pub(crate) type Session = (u32, u64);

pub(crate) fn session_of(request: &IssuedRequest) -> Session {
    (request.workload, request.session)
}

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    header: Option<HeaderName>,
    token: Option<Token>,
    /// The token for the next request of each session.
    held: RefCell<BTreeMap<Session, HeaderValue>>,
}

#[derive(Debug)]
enum Token {
    Cookie,
    Header(HeaderName),
}

impl Sessions {
    pub(crate) fn new(names: &SessionNames) -> Result<Self, TargetError> {
        let header = |name: &String| {
            let invalid = |_| TargetError::unusable(format!("invalid header `{name}`: expected a name of HTTP"));
            name.parse::<HeaderName>().map_err(invalid)
        };
        let token = names.token.as_ref().map(|token| match token {
            SessionToken::Cookie => Ok(Token::Cookie),
            SessionToken::Header(name) => header(name).map(Token::Header),
        });
        Ok(Self {
            header: names.header.as_ref().map(header).transpose()?,
            token: token.transpose()?,
            held: RefCell::default(),
        })
    }

    /// The request's headers: its id, for the server's logs, and its session.
    pub(crate) fn headers(&self, request: &IssuedRequest) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut insert = |name: HeaderName, value: String| {
            // The value has only digits, letters and dashes.
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        };
        insert(HeaderName::from_static("x-request-id"), name_of(request.tag));
        let session = session_of(request);
        if let Some(name) = &self.header {
            insert(name.clone(), format!("{}-{}", session.0, session.1));
        }
        if let Some(token) = &self.token
            && let Some(value) = self.held.borrow().get(&session)
        {
            let name = match token {
                Token::Cookie => COOKIE,
                Token::Header(name) => name.clone(),
            };
            headers.insert(name, value.clone());
        }
        headers
    }

    /// Stores the token in an answer for the next request of its session.
    pub(crate) fn answered(&self, session: Session, headers: &HeaderMap) {
        let given = match &self.token {
            None => None,
            Some(Token::Header(name)) => headers.get(name).cloned(),
            Some(Token::Cookie) => {
                // The attributes of a cookie are only for browsers.
                let pairs =
                    headers.get_all(SET_COOKIE).iter().filter_map(|cookie| cookie.to_str().ok()?.split(';').next());
                let pairs: Vec<&str> = pairs.map(str::trim).collect();
                (!pairs.is_empty()).then(|| HeaderValue::from_str(&pairs.join("; ")).ok()).flatten()
            }
        };
        if let Some(given) = given {
            self.held.borrow_mut().insert(session, given);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_answer_has_for_its_session_is_sent_back() {
        let given = |token, headers: &[(&'static str, &'static str)]| {
            let sessions = Sessions::new(&SessionNames { header: None, token: Some(token) }).expect("valid names");
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(*name, HeaderValue::from_static(value));
            }
            sessions.answered((0, 7), &map);
            let held = sessions.held.borrow().clone();
            held.into_iter()
                .map(|(session, value)| (session.1, value.to_str().unwrap_or("").to_owned()))
                .collect::<Vec<_>>()
        };
        let header = SessionToken::Header("x-session-token".to_owned());
        assert_eq!(given(header.clone(), &[("x-session-token", "abc")]), [(7, "abc".to_owned())]);
        assert_eq!(given(header, &[("x-other", "abc")]), []);
        let cookies = [("set-cookie", "a=1; Path=/; HttpOnly"), ("set-cookie", "b=2")];
        assert_eq!(given(SessionToken::Cookie, &cookies), [(7, "a=1; b=2".to_owned())]);
        let named = SessionNames { header: Some("a b".to_owned()), token: None };
        assert!(Sessions::new(&named).expect_err("no name").to_string().contains("invalid header `a b`"));
    }
}
