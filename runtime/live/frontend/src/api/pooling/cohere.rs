//! `POST /v2/embed`: embeddings in Cohere's API.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::PoolRequest;
use super::embeddings::dimensions;
use crate::api::request::body::{Body, FastJson};
use crate::server::App;
use crate::server::error::ApiError;

#[derive(Debug, Deserialize)]
pub(in crate::api) struct EmbedRequest {
    model: Option<String>,
    texts: Option<Vec<String>>,
    images: Option<Vec<String>>,
    inputs: Option<Vec<Input>>,
    output_dimension: Option<i64>,
    embedding_types: Option<Vec<EmbeddingType>>,
    #[serde(default)]
    truncate: Truncate,
    max_tokens: Option<i64>,
    #[serde(default)]
    priority: i64,
}

#[derive(Debug, Deserialize)]
struct Input {
    content: Vec<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content {
    Text { text: String },
    ImageUrl { image_url: ImageUrl },
}

#[derive(Debug, Deserialize)]
struct ImageUrl {
    url: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EmbeddingType {
    Float,
    Binary,
    Ubinary,
    Base64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Truncate {
    None,
    Start,
    #[default]
    End,
}

#[derive(Serialize)]
pub(in crate::api) struct Embedded {
    id: String,
    embeddings: Embeddings,
    #[serde(skip_serializing_if = "Option::is_none")]
    texts: Option<Vec<String>>,
    meta: Value,
    response_type: &'static str,
}

#[derive(Default, Serialize)]
struct Embeddings {
    #[serde(skip_serializing_if = "Option::is_none")]
    float: Option<Vec<Vec<f32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    binary: Option<Vec<Vec<i16>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ubinary: Option<Vec<Vec<i16>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<Vec<String>>,
}

impl EmbedRequest {
    /// Converts the request to one for `/v1/embeddings`.
    fn translated(&self) -> Result<PoolRequest, ApiError> {
        let chat = |parts: Vec<Value>| json!([{"role": "user", "content": parts}]);
        let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let part = |content: &Content| match content {
            Content::Text { text } => json!({"type": "text", "text": text}),
            Content::ImageUrl { image_url } => image(&image_url.url),
        };
        let one_of = "Exactly one of texts, images, or inputs must be provided, and it must be non-empty";
        let (field, input) = match (&self.texts, &self.images, &self.inputs) {
            (Some(texts), None, None) if !texts.is_empty() => ("input", json!(texts)),
            (None, Some(images), None) if !images.is_empty() => {
                ("messages", images.iter().map(|url| chat(vec![image(url)])).collect())
            }
            (None, None, Some(inputs)) if !inputs.is_empty() => {
                ("messages", inputs.iter().map(|input| chat(input.content.iter().map(part).collect())).collect())
            }
            _ => return Err(ApiError::malformed(one_of)),
        };
        let cut = (self.truncate != Truncate::None).then(|| self.max_tokens.unwrap_or(-1));
        let side = if self.truncate == Truncate::Start { "left" } else { "right" };
        let request = json!({
            "model": self.model, field: input, "truncate_prompt_tokens": cut, "truncation_side": side,
            "priority": self.priority,
        });
        let mut request: PoolRequest =
            serde_json::from_value(request).map_err(|error| ApiError::malformed(error.to_string()))?;
        request.options.refused_above = self.max_tokens.filter(|_| self.truncate == Truncate::None);
        Ok(request)
    }
}

/// Packs the signs of eight numbers into a byte: 1 means not negative.
fn bits(vector: &[f32]) -> Vec<u8> {
    let byte = |numbers: &[f32]| numbers.iter().fold(0, |byte, number| byte << 1 | u8::from(*number >= 0.0));
    vector.chunks(8).map(byte).collect()
}

fn encoded(vectors: Vec<Vec<f32>>, types: &[EmbeddingType]) -> Result<Embeddings, ApiError> {
    let is_packed = types.iter().any(|kind| matches!(kind, EmbeddingType::Binary | EmbeddingType::Ubinary));
    let dimensions = vectors.first().map_or(0, Vec::len);
    if is_packed && !dimensions.is_multiple_of(8) {
        return Err(ApiError::invalid(format!(
            "Embedding dimension must be a multiple of 8 for binary embedding types, but got {dimensions}."
        )));
    }
    let packed = |offset: i16| -> Vec<Vec<i16>> {
        vectors.iter().map(|vector| bits(vector).into_iter().map(|byte| i16::from(byte) - offset).collect()).collect()
    };
    let text =
        |vector: &Vec<f32>| STANDARD.encode(vector.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>());
    let mut all = Embeddings::default();
    for kind in types {
        match kind {
            EmbeddingType::Float => {}
            EmbeddingType::Binary => all.binary = Some(packed(128)),
            EmbeddingType::Ubinary => all.ubinary = Some(packed(0)),
            EmbeddingType::Base64 => all.base64 = Some(vectors.iter().map(text).collect()),
        }
    }
    all.float = types.contains(&EmbeddingType::Float).then_some(vectors);
    Ok(all)
}

pub(in crate::api) async fn embed(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<EmbedRequest>,
) -> Result<Json<Embedded>, ApiError> {
    let FastJson(request) = body?;
    let dimensions = dimensions(&app.model, request.output_dimension)?;
    let answer = request.translated()?.vectors(&app, &headers, "embd", dimensions).await?;
    let has_image = |input: &Input| input.content.iter().any(|part| matches!(part, Content::ImageUrl { .. }));
    let has_images = request.images.is_some() || request.inputs.iter().flatten().any(has_image);
    let (input_tokens, image_tokens) = if has_images { (0, answer.prompt_tokens) } else { (answer.prompt_tokens, 0) };
    let types = request.embedding_types.unwrap_or_else(|| vec![EmbeddingType::Float]);
    Ok(Json(Embedded {
        id: answer.id,
        embeddings: encoded(answer.vectors, &types)?,
        texts: request.texts,
        meta: json!({
            "api_version": {"version": "2"},
            "billed_units": {"input_tokens": input_tokens, "image_tokens": image_tokens},
        }),
        response_type: "embeddings_by_type",
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_packed_first_number_first() {
        assert_eq!(bits(&[1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, 0.0]), [0x81]);
        let vectors = vec![vec![1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0]];
        let all = encoded(vectors, &[EmbeddingType::Binary, EmbeddingType::Ubinary]).expect("it is a multiple of 8");
        assert_eq!((all.binary, all.ubinary), (Some(vec![vec![0]]), Some(vec![vec![128]])));
        assert!(encoded(vec![vec![1.0; 7]], &[EmbeddingType::Binary]).is_err());
    }
}
