//! The endpoints, one module for each.

mod admin;
mod chat;
mod completions;
mod generate;
mod logprobs;
mod message;
mod messages;
mod models;
mod prompt;
mod ranges;
mod request;
mod responses;
mod run;
mod sse;
mod status;
mod tokenize;
mod translated;
mod usage;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::server::App;

/// All endpoints.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/messages", post(messages::messages))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/responses", post(responses::responses))
        .route("/inference/v1/generate", post(generate::generate))
        .route("/v1/models", get(models::models))
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
        .with_state(app)
}
