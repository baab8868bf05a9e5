//! Sleep, pause and prefix cache reset.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::engine::EngineError;
use crate::server::App;
use crate::server::error::ApiError;

/// The parameters of a query string.
pub(in crate::api) struct Params(Vec<(String, String)>);

impl Params {
    pub(in crate::api) fn read(query: Option<String>) -> Self {
        let query = query.unwrap_or_default();
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(key), decoded(value))
        };
        Self(pairs.map(pair).collect())
    }

    pub(in crate::api) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    pub(in crate::api) fn flag(&self, key: &'static str, default: bool) -> Result<bool, ApiError> {
        match self.get(key) {
            None => Ok(default),
            Some("true" | "True" | "1") => Ok(true),
            Some("false" | "False" | "0") => Ok(false),
            Some(_) => Err(invalid(key, "provided string was not `true` or `false`")),
        }
    }

    /// Handling of requests in progress: `abort`, `wait` or `keep`.
    fn mode(&self) -> Result<&str, ApiError> {
        match self.get("mode").unwrap_or("abort") {
            mode @ ("abort" | "wait" | "keep") => Ok(mode),
            other => Err(invalid("mode", &format!("invalid pause mode `{other}`; expected one of: abort, wait, keep"))),
        }
    }
}

fn invalid(key: &str, reason: &str) -> ApiError {
    ApiError::invalid(format!("Failed to deserialize query string: {key}: {reason}"))
}

/// Percent-decodes a text. Returns it unchanged if the result is not UTF-8.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match (first, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = tail;
            }
            (other, _) => {
                bytes.push(*other);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// Converts the error of a failed call to the engines.
pub(in crate::api) fn call_error(call: &'static str) -> impl Fn(EngineError) -> ApiError {
    move |error| ApiError::internal(format!("failed to call {call}: {error}"))
}

pub(in crate::api) async fn sleep(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let params = Params::read(query);
    let level = params.get("level").unwrap_or("1");
    let level: u32 = level.parse().map_err(|_| invalid("level", "invalid digit found in string"))?;
    if level > 2 {
        return Err(ApiError::invalid_param("level", "level must be between 0 and 2"));
    }
    app.engines.sleep(level, params.mode()?).await.map_err(call_error("sleep"))?;
    Ok(Json(json!({"status": "sleeping", "level": level})))
}

/// Wakes the engines, or only the parts named by tags.
pub(in crate::api) async fn wake_up(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let params = Params::read(query);
    let tags: Vec<String> = params.0.into_iter().filter(|(key, _)| key == "tags").map(|(_, value)| value).collect();
    let tags = (!tags.is_empty()).then_some(tags);
    let is_awake = app.engines.wake_up(tags.as_deref()).await.map_err(call_error("wake_up"))?;
    Ok(Json(json!({"status": if is_awake { "awake" } else { "sleeping" }, "tags": tags})))
}

pub(in crate::api) async fn is_sleeping(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let is_sleeping = app.engines.is_sleeping().await.map_err(call_error("is_sleeping"))?;
    Ok(Json(json!({"is_sleeping": is_sleeping})))
}

pub(in crate::api) async fn reset_prefix_cache(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Response> {
    let params = Params::read(query);
    // vLLM reports errors in this query as plain text.
    let flags = params
        .flag("reset_running_requests", false)
        .and_then(|running| Ok((running, params.flag("reset_external", false)?)));
    let (running, external) = flags.map_err(|error| (error.status, error.message).into_response())?;
    let success = app.engines.reset_prefix_cache(running, external).await;
    let success = success.map_err(|error| call_error("reset_prefix_cache")(error).into_response())?;
    Ok(Json(json!({"success": success})))
}

pub(in crate::api) async fn pause(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let params = Params::read(query);
    // vLLM names this parameter for errors in any parameter.
    let of_mode = |error: ApiError| ApiError { param: Some("mode".into()), ..error };
    let (mode, clears) = (params.mode().map_err(of_mode)?, params.flag("clear_cache", true).map_err(of_mode)?);
    app.engines.pause(mode, clears).await.map_err(call_error("pause"))?;
    Ok(Json(json!({"status": "paused"})))
}

pub(in crate::api) async fn resume(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    app.engines.resume().await.map_err(call_error("resume"))?;
    Ok(Json(json!({"status": "resumed"})))
}

pub(in crate::api) async fn is_paused(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let is_paused = app.engines.is_paused().await.map_err(call_error("is_paused"))?;
    Ok(Json(json!({"is_paused": is_paused})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_and_checked() {
        let params = Params::read(Some("mode=keep&clear_cache=False&tags=a%20b+c&%zz=%4".to_owned()));
        assert_eq!(params.mode(), Ok("keep"));
        assert_eq!(params.flag("clear_cache", true), Ok(false));
        assert_eq!(params.get("tags"), Some("a b c"));
        assert_eq!(params.get("%zz"), Some("%4"));
        assert!(Params::read(Some("mode=x".to_owned())).mode().is_err());
        assert!(Params::read(Some("clear_cache=2".to_owned())).flag("clear_cache", true).is_err());
        assert_eq!(Params::read(None).flag("clear_cache", true), Ok(true));
    }
}
