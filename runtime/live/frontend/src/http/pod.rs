//! Response headers that name the server's pod, as in llm-d-inference-sim.

use axum::http::header::InvalidHeaderValue;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

const POD: HeaderName = HeaderName::from_static("x-inference-pod");
const NAMESPACE: HeaderName = HeaderName::from_static("x-inference-namespace");
const PORT: HeaderName = HeaderName::from_static("x-inference-port");

/// The pod and namespace for response headers. Both are optional.
#[derive(Clone, Debug, Default)]
pub struct PodHeaders {
    pod: Option<HeaderValue>,
    namespace: Option<HeaderValue>,
}

impl PodHeaders {
    /// Creates headers with these names. An empty name counts as none.
    pub fn new(pod: Option<&str>, namespace: Option<&str>) -> Result<Self, InvalidHeaderValue> {
        let value = |name: Option<&str>| name.filter(|name| !name.is_empty()).map(HeaderValue::from_str).transpose();
        Ok(Self { pod: value(pod)?, namespace: value(namespace)? })
    }

    /// Adds the headers to a response. `port` is the server port of the request.
    pub(super) fn add(&self, response: &mut Response, port: u16) {
        if let Some(pod) = &self.pod {
            response.headers_mut().insert(POD, pod.clone());
            response.headers_mut().insert(PORT, port.into());
        }
        if let Some(namespace) = &self.namespace {
            response.headers_mut().insert(NAMESPACE, namespace.clone());
        }
    }
}
