//! Tests the layer in front of an echoing route.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::post;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use tokio::time::timeout;

use super::layer::inject;
use super::{ClientFaults, FaultLayer, Tenants};
use crate::metrics::{Metrics, MetricsOptions};

const STREAM: &[&str] = &[
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"c\"}}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"total_tokens\":3}}\n\ndata: [DONE]\n\n",
];
const VALUE: &str = r#"{"choices":[{"text":"abc"}],"usage":{"total_tokens":3}}"#;

async fn answer(body: Bytes) -> Response {
    let is_stream = body.as_ref() == b"stream";
    let (kind, body) = if is_stream {
        let parts = STREAM.iter().map(|part| Ok::<_, std::io::Error>(Bytes::from_static(part.as_bytes())));
        ("text/event-stream", Body::from_stream(futures_util::stream::iter(parts)))
    } else {
        ("application/json", Body::from(VALUE))
    };
    Response::builder().header("content-type", kind).body(body).expect("a response")
}

fn server(rules: &[&str]) -> (Router, Metrics) {
    let metrics = Metrics::new(&MetricsOptions {
        model_name: "sim".to_owned(),
        engines: vec![0],
        max_model_len_tokens: 100,
        ..MetricsOptions::default()
    });
    let rules = rules.iter().map(|rule| rule.parse().expect("a rule")).collect();
    let faults = Arc::new(ClientFaults::new(rules, 1, Tenants::default()));
    let layer = FaultLayer { faults, metrics: metrics.clone(), max_body_bytes: 1000 };
    let router = Router::new().route("/v1/completions", post(answer)).route("/v1/messages", post(answer));
    let layered = move |request, next: Next| {
        let layer = layer.clone();
        async move { inject(&layer, request, |request| next.run(request)).await }
    };
    (router.layer(from_fn(layered)), metrics)
}

async fn call(router: &Router, request: Request<Body>) -> Response {
    TowerToHyperService::new(router.clone()).call(request).await.expect("routes answer")
}

fn ask(body: &'static str) -> Request<Body> {
    Request::post("/v1/completions").body(Body::from(body)).expect("a request")
}

async fn text(response: Response) -> String {
    let bytes = to_bytes(response.into_body(), 10_000).await.expect("the body ends well");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The body of a stream under a rule.
async fn streamed(rule: &str) -> String {
    text(call(&server(&[rule]).0, ask("stream")).await).await
}

async fn valued(rule: &str) -> String {
    text(call(&server(&[rule]).0, ask("value")).await).await
}

#[tokio::test]
async fn errors_have_a_status_a_body_and_retry_after() {
    let (router, metrics) =
        server(&["status:code=429,retry-after=1500ms,call=1", "context_length:call=2", "invalid_api_key:call=3"]);
    let response = call(&router, ask("value")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["retry-after"], "2");
    let body = text(response).await;
    assert_eq!(body, r#"{"error":{"message":"Too Many Requests","type":"RateLimitError","param":null,"code":429}}"#);
    assert!(text(call(&router, ask("value")).await).await.contains("maximum context length"));
    assert_eq!(text(call(&router, ask("value")).await).await, r#"{"error":"Unauthorized"}"#);
    assert_eq!(text(call(&router, ask("value")).await).await, VALUE);
    assert!(metrics.exposition().contains(r#"vcr:faults_injected_total{kind="status"} 3"#));
}

#[tokio::test]
async fn an_error_may_have_the_page_of_a_proxy() {
    let page = "<html><h1>502 Bad Gateway</h1></html>";
    let (router, _) =
        server(&[&format!("status:code=502,retry-after=1s,body={page},call=1"), "status:code=500,body=null,call=2"]);
    let response = call(&router, ask("value")).await;
    assert_eq!(
        (response.status(), &response.headers()["retry-after"]),
        (StatusCode::BAD_GATEWAY, &"1".parse().expect("a value"))
    );
    assert_eq!(response.headers()["content-type"], "text/html");
    assert_eq!(text(response).await, page);
    let response = call(&router, ask("value")).await;
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(text(response).await, "null");
}

#[tokio::test]
async fn streams_break_behind_so_many_tokens() {
    let whole = STREAM.concat();
    let truncated = streamed("truncate:after=2").await;
    assert!(
        whole.starts_with(&truncated) && truncated.contains("\"b\"") && !truncated.ends_with("\n\n"),
        "{truncated}"
    );

    let malformed = streamed("malformed:after=1").await;
    let broken = malformed.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    assert_eq!(broken.filter(|data| serde_json::from_str::<serde_json::Value>(data).is_err()).count(), 1);
    assert!(malformed.contains("\"a\"") && !malformed.contains("\"b\"}}]}") && malformed.contains("\"c\""));

    let error = streamed("error-event:after=2,message=boom").await;
    assert!(error.contains("\"b\"") && !error.contains("\"c\""), "{error}");
    assert!(
        error.ends_with(
            "\"message\":\"boom\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}\n\ndata: [DONE]\n\n"
        ),
        "{error}"
    );
    // If the stream is too short, the fault happens at its end.
    assert!(streamed("error-event:after=99").await.contains("InternalServerError"));
}

#[tokio::test]
async fn ends_and_usage_can_be_wrong() {
    assert!(!streamed("no-done").await.contains("[DONE]"));
    assert_eq!(streamed("twice-done").await.matches("[DONE]").count(), 2);
    let less = streamed("no-usage").await;
    assert!(!less.contains("usage") && less.contains("\"c\"") && less.contains("[DONE]"), "{less}");
    assert_eq!(valued("no-usage").await, r#"{"choices":[{"text":"abc"}]}"#);
}

#[tokio::test]
async fn values_break_too() {
    assert!(VALUE.starts_with(&valued("truncate").await));
    assert!(serde_json::from_str::<serde_json::Value>(&valued("malformed").await).is_err());
    let response = call(&server(&["content-type:value=text/plain"]).0, ask("value")).await;
    assert_eq!(response.headers()["content-type"], "text/plain");
    assert_eq!(text(response).await, VALUE);
}

#[tokio::test]
async fn stalls_and_slow_bodies_lose_nothing() {
    assert_eq!(streamed("stall:for=1ms,after=1").await, STREAM.concat());
    assert_eq!(valued("stall:for=1ms").await, VALUE);
    assert_eq!(valued("slow:every=1us,bytes=10").await, VALUE);
    assert_eq!(streamed("slow:every=1us,bytes=7").await, STREAM.concat());
    for rule in ["stall:for=ever", "stall:for=ever,after=1"] {
        assert!(timeout(Duration::from_millis(50), streamed(rule)).await.is_err(), "{rule}");
    }
}

#[tokio::test]
async fn a_reset_without_a_connection_fails_the_body() {
    let response = call(&server(&["reset:after=1"]).0, ask("stream")).await;
    assert!(to_bytes(response.into_body(), 10_000).await.is_err());
}

#[tokio::test]
async fn a_header_asks_for_an_error() {
    let (router, _) = server(&[]);
    for (value, code) in [("503", 503), ("x", 400), ("99", 400)] {
        let request = Request::post("/v1/messages").header("X-Return-Error", value).body(Body::empty());
        let response = call(&router, request.expect("a request")).await;
        assert_eq!(response.status().as_u16(), code, "{value}");
        let error: serde_json::Value = serde_json::from_str(&text(response).await).expect("JSON");
        let kind = if code == 503 { "overloaded_error" } else { "invalid_request_error" };
        assert_eq!((&error["type"], &error["error"]["type"]), (&"error".into(), &kind.into()));
    }
}

/// Otherwise the connection would be closed with unread bytes, and the response could be lost.
#[tokio::test]
async fn an_error_is_answered_once_the_body_is_read() {
    for (rules, header) in [(&[][..], "429"), (&["status:code=429"][..], "")] {
        let (router, _) = server(rules);
        let read = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&read);
        let pieces = futures_util::stream::iter((0..3).map(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::io::Error>("piece")
        }));
        let request = Request::post("/v1/messages").header("X-Return-Error", header);
        let request = if header.is_empty() { Request::post("/v1/messages") } else { request };
        let response = call(&router, request.body(Body::from_stream(pieces)).expect("a request")).await;
        assert_eq!((response.status().as_u16(), read.load(Ordering::Relaxed)), (429, 3), "{rules:?}");
    }
}

#[tokio::test]
async fn rules_see_the_model_and_the_body_goes_on() {
    let (router, _) = server(&["status:code=500,model=other"]);
    assert_eq!(text(call(&router, ask("value")).await).await, VALUE);
    assert_eq!(call(&router, ask(r#"{"model":"other"}"#)).await.status(), 500);
}
