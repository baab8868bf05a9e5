//! The OpenAPI document of the routes, as FastAPI serves it.

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{Method, header};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::{Map, Value, json};

/// Builds the document for these paths of `router`. The router is asked for the methods of each path.
pub(super) async fn document(router: Router, paths: Vec<&'static str>) -> Json<Value> {
    let mut described = Map::new();
    // gRPC calls are described by their protocol buffers.
    for path in paths.into_iter().filter(|path| !path.starts_with("/vllm.")) {
        let methods = methods(&router, path).await;
        let operations = methods.iter().map(|method| (method.to_lowercase(), operation(path, method)));
        described.insert(path.to_owned(), Value::Object(operations.collect()));
    }
    let info = json!({"title": "FastAPI", "version": "0.1.0"});
    Json(json!({"openapi": "3.1.0", "info": info, "paths": described}))
}

/// The methods of a path. In response to any other method, a router lists them.
async fn methods(router: &Router, path: &str) -> Vec<String> {
    let uri = path.replace(['{', '}'], "");
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::OPTIONS;
    let Ok(uri) = uri.parse() else { return Vec::new() };
    *request.uri_mut() = uri;
    let Ok(response) = TowerToHyperService::new(router.clone()).call(request).await;
    let allowed = response.headers().get(header::ALLOW).and_then(|allowed| allowed.to_str().ok()).unwrap_or_default();
    // HEAD is not listed, because every GET route allows it.
    allowed
        .split(',')
        .map(str::trim)
        .filter(|method| !method.is_empty() && *method != "HEAD")
        .map(str::to_owned)
        .collect()
}

fn operation(path: &str, method: &str) -> Value {
    let words: Vec<&str> = path.split(['/', '{', '}', '_', '-', '.']).filter(|word| !word.is_empty()).collect();
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters: Vec<Value> =
        names.map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})).collect();
    let id = format!("{}_{}", words.join("_"), method.to_lowercase());
    let mut operation = json!({"operationId": id, "responses": {"200": {"description": "Successful Response"}}});
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if method == "POST" {
        operation["requestBody"] = json!({"content": {"application/json": {"schema": {}}}});
    }
    operation
}
