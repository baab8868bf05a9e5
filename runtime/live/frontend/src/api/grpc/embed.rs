//! `Embed`: returns the embedding of a tokenized prompt.

use std::sync::Arc;

use vcr_base::finish_reason::FinishReason;
use vcr_wire::{EngineCoreRequest, PoolingParams};

use super::aborts::Registration;
use super::messages::{EmbedRequest, EmbedResponse};
use crate::server::error::ApiError;
use crate::server::{App, unix_s};

/// Sends the request to an engine. The engine refuses it unless embeddings were enabled at startup.
pub(super) async fn embed(
    app: &Arc<App>,
    request: EmbedRequest,
    id: String,
    registration: Registration,
) -> Result<EmbedResponse, ApiError> {
    let _counted = app.count();
    let prompt = request.tokenized.unwrap_or_default().input_ids;
    if prompt.is_empty() {
        return Err(ApiError::invalid("invalid tokenized: expected at least one token"));
    }
    let (prompt_tokens, limit) = (prompt.len() as u32, app.model.max_model_len);
    if prompt_tokens > limit {
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, you requested {prompt_tokens} tokens in the \
             input for embedding generation. Please reduce the length of the input."
        );
        return Err(ApiError::invalid(message));
    }
    let request = EngineCoreRequest {
        request_id: format!("{id}-{}", app.ids.next()),
        external_req_id: Some(id),
        arrival_time: unix_s(),
        prompt_token_ids: Some(prompt),
        pooling_params: Some(PoolingParams { task: Some("embed".to_owned()), ..PoolingParams::default() }),
        ..EngineCoreRequest::default()
    };
    let mut outputs = app.engines.submit(request)?;
    loop {
        let output = tokio::select! {
            output = outputs.next() => output?,
            () = registration.aborted() => return Err(ApiError::invalid("the request was aborted")),
        };
        let Some(output) = output else { return Err(ApiError::internal("the engine gave no embedding")) };
        if output.finish_reason == Some(FinishReason::Error) {
            return Err(ApiError::of_engine(output.error.as_ref()));
        }
        if let Some(tensor) = &output.pooling_output {
            let bytes = tensor.bytes(&[]).map_err(|error| ApiError::internal(error.to_string()))?;
            let numbers = bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number));
            let embedding: Vec<f32> = numbers.collect();
            let embedding_dim = embedding.len() as u32;
            return Ok(EmbedResponse { embedding, prompt_tokens, embedding_dim });
        }
        if output.finish_reason.is_some() {
            return Err(ApiError::internal("the engine gave no embedding"));
        }
    }
}
