//! The endpoints, one module for each, and their shared parts.
//!
//! `completions`, `chat` and (for other APIs) `translated` generate text. `tokens` has endpoints with tokens in the
//! request or response, `pooling` has embeddings, classes and scores, `operations` is for operators, `grpc` is the
//! gRPC service, and `sglang` is SGLang's server. Endpoints share `request` and `answer`.

mod answer;
mod chat;
mod completions;
mod grpc;
mod operations;
mod pooling;
mod request;
mod sglang;
mod tokens;
mod translated;

use std::sync::Arc;

use axum::routing::{get, post};

use self::operations::changes;
pub use self::sglang::render_generate;
pub use self::tokens::render::{RenderedApi, render_body};
use crate::server::App;
use crate::server::routes::Routes;

pub(crate) fn routes(app: Arc<App>) -> Routes {
    if app.options.sglang.is_some() {
        return sglang::routes(app);
    }
    let routes = Routes::new()
        .post("/v1/completions", completions::completions)
        .post("/v1/chat/completions", chat::chat_completions)
        .route("/v1/messages", post(translated::messages::messages))
        .route("/v1/messages/count_tokens", post(translated::messages::count_tokens))
        .route("/v1/responses", post(translated::responses::responses))
        .route("/v1/chat/completions/render", post(tokens::render::chat))
        .route("/v1/completions/render", post(tokens::render::completions))
        .route("/v1/messages/render", post(tokens::render::messages))
        .route("/v1/responses/render", post(tokens::render::responses))
        .route("/v1/responses/{id}", get(translated::responses::response).delete(translated::responses::delete))
        .route("/v1/responses/{id}/cancel", post(translated::responses::cancel))
        .route("/inference/v1/generate", post(tokens::generate::generate))
        .route("/inference/v1/abort_requests", changes(operations::development::abort_requests))
        .route("/v1/embeddings", post(pooling::embeddings::embeddings))
        .route("/v2/embed", post(pooling::cohere::embed))
        .route("/pooling", post(pooling::embeddings::pooling))
        .route("/classify", post(pooling::classify::classify))
        .route("/score", post(pooling::score::score))
        .route("/v1/score", post(pooling::score::score))
        .route("/rerank", post(pooling::score::rerank))
        .route("/v1/rerank", post(pooling::score::rerank))
        .route("/v2/rerank", post(pooling::score::rerank))
        .route("/v1/models", get(operations::models::models))
        .route("/v1/load_lora_adapter", changes(operations::lora::load))
        .route("/v1/unload_lora_adapter", changes(operations::lora::unload))
        .route("/tokenize", post(tokens::tokenize::tokenize))
        .route("/detokenize", post(tokens::tokenize::detokenize))
        .route("/health", get(operations::status::health))
        .route("/ready", get(operations::status::ready))
        // This path is from llm-d-inference-sim.
        .route("/health/ready", get(operations::status::ready))
        .route("/ping", get(operations::status::health).post(operations::status::health))
        .route("/version", get(operations::status::version))
        .route("/load", get(operations::status::load))
        .route("/sleep", changes(operations::admin::sleep))
        .route("/wake_up", changes(operations::admin::wake_up))
        .route("/is_sleeping", get(operations::admin::is_sleeping))
        .route("/reset_prefix_cache", changes(operations::admin::reset_prefix_cache))
        .route("/pause", changes(operations::admin::pause))
        .route("/resume", changes(operations::admin::resume))
        .route("/is_paused", get(operations::admin::is_paused))
        .merge(operations::development::routes());
    let routes = match app.options.tokenizer_info {
        Some(_) => routes.route("/tokenizer_info", get(tokens::tokenize::tokenizer_info)),
        None => routes,
    };
    routes.with_state(Arc::clone(&app)).merge(grpc::routes(app))
}
