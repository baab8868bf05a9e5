//! Headers of responses that name the pod of the server, as llm-d-inference-sim has them.

use axum::http::header::InvalidHeaderValue;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

const POD: HeaderName = HeaderName::from_static("x-inference-pod");
const NAMESPACE: HeaderName = HeaderName::from_static("x-inference-namespace");
const PORT: HeaderName = HeaderName::from_static("x-inference-port");

/// The pod that responses name, if they name any.
#[derive(Clone, Debug, Default)]
pub struct PodHeaders {
    pod: Option<HeaderValue>,
    namespace: Option<HeaderValue>,
}

impl PodHeaders {
    /// Headers with these names; an empty one counts as none.
    pub fn new(pod: Option<&str>, namespace: Option<&str>) -> Result<Self, InvalidHeaderValue> {
        let value = |name: Option<&str>| name.filter(|name| !name.is_empty()).map(HeaderValue::from_str).transpose();
        Ok(Self { pod: value(pod)?, namespace: value(namespace)? })
    }

    /// Adds them to the response to a request that came by this port.
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
