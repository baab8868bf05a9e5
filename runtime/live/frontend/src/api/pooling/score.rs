//! `POST /score`, `POST /rerank` and their aliases.
//!
//! As with vLLM's embedding models, a score is the cosine between the embeddings of a pair.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{List, PoolOptions, Vectors};
use crate::api::request::body::{Body, FastJson};
use crate::media::MediaPrompt;
use crate::server::App;
use crate::server::error::ApiError;
use crate::server::model::Model;

/// Fields that both kinds of requests have.
#[derive(Debug, Deserialize)]
struct PairOptions {
    #[serde(flatten)]
    pool: PoolOptions,
    #[serde(default)]
    max_tokens_per_query: i64,
    #[serde(default)]
    max_tokens_per_doc: i64,
}

#[derive(Debug, Deserialize)]
pub(in crate::api) struct ScoreRequest {
    #[serde(flatten)]
    options: PairOptions,
    #[serde(alias = "text_1", alias = "data_1")]
    queries: Value,
    #[serde(alias = "text_2", alias = "data_2", alias = "items")]
    documents: Value,
}

#[derive(Debug, Deserialize)]
pub(in crate::api) struct RerankRequest {
    #[serde(flatten)]
    options: PairOptions,
    query: Value,
    documents: Value,
    #[serde(default)]
    top_n: usize,
}

#[derive(Serialize)]
pub(in crate::api) struct Score {
    index: usize,
    object: &'static str,
    score: f64,
}

#[derive(Serialize)]
pub(in crate::api) struct Ranks {
    id: String,
    model: String,
    usage: RankUsage,
    results: Vec<Rank>,
}

#[derive(Serialize)]
struct RankUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

#[derive(Serialize)]
struct Rank {
    index: usize,
    document: Document,
    relevance_score: f64,
}

#[derive(Serialize)]
struct Document {
    text: String,
    multi_modal: Option<()>,
}

fn texts(value: Value, field: &str) -> Result<Vec<String>, ApiError> {
    let items = match value {
        Value::Array(items) => items,
        one => vec![one],
    };
    let text = |item| match item {
        Value::String(text) => Ok(text),
        Value::Object(fields) if fields.contains_key("content") => {
            Err(ApiError::invalid("MultiModalParam is not supported for a model that is simulated"))
        }
        _ => Err(ApiError::malformed(format!("{field}: expected a text, or a list of texts"))),
    };
    items.into_iter().map(text).collect()
}

impl PairOptions {
    /// Computes the embeddings of the queries, then of the documents.
    async fn vectors(
        &self,
        app: &Arc<App>,
        headers: &HeaderMap,
        queries: &[String],
        documents: &[String],
    ) -> Result<Vectors, ApiError> {
        if queries.len() > 1 && queries.len() != documents.len() {
            return Err(ApiError::invalid("Input lengths must be either 1:1, 1:N or N:N"));
        }
        if queries.is_empty() {
            return Err(ApiError::invalid("At least one text element must be given"));
        }
        if documents.is_empty() {
            return Err(ApiError::invalid("At least one text_pair element must be given"));
        }
        let of_query = limit(&app.model, self.max_tokens_per_query, "max_tokens_per_query")?;
        let of_document = limit(&app.model, self.max_tokens_per_doc, "max_tokens_per_doc")?;
        let prompt = |text: &String, most: Option<usize>| -> Result<MediaPrompt, ApiError> {
            let mut tokens = match most.is_some() || self.pool.truncate_prompt_tokens.is_some() {
                true => app.model.encode(text, true)?,
                false => app.model.encode_whole(text, true)?,
            };
            tokens.truncate(most.unwrap_or(usize::MAX));
            Ok((tokens, None))
        };
        let queries = queries.iter().map(|text| prompt(text, of_query));
        let documents = documents.iter().map(|text| prompt(text, of_document));
        let prompts: Vec<_> = queries.chain(documents).collect::<Result<_, _>>()?;
        self.pool.vectors(app, headers, "score", prompts, None).await
    }
}

/// The maximum number of tokens of a text. 0 means no limit.
fn limit(model: &Model, asked: i64, name: &'static str) -> Result<Option<usize>, ApiError> {
    let longest = model.max_model_len;
    match usize::try_from(asked) {
        Ok(0) => Ok(None),
        Ok(most) if most < longest as usize => Ok(Some(most)),
        Ok(_) => Err(ApiError::invalid(format!("{name} ({asked}) must be less than max_model_len ({longest})."))),
        Err(_) => Err(ApiError::invalid(format!("{name} must be a non-negative integer"))),
    }
}

/// The score of each document with its query, or with the only query.
fn scores(vectors: &[Vec<f32>], queries: usize) -> Vec<f64> {
    let (queries, documents) = vectors.split_at(queries);
    let query = |index: usize| if queries.len() == 1 { &queries[0] } else { &queries[index] };
    documents.iter().enumerate().map(|(index, document)| cosine(query(index), document)).collect()
}

fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let product = |one: &[f32], other: &[f32]| -> f64 {
        one.iter().zip(other).map(|(one, other)| f64::from(*one) * f64::from(*other)).sum()
    };
    let lengths = (product(one, one) * product(other, other)).sqrt();
    if lengths > 0.0 { product(one, other) / lengths } else { 0.0 }
}

pub(in crate::api) async fn score(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<ScoreRequest>,
) -> Result<Json<List<Score>>, ApiError> {
    let FastJson(ScoreRequest { options, queries, documents }) = body?;
    let (queries, documents) = (texts(queries, "queries")?, texts(documents, "documents")?);
    let answer = options.vectors(&app, &headers, &queries, &documents).await?;
    let score = |(index, score)| Score { index, object: "score", score };
    let data = scores(&answer.vectors, queries.len()).into_iter().enumerate().map(score).collect();
    Ok(Json(answer.list(data)))
}

/// Answers with the documents, highest score first.
pub(in crate::api) async fn rerank(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<RerankRequest>,
) -> Result<Json<Ranks>, ApiError> {
    let FastJson(RerankRequest { options, query, documents, top_n }) = body?;
    if query.is_array() {
        return Err(ApiError::malformed("query: expected a text"));
    }
    let (queries, documents) = (texts(query, "query")?, texts(documents, "documents")?);
    let answer = options.vectors(&app, &headers, &queries, &documents).await?;
    let scores = scores(&answer.vectors, queries.len());
    let rank = |((index, text), relevance_score)| Rank {
        index,
        document: Document { text, multi_modal: None },
        relevance_score,
    };
    let mut results: Vec<_> = documents.into_iter().enumerate().zip(scores).map(rank).collect();
    // The sort is stable: equal scores keep their order.
    results.sort_by(|one, other| other.relevance_score.total_cmp(&one.relevance_score));
    if top_n > 0 {
        results.truncate(top_n);
    }
    let tokens = answer.prompt_tokens;
    let usage = RankUsage { prompt_tokens: tokens, total_tokens: tokens };
    Ok(Json(Ranks { id: answer.id, model: answer.model, usage, results }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_scored_by_their_angle() {
        let (east, north) = (vec![2.0, 0.0], vec![0.0, 1.0]);
        let vectors = [east.clone(), east.clone(), north.clone()];
        assert_eq!(scores(&vectors, 1), [1.0, 0.0]);
        assert_eq!(scores(&[east.clone(), north.clone(), north, east], 2), [0.0, 0.0]);
        assert_eq!(cosine(&[0.0], &[1.0]), 0.0);
    }
}
