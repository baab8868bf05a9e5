//! `POST /classify`.
//!
//! The logit of a class is twenty times the cosine between the embedding and a random direction drawn from the
//! class label. It does not depend on the meaning of the text.

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

/// Transformers' labels for models without their own.
const LABELS: [&str; 2] = ["LABEL_0", "LABEL_1"];
/// The factor from cosines to logits.
const SCALE: f64 = 20.0;

#[derive(Serialize)]
pub(in crate::api) struct Class {
    index: usize,
    label: &'static str,
    probs: Vec<f64>,
    num_classes: usize,
}

pub(in crate::api) async fn classify(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<PoolRequest>,
) -> Result<Json<List<Class>>, ApiError> {
    let FastJson(mut request) = body?;
    // The activation is applied to the classes, not to the embedding.
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

/// The cosine between a unit vector and the direction of a label.
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
