//! Requests for vectors instead of text: a prefill without output tokens.

use futures_util::future::try_join_all;
use vcr_base::finish_reason::FinishReason;
use vcr_wire::{EngineCoreRequest, PoolingParams};

use super::params::Placement;
use crate::engine::RequestStream;
use crate::media::MediaPrompt;
use crate::server::App;
use crate::server::error::ApiError;

/// Settings of all vectors of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pooling {
    /// The number of dimensions, if the model's vectors must be shortened.
    pub(crate) dimensions: Option<u32>,
    /// Whether to normalize the vectors. By default, the model does.
    pub(crate) use_activation: Option<bool>,
}

/// Computes the vectors of several prompts, in order. Engines prefill the prompts and then end the requests.
///
/// # Errors
/// When an engine refuses a prompt. The others are then aborted.
pub(crate) async fn pooled(
    app: &App,
    id: &str,
    prompts: Vec<MediaPrompt>,
    pooling: &Pooling,
    place: &Placement,
) -> Result<Vec<Vec<f32>>, ApiError> {
    app.engines.check_fits(prompts.len())?;
    let mut streams = Vec::with_capacity(prompts.len());
    for (index, (tokens, mm_features)) in prompts.into_iter().enumerate() {
        let external = format!("{id}-{index}");
        let request = EngineCoreRequest {
            request_id: format!("{external}-{}", app.ids.next()),
            external_req_id: Some(external),
            prompt_token_ids: Some(tokens),
            mm_features,
            pooling_params: Some(PoolingParams {
                use_activation: pooling.use_activation,
                dimensions: pooling.dimensions,
                task: Some("embed".to_owned()),
                ..PoolingParams::default()
            }),
            arrival_time: crate::server::unix_s(),
            lora_request: place.adapter.clone(),
            cache_salt: place.cache_salt.clone(),
            data_parallel_rank: place.rank,
            priority: place.priority,
            session_id: place.session_id.clone(),
            ..EngineCoreRequest::default()
        };
        streams.push(app.engines.submit(request)?);
    }
    try_join_all(streams.into_iter().map(vector)).await
}

/// Waits for the vector of a request.
async fn vector(mut stream: RequestStream) -> Result<Vec<f32>, ApiError> {
    while let Some(output) = stream.next().await? {
        if output.finish_reason == Some(FinishReason::Error) {
            return Err(ApiError::of_engine(output.error.as_ref()));
        }
        if let Some(tensor) = output.pooling_output {
            let bytes = tensor.bytes(&[]).map_err(|error| ApiError::internal(error.to_string()))?;
            let (numbers, _) = bytes.as_chunks();
            return Ok(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect());
        }
    }
    // The request was aborted by a pause or by the server's shutdown.
    Err(ApiError::internal("Failed to generate results for all prompts"))
}
