//! Downloads from a registry, with limits of bytes and time, because a registry may send data forever.

use std::time::Duration;

use oci_client::Reference;
use oci_client::secrets::RegistryAuth;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Response, StatusCode, Url};

/// Maximum size of a login response.
const TOKEN_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of bytes of an error's text that are shown.
const REASON_BYTES_MAX: u64 = 1 << 10;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time without data from the registry.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit of one download.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(600);

/// Downloads from one repository.
pub(crate) struct Downloads {
    client: reqwest::Client,
    /// `https://REGISTRY/v2/`.
    root: String,
    repository: String,
    auth: RegistryAuth,
    /// The header that the registry requires, once known.
    authorization: Option<HeaderValue>,
}

impl Downloads {
    /// Makes the client, without a request.
    pub(crate) fn new(image: &Reference, is_local: bool, auth: RegistryAuth) -> Result<Self, String> {
        let client = reqwest::Client::builder()
            .https_only(!is_local)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .timeout(TOTAL_TIMEOUT)
            .user_agent(concat!("vcr/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| message_of(&error))?;
        let scheme = if is_local { "http" } else { "https" };
        let root = format!("{scheme}://{}/v2/", image.resolve_registry());
        Ok(Self { client, root, repository: image.repository().to_owned(), auth, authorization: None })
    }

    /// Returns the content at `path` of the repository, at most `bytes_max` bytes.
    pub(crate) async fn get(&mut self, path: &str, accept: &str, bytes_max: u64) -> Result<Vec<u8>, String> {
        let url = format!("{}{}/{path}", self.root, self.repository);
        let mut answer = self.send(&url, accept).await?;
        if answer.status() == StatusCode::UNAUTHORIZED && self.authorization.is_none() {
            self.log_in(answer.headers()).await?;
            answer = self.send(&url, accept).await?;
        }
        let status = answer.status();
        if status.is_success() {
            return bounded(answer, bytes_max).await;
        }
        let mut text = bounded(answer, REASON_BYTES_MAX).await.unwrap_or_default();
        text.retain(|byte| !byte.is_ascii_control());
        let text = String::from_utf8_lossy(&text);
        let separator = if text.is_empty() { "" } else { ": " };
        Err(format!("the registry answers {status} for `{url}`{separator}{text}"))
    }

    async fn send(&self, url: &str, accept: &str) -> Result<Response, String> {
        let mut request = self.client.get(url).header(ACCEPT, accept);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.send().await.map_err(|error| message_of(&error))
    }

    /// Logs in as the registry's challenge demands.
    async fn log_in(&mut self, headers: &HeaderMap) -> Result<(), String> {
        let challenges = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let Some((realm, service)) = challenges.filter_map(bearer).next() else {
            let RegistryAuth::Basic(user, password) = &self.auth else { return Ok(()) };
            self.authorization = Some(of_request(self.client.get(&self.root).basic_auth(user, Some(password)))?);
            return Ok(());
        };
        let mut realm = Url::parse(realm).map_err(|_| format!("invalid realm of a login `{realm}`: expected a URL"))?;
        let scope = format!("repository:{}:pull", self.repository);
        realm.query_pairs_mut().append_pair("scope", &scope).extend_pairs(service.map(|service| ("service", service)));
        let mut request = self.client.get(realm);
        if let RegistryAuth::Basic(user, password) = &self.auth {
            request = request.basic_auth(user, Some(password));
        }
        let answer = request.send().await.map_err(|error| message_of(&error))?;
        let status = answer.status();
        if !status.is_success() {
            return Err(format!("the login is refused: {status}"));
        }
        let answer = bounded(answer, TOKEN_BYTES_MAX).await?;
        let answer: serde_json::Value =
            serde_json::from_slice(&answer).map_err(|_| "invalid answer to a login: expected JSON".to_owned())?;
        let token = ["token", "access_token"].into_iter().find_map(|name| answer[name].as_str());
        let token = token.ok_or("invalid answer to a login: expected a token")?;
        self.authorization = Some(of_request(self.client.get(&self.root).bearer_auth(token))?);
        Ok(())
    }
}

/// The authorization header of a request.
fn of_request(request: reqwest::RequestBuilder) -> Result<HeaderValue, String> {
    let request = request.build().map_err(|error| message_of(&error))?;
    request.headers().get(AUTHORIZATION).cloned().ok_or_else(|| "invalid token of a login".to_owned())
}

/// The realm and the service of a challenge `Bearer realm="...",service="..."`.
fn bearer(challenge: &str) -> Option<(&str, Option<&str>)> {
    let (scheme, rest) = challenge.split_once(' ')?;
    let value = |name: &str| {
        let pairs = rest.split(',').filter_map(|pair| pair.trim().split_once('='));
        let found = pairs.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim_matches('"'));
        found.into_iter().next()
    };
    if !scheme.eq_ignore_ascii_case("Bearer") {
        return None;
    }
    Some((value("realm")?, value("service")))
}

async fn bounded(mut answer: Response, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| message_of(&error))? {
        if (bytes.len() + piece.len()) as u64 > bytes_max {
            return Err(format!("the registry sends more than {bytes_max} bytes"));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

fn message_of(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_name_a_realm() {
        let both = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="x""#;
        assert_eq!(bearer(both), Some(("https://auth.docker.io/token", Some("registry.docker.io"))));
        assert_eq!(bearer("bearer realm=https://a/b"), Some(("https://a/b", None)));
        for other in ["Basic realm=\"x\"", "Bearer service=\"x\"", "Bearer", ""] {
            assert_eq!(bearer(other), None, "{other}");
        }
    }
}
