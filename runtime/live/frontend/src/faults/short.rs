//! Shortens answers and keeps them well-formed. The engine gets a lower token limit, and the response reports a
//! natural end.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use bytes::Bytes;
use serde_json::{Map, Value};

use super::events::data;

/// The token limits in requests of this path. If none is given, the first is set.
fn limits(path: &str) -> &'static [&'static str] {
    match path.trim_end_matches('/').rsplit('/').next() {
        Some("completions") => &["max_tokens", "max_completion_tokens"],
        Some("messages") => &["max_tokens"],
        Some("responses") => &["max_output_tokens"],
        _ => &[],
    }
}

/// Limits a request to `tokens` output tokens. Returns the request as an error if it cannot be shortened.
pub(super) async fn shortened(request: Request, tokens: u32, max_bytes: usize) -> Result<Request, Box<Request>> {
    let limits = limits(request.uri().path());
    if limits.is_empty() {
        return Err(Box::new(request));
    }
    let (parts, body) = request.into_parts();
    // The outer layers have their own limit. The routes refuse larger bodies.
    let bytes = to_bytes(body, max_bytes).await.unwrap_or_default();
    let shorter = serde_json::from_slice(&bytes).ok().and_then(|body| shorter(body, limits, tokens));
    match shorter {
        None => Err(Box::new(Request::from_parts(parts, Body::from(bytes)))),
        Some(body) => {
            let mut request = Request::from_parts(parts, Body::from(body));
            request.headers_mut().remove(axum::http::header::CONTENT_LENGTH);
            Ok(request)
        }
    }
}

fn shorter(mut body: Map<String, Value>, limits: &[&str], tokens: u32) -> Option<String> {
    let given: Vec<&str> =
        limits.iter().copied().filter(|limit| body.get(*limit).is_some_and(|given| !given.is_null())).collect();
    let given = if given.is_empty() { &limits[..1] } else { &given[..] };
    let mut is_shorter = false;
    for limit in given {
        if body.get(*limit).and_then(Value::as_u64).is_none_or(|most| most > u64::from(tokens)) {
            body.insert((*limit).to_owned(), tokens.into());
            is_shorter = true;
        }
    }
    if body.get("min_tokens").and_then(Value::as_u64).is_some_and(|least| least > u64::from(tokens)) {
        body.insert("min_tokens".to_owned(), tokens.into());
    }
    is_shorter.then(|| Value::Object(body).to_string())
}

/// If an event reports the token limit, returns it with a natural end instead.
pub(super) fn ended_by_itself(event: &[u8]) -> Option<Bytes> {
    let text = std::str::from_utf8(event).ok()?;
    let ended = stopped(data(event)?)?;
    let head = text.split_once("data:").map_or("", |(head, _)| head);
    let head = head.replace("response.incomplete", "response.completed");
    Some(Bytes::from(format!("{head}data: {ended}\n\n")))
}

/// If a body reports the token limit, returns it with a natural end instead.
pub(super) fn stopped(json: &str) -> Option<String> {
    let mut value = serde_json::from_str(json).ok()?;
    stop(&mut value).then(|| value.to_string())
}

fn stop(value: &mut Value) -> bool {
    let Value::Object(map) = value else { return false };
    let mut is_changed = false;
    for (key, limited, ended) in [
        ("finish_reason", "length", "stop"),
        ("stop_reason", "max_tokens", "end_turn"),
        ("status", "incomplete", "completed"),
        ("type", "response.incomplete", "response.completed"),
    ] {
        if map.get(key).and_then(Value::as_str) == Some(limited) {
            map.insert(key.to_owned(), ended.into());
            is_changed = true;
        }
    }
    if map.get("incomplete_details").is_some_and(|details| !details.is_null()) {
        map.insert("incomplete_details".to_owned(), Value::Null);
        is_changed = true;
    }
    for nested in ["delta", "response", "item"] {
        is_changed |= map.get_mut(nested).is_some_and(stop);
    }
    for list in ["choices", "output"] {
        for item in map.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            is_changed |= stop(item);
        }
    }
    is_changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, body: &str) -> Option<String> {
        shorter(serde_json::from_str(body).expect("an object"), limits(path), 3)
    }

    #[test]
    fn requests_are_shortened_by_the_limit_that_they_have() {
        let completions = asked("/v1/completions", r#"{"max_tokens":9,"min_tokens":9}"#);
        assert_eq!(completions.as_deref(), Some(r#"{"max_tokens":3,"min_tokens":3}"#));
        let chat = asked("/v1/chat/completions", r#"{"max_completion_tokens":9}"#);
        assert_eq!(chat.as_deref(), Some(r#"{"max_completion_tokens":3}"#));
        assert_eq!(asked("/v1/responses", "{}").as_deref(), Some(r#"{"max_output_tokens":3}"#));
        assert_eq!(asked("/v1/messages", r#"{"max_tokens":3}"#), None);
        assert!(limits("/v1/embeddings").is_empty());
    }

    #[test]
    fn every_api_says_that_the_text_has_ended() {
        for (limited, ended) in [
            (r#"{"choices":[{"finish_reason":"length"}]}"#, Some(r#"{"choices":[{"finish_reason":"stop"}]}"#)),
            (r#"{"delta":{"stop_reason":"max_tokens"}}"#, Some(r#"{"delta":{"stop_reason":"end_turn"}}"#)),
            (r#"{"choices":[{"finish_reason":null}]}"#, None),
        ] {
            assert_eq!(stopped(limited).as_deref(), ended);
        }
        let event = b"event: response.incomplete\ndata: {\"type\":\"response.incomplete\",\
            \"response\":{\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}}}\n\n";
        let ended = ended_by_itself(event).expect("it is changed");
        let ended = std::str::from_utf8(&ended).expect("text");
        assert!(
            ended.starts_with("event: response.completed\ndata: {\"") && !ended.contains("incomplete\""),
            "{ended}"
        );
        assert!(ended.contains("\"incomplete_details\":null"), "{ended}");
    }
}
