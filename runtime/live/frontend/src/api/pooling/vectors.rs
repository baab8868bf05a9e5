//! Encodes vectors as numbers, base64, or bytes.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::json;

use super::embed_dtype::EmbedDtype;
use super::{EncodingFormat, Endianness, PoolRequest, PoolUsage, Vectors};
use crate::server::error::ApiError;

/// The encoding of a response's vectors.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct Encoding {
    format: EncodingFormat,
    dtype: EmbedDtype,
    is_big_endian: bool,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(in crate::api) enum Encoded {
    Numbers(Vec<f32>),
    Base64(String),
}

impl Encoding {
    /// Reads the encoding from the request.
    pub(in crate::api) fn of(request: &PoolRequest) -> Result<Self, ApiError> {
        let asked = request.embed_dtype.as_deref();
        let dtype = EmbedDtype::named(asked).map_err(|names| {
            let other = asked.unwrap_or_default();
            ApiError::malformed(format!("embed_dtype: unknown variant `{other}`, expected one of {names}"))
        })?;
        let is_big_endian = match request.endianness {
            Some(Endianness::Big) => true,
            Some(Endianness::Little) => false,
            Some(Endianness::Native) | None => cfg!(target_endian = "big"),
        };
        Ok(Self { format: request.encoding_format, dtype, is_big_endian })
    }

    fn bytes(self, vector: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(4 * vector.len());
        vector.iter().for_each(|number| self.dtype.write(*number, self.is_big_endian, &mut bytes));
        bytes
    }

    /// Encodes a vector for a JSON response.
    pub(in crate::api) fn json(self, vector: Vec<f32>) -> Encoded {
        match self.format {
            EncodingFormat::Float => Encoded::Numbers(vector),
            _ => Encoded::Base64(STANDARD.encode(self.bytes(&vector))),
        }
    }

    /// If the request wants bytes, builds a response with all vectors, described in a header.
    pub(in crate::api) fn raw(self, of: &Vectors) -> Option<Response> {
        let has_metadata = match self.format {
            EncodingFormat::Float | EncodingFormat::Base64 => return None,
            EncodingFormat::Bytes => true,
            EncodingFormat::BytesOnly => false,
        };
        let (mut body, mut items) = (Vec::new(), Vec::new());
        for (index, vector) in of.vectors.iter().enumerate() {
            let start = body.len();
            body.extend(self.bytes(vector));
            items.push(json!({
                "index": index, "embed_dtype": self.dtype.name,
                "endianness": if self.is_big_endian { "big" } else { "little" },
                "start": start, "end": body.len(), "shape": [vector.len()],
            }));
        }
        let usage = PoolUsage::new(of.prompt_tokens);
        let metadata =
            json!({"id": of.id, "created": of.created, "model": of.model, "data": items, "usage": usage}).to_string();
        let mut response = Response::new(Body::from(body));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        if let Some(metadata) = HeaderValue::from_str(&metadata).ok().filter(|_| has_metadata) {
            headers.insert(HeaderName::from_static("metadata"), metadata);
        }
        Some(response)
    }
}
