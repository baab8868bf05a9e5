//! The properties of a call that rules match.

use std::collections::BTreeMap;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use serde::Deserialize;

use super::rule::{CountedPer, FaultConditions};

/// Paths for probes and monitoring. A rule affects them only if it names a path.
const UNTOUCHED: &[&str] = &["/health", "/health/ready", "/metrics", "/ping", "/ready", "/load", "/version"];

/// How the tenant of a call is found: from the header, or else from the API key, or else from the body's
/// `cache_salt`. The engines' scheduling policies do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenants {
    pub header: HeaderName,
    /// Tenants by API key.
    pub by_key: BTreeMap<String, String>,
}

impl Default for Tenants {
    fn default() -> Self {
        Self { header: HeaderName::from_static("x-tenant"), by_key: BTreeMap::new() }
    }
}

impl Tenants {
    fn of<'a>(&'a self, headers: &'a HeaderMap, body: &'a NamedInBody) -> Option<&'a str> {
        let named = headers.get(&self.header).and_then(|value| value.to_str().ok());
        let of_key = || api_key(headers).and_then(|key| self.by_key.get(key)).map(String::as_str);
        named.or_else(of_key).or(body.cache_salt.as_deref())
    }
}

/// The fields of a body that rules match.
#[derive(Debug, Default, Deserialize)]
pub(super) struct NamedInBody {
    model: Option<String>,
    cache_salt: Option<String>,
}

pub(super) struct Caller<'a> {
    path: &'a str,
    headers: &'a HeaderMap,
    tenant: Option<&'a str>,
    model: Option<&'a str>,
}

impl<'a> Caller<'a> {
    pub(super) fn new(parts: &'a Parts, body: &'a NamedInBody, tenants: &'a Tenants) -> Self {
        let headers = &parts.headers;
        Self { path: parts.uri.path(), headers, tenant: tenants.of(headers, body), model: body.model.as_deref() }
    }

    /// The value by which this call is counted separately.
    pub(super) fn counted_as(&self, per: &CountedPer) -> Option<&'a str> {
        match per {
            CountedPer::ApiKey => api_key(self.headers),
            CountedPer::Tenant => self.tenant,
            CountedPer::Model => self.model,
            CountedPer::Header(name) => self.headers.get(name).and_then(|value| value.to_str().ok()),
        }
    }

    /// Whether the call matches all conditions except number and time.
    pub(super) fn fits(&self, when: &FaultConditions) -> bool {
        let is_path = match &when.paths[..] {
            [] => !UNTOUCHED.contains(&self.path),
            starts => starts.iter().any(|start| self.path.starts_with(start)),
        };
        let has_header = |(name, wanted): &(String, Option<String>)| {
            let value = self.headers.get(name).and_then(|value| value.to_str().ok());
            value.is_some_and(|value| wanted.as_ref().is_none_or(|wanted| wanted == value))
        };
        is_path
            && when.header.as_ref().is_none_or(has_header)
            && when.api_key.as_deref().is_none_or(|key| api_key(self.headers) == Some(key))
            && when.tenant.as_deref().is_none_or(|name| self.tenant == Some(name))
            && when.model.as_deref().is_none_or(|name| self.model == Some(name))
    }
}

/// The API key of a call, as OpenAI's or Anthropic's clients send it.
fn api_key(headers: &HeaderMap) -> Option<&str> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| text("x-api-key"))
}
