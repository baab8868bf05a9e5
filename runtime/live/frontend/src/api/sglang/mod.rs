//! SGLang's server: its own endpoints, and the endpoints it shares with vLLM, in SGLang's format.

mod generate;
mod info;
mod words;

use std::sync::Arc;

use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

pub use self::generate::render_generate;
use super::operations::{changes, guarded};
use super::{chat, completions, operations, tokens, translated};
use crate::server::App;
use crate::server::routes::Routes;

pub(super) fn routes(app: Arc<App>) -> Routes {
    let shared = Routes::new()
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/messages", post(translated::messages::messages))
        .route("/v1/messages/count_tokens", post(translated::messages::count_tokens))
        .route("/v1/models", get(operations::models::models))
        .route("/tokenize", post(tokens::tokenize::tokenize))
        .route("/v1/tokenize", post(tokens::tokenize::tokenize))
        .route("/detokenize", post(tokens::tokenize::detokenize))
        .route("/v1/detokenize", post(tokens::tokenize::detokenize));
    let words = from_fn_with_state(Arc::clone(&app), words::speak);
    let shared = shared.map(|router| router.layer(words));
    shared
        .route("/generate", post(generate::generate).put(generate::generate))
        .route("/health", get(operations::status::health))
        .route("/health_generate", get(info::health_generate))
        .route("/ready", get(operations::status::ready))
        .route("/ping", get(operations::status::health))
        .route("/model_info", get(info::model_info))
        .route("/get_model_info", get(info::model_info))
        .route("/server_info", get(info::server_info))
        .route("/get_server_info", get(info::server_info))
        .route("/get_load", get(info::load))
        .route("/flush_cache", guarded(get(info::flush_cache).post(info::flush_cache)))
        .route("/abort_request", changes(info::abort_request))
        .route("/pause_generation", changes(operations::admin::pause))
        .route("/continue_generation", changes(operations::admin::resume))
        .with_state(app)
}
