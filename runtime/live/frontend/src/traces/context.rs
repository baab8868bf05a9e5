//! Reads the caller's span from the header `traceparent` (W3C Trace Context).

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) trace_id: [u8; 16],
    pub(super) span_id: [u8; 8],
    pub(super) is_sampled: bool,
}

tokio::task_local! {
    static PARENT: Option<Parent>;
}

impl Parent {
    /// The span of the request that this task handles.
    pub(super) fn current() -> Option<Self> {
        PARENT.try_with(|parent| *parent).ok().flatten()
    }

    fn parse(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let (version, trace_id, span_id, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // Later versions may have more parts.
        if version.len() != 2 || version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let parent =
            Self { trace_id: bytes(trace_id)?, span_id: bytes(span_id)?, is_sampled: bytes::<1>(flags)?[0] & 1 == 1 };
        (parent.trace_id != [0; 16] && parent.span_id != [0; 8]).then_some(parent)
    }
}

/// Decodes lower-case hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 2 * N || !text.bytes().all(is_hex) {
        return None;
    }
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Keeps the caller's span while a request is handled. For `axum::middleware::from_fn`.
pub async fn propagate(request: Request, next: Next) -> Response {
    let header = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
    let parent = header.and_then(Parent::parse);
    PARENT.scope(parent, next.run(request)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_trace_and_span() {
        let parent = Parent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").expect("it is valid");
        assert_eq!((parent.trace_id[0], parent.span_id[7], parent.is_sampled), (0x0a, 0x31, true));
        for header in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
        ] {
            assert_eq!(Parent::parse(header), None, "{header}");
        }
        assert!(Parent::parse("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-later").is_some());
    }
}
