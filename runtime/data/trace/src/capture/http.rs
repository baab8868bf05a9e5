//! HTTP exchanges: the request as a client sent it, and the parts of the answer with their times.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use std::fmt;

use super::unknown::unknown_fields;

/// An HTTP exchange that has ended. If the prompt's tokens are known, a `request` line with the same `id` contains
/// lengths and times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HttpRecord {
    /// The exchange's name in the capture.
    pub id: String,
    /// Time of arrival, in nanoseconds since the start of the capture.
    pub arrival_ns: u64,
    /// The HTTP method.
    pub method: String,
    /// The path, as the client wrote it.
    pub path: String,
    /// The query: the text after `?`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// Headers of the request, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub request_headers: Vec<(String, String)>,
    /// The body of the request.
    #[serde(default, skip_serializing_if = "HttpBytes::is_empty")]
    pub request_body: HttpBytes,
    /// Number of bytes of the request's body that were forwarded but not recorded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub request_left_out_bytes: u64,
    /// Status of the answer; `None` if there was no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Headers of the answer, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// Time from the arrival to the head of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_ns: Option<u64>,
    /// The parts of the answer's body: (nanoseconds since the arrival, bytes).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<(u64, HttpBytes)>,
    /// Number of bytes of the answer that were forwarded but not recorded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out_bytes: u64,
    /// The encoding that was removed from `chunks`, such as `gzip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decoded: Option<String>,
    /// Time from the arrival to the end.
    pub end_ns: u64,
    /// The outcome of the exchange.
    #[serde(default, skip_serializing_if = "HttpEnd::is_whole")]
    pub end: HttpEnd,
    /// Names of the tools that the answer calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<String>,
    /// The message of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Fields that this version does not know, unchanged.
    #[serde(flatten, deserialize_with = "unknown_fields")]
    pub other: Map<String, Value>,
}

/// An HTTP request as a client sent it, without secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedCall {
    /// The HTTP method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The headers, in their order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// The outcome of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HttpEnd {
    /// The whole answer was forwarded; for a stream, at least the last event.
    #[default]
    Whole,
    /// The client disconnected.
    ClientGone,
    /// The server's answer was missing or cut off.
    ServerLost,
}

impl HttpEnd {
    fn is_whole(&self) -> bool {
        *self == Self::Whole
    }
}

/// The bytes of a body. In JSON: a text, or `{"base64": "..."}` for bytes that are not text.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct HttpBytes(pub Vec<u8>);

impl HttpBytes {
    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for HttpBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl Serialize for HttpBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("base64", &STANDARD.encode(&self.0))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for HttpBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = HttpBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or an object with `base64`")
            }

            fn visit_str<E>(self, text: &str) -> Result<HttpBytes, E> {
                Ok(HttpBytes(text.as_bytes().to_vec()))
            }

            fn visit_string<E>(self, text: String) -> Result<HttpBytes, E> {
                Ok(HttpBytes(text.into_bytes()))
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<HttpBytes, M::Error> {
                let mut bytes = None;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "base64" {
                        let text: String = map.next_value()?;
                        bytes = Some(STANDARD.decode(text).map_err(M::Error::custom)?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                bytes.map(HttpBytes).ok_or_else(|| M::Error::missing_field("base64"))
            }
        }
        deserializer.deserialize_any(Bytes)
    }
}

impl HttpRecord {
    /// The request; None unless all its bytes were recorded.
    #[must_use]
    pub fn call(self) -> Option<RecordedCall> {
        let Self { method, path, query, request_headers: headers, request_body: HttpBytes(body), .. } = self;
        let target = query.map_or_else(|| path.clone(), |query| format!("{path}?{query}"));
        (self.request_left_out_bytes == 0).then_some(RecordedCall { method, target, headers, body })
    }

    /// The recorded body of the answer.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        self.chunks.iter().flat_map(|(_, bytes)| bytes.0.iter().copied()).collect()
    }

    /// The first header of the answer with this name, in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// The first header of the request with this name, in lower case.
    #[must_use]
    pub fn request_header(&self, name: &str) -> Option<&str> {
        header(&self.request_headers, name)
    }
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(its, _)| its.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_survive() {
        for (bytes, json) in [(b"a\"b".to_vec(), r#""a\"b""#), (vec![0xff, 0], r#"{"base64":"/wA="}"#)] {
            let text = serde_json::to_string(&HttpBytes(bytes.clone())).expect("it is JSON");
            assert_eq!(text, json);
            assert_eq!(serde_json::from_str::<HttpBytes>(&text).expect("its own"), HttpBytes(bytes));
        }
        for wrong in ["1", "{}", r#"{"base64":"?"}"#] {
            assert!(serde_json::from_str::<HttpBytes>(wrong).is_err(), "{wrong}");
        }
    }
}
