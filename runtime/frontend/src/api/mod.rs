//! The endpoints, one module for each.

mod admin;
mod chat;
mod chat_answers;
mod classify;
mod cohere;
mod completions;
mod development;
mod embed_dtype;
mod embeddings;
mod features;
mod generate;
mod grpc;
mod logprobs;
mod lora;
mod message;
mod messages;
mod models;
mod pool;
mod prompt;
mod quick;
mod ranges;
mod render;
mod rendered;
mod reply;
mod request;
mod responses;
mod run;
mod score;
mod sse;
mod status;
mod structured;
mod tokenize;
mod tools;
mod translated;
mod usage;
mod vectors;

use std::sync::Arc;

use axum::routing::{get, post};

pub use self::render::{RenderedApi, render_body};
use crate::server::App;
use crate::server::routes::Routes;

/// All endpoints.
pub(crate) fn routes(app: Arc<App>) -> Routes {
    Routes::new()
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/messages", post(messages::messages))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/responses", post(responses::responses))
        .route("/v1/chat/completions/render", post(render::chat))
        .route("/v1/completions/render", post(render::completions))
        .route("/v1/messages/render", post(render::messages))
        .route("/v1/responses/render", post(render::responses))
        .route("/v1/responses/{id}", get(responses::response).delete(responses::delete))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/inference/v1/generate", post(generate::generate))
        .route("/inference/v1/abort_requests", post(development::abort_requests))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v2/embed", post(cohere::embed))
        .route("/pooling", post(embeddings::pooling))
        .route("/classify", post(classify::classify))
        .route("/score", post(score::score))
        .route("/v1/score", post(score::score))
        .route("/rerank", post(score::rerank))
        .route("/v1/rerank", post(score::rerank))
        .route("/v2/rerank", post(score::rerank))
        .route("/v1/models", get(models::models))
        .route("/v1/load_lora_adapter", post(lora::load))
        .route("/v1/unload_lora_adapter", post(lora::unload))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/health", get(status::health))
        .route("/ready", get(status::ready))
        .route("/ping", get(status::health).post(status::health))
        .route("/version", get(status::version))
        .route("/load", get(status::load))
        .route("/sleep", post(admin::sleep))
        .route("/wake_up", post(admin::wake_up))
        .route("/is_sleeping", get(admin::is_sleeping))
        .route("/reset_prefix_cache", post(admin::reset_prefix_cache))
        .route("/pause", post(admin::pause))
        .route("/resume", post(admin::resume))
        .route("/is_paused", get(admin::is_paused))
        .merge(development::routes())
        .with_state(Arc::clone(&app))
        .merge(grpc::routes(app))
}
