//! Differences between the clients of vLLM's versions.

use futures::Stream;
use vllm_engine_core_client::protocol::lora::LoraRequest;
use vllm_engine_core_client::protocol::utility::PauseMode;
use vllm_engine_core_client::{EngineCoreClient, EngineCoreOutputStream, EngineCoreStreamOutput, Result};

/// The line whose client this is.
pub const NAME: &str = if cfg!(feature = "0.33") {
    "0.33"
} else if cfg!(feature = "0.32") {
    "0.32"
} else if cfg!(feature = "0.31") {
    "0.31"
} else if cfg!(feature = "0.30") {
    "0.30"
} else if cfg!(feature = "0.29") {
    "0.29"
} else if cfg!(feature = "0.28") {
    "0.28"
} else {
    "0.27"
};

/// The outputs of a request, one by one.
pub fn outputs(stream: EngineCoreOutputStream) -> impl Stream<Item = Result<EngineCoreStreamOutput>> + Unpin {
    #[cfg(feature = "0.32")]
    return stream.into_outputs();
    #[cfg(not(feature = "0.32"))]
    return stream;
}

pub fn lora(name: &str, id: u64) -> LoraRequest {
    LoraRequest {
        lora_name: name.to_owned(),
        lora_int_id: id,
        lora_path: format!("/adapters/{name}"),
        base_model_name: None,
        #[cfg(not(feature = "0.33"))]
        tensorizer_config_dict: None,
        load_inplace: false,
        is_3d_lora_weight: false,
    }
}

/// Pauses in the way of a frontend's `/pause`.
pub async fn pause(client: &EngineCoreClient, mode: PauseMode) -> Result<()> {
    #[cfg(feature = "0.33")]
    return client.pause_generation(mode, true).await;
    #[cfg(not(feature = "0.33"))]
    return client.pause_scheduler(mode, true).await;
}

/// Wakes the engine up; false if it is awake only in part.
pub async fn wake_up(client: &EngineCoreClient) -> Result<bool> {
    #[cfg(feature = "0.31")]
    return client.wake_up(None).await;
    #[cfg(not(feature = "0.31"))]
    return client.wake_up(None).await.map(|()| true);
}

pub async fn start_profile(client: &EngineCoreClient) -> Result<()> {
    #[cfg(feature = "0.32")]
    return client.start_profile(None, None, None).await;
    #[cfg(not(feature = "0.32"))]
    return client.start_profile(None).await;
}
