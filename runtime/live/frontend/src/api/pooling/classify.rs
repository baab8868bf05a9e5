//! `POST /classify`.
//!
//! A class is a direction drawn from its label; its logit is twenty times the cosine of the angle
//! between that and the embedding. The meaning of a text is not known.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Serialize;
use vcr_base::random::Stream;

use super::{List, PoolRequest};
use crate::api::request::body::{Body, FastJson};
use crate::server::App;
use crate::server::error::ApiError;

/// The labels of Transformers where a model has none of its own.
const LABELS: [&str; 2] = ["LABEL_0", "LABEL_1"];
/// Logits are cosines times this.
const SCALE: f64 = 20.0;

#[derive(Serialize)]
pub(in crate::api) struct Class {
    index: usize,
    label: &'static str,
    probs: Vec<f64>,
    num_classes: usize,
}

/// Answers with classes.
pub(in crate::api) async fn classify(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<PoolRequest>,
) -> Result<Json<List<Class>>, ApiError> {
    let FastJson(mut request) = body?;
    // The activation applies to the classes, not to the embedding.
    let has_softmax = request.options.use_activation.take().unwrap_or(true);
    let answer = request.vectors(&app, &headers, "classify", None).await?;
    let class = |(index, vector): (usize, &Vec<f32>)| {
        let logits = LABELS.map(|label| SCALE * cosine_to_label(vector, label));
        let best = if logits[1] > logits[0] { 1 } else { 0 };
        let probs = if has_softmax { softmax(&logits) } else { logits.to_vec() };
        Class { index, label: LABELS[best], probs, num_classes: LABELS.len() }
    };
    let data = answer.vectors.iter().enumerate().map(class).collect();
    Ok(Json(answer.list(data)))
}

/// The cosine of the angle between a vector of length 1 and the direction of a label.
fn cosine_to_label(vector: &[f32], label: &str) -> f64 {
    let mut stream = Stream::new(0, label);
    let directions: Vec<f64> = vector.iter().map(|_| stream.normal()).collect();
    let length = directions.iter().map(|number| number * number).sum::<f64>().sqrt();
    let product: f64 = vector.iter().zip(&directions).map(|(one, other)| f64::from(*one) * other).sum();
    if length > 0.0 { product / length } else { 0.0 }
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let highest = logits.iter().copied().fold(f64::MIN, f64::max);
    let powers: Vec<f64> = logits.iter().map(|logit| (logit - highest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}
