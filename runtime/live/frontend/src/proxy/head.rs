//! The head of a recorded response.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use vcr_record::http::REDACTED;
use vcr_trace::capture::{HttpEnd, HttpRecord};

use crate::proxy::upstream::remove_hop_by_hop;

pub(crate) fn head_of(record: &HttpRecord) -> Response<()> {
    let body_bytes: usize = record.chunks.iter().map(|(_, bytes)| bytes.0.len()).sum();
    let status = record.status.and_then(|status| StatusCode::from_u16(status).ok());
    let mut head = Response::new(());
    *head.status_mut() = status.unwrap_or(StatusCode::BAD_GATEWAY);
    *head.headers_mut() = headers_of(record, body_bytes);
    head
}

/// The recorded headers that are valid for the response as it is sent.
pub(crate) fn headers_of(record: &HttpRecord, body_bytes: usize) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in record.headers.iter().filter(|(_, value)| value != REDACTED) {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    }
    remove_hop_by_hop(&mut headers);
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let is_kept = length == Some(body_bytes) || record.method == "HEAD" || record.end == HttpEnd::ServerLost;
    if !is_kept {
        headers.remove(header::CONTENT_LENGTH);
    }
    headers
}
