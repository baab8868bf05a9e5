//! The gRPC service `vllm.grpc.engine.VllmEngine`, on the HTTP port.

mod aborts;
mod calls;
mod embed;
mod generate;
mod messages;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use axum::routing::post;
use tonic::Status;

use self::aborts::Aborts;
use self::calls::{Answering, streaming, unary};
use self::messages::{
    AbortRequest, EmbedRequest, Empty, GenerateRequest, GetModelInfoResponse, GetServerInfoResponse,
    HealthCheckResponse,
};
use crate::server::error::ApiError;
use crate::server::routes::Routes;
use crate::server::{App, unix_s};

struct Service {
    app: Arc<App>,
    aborts: Aborts,
    started_at: Instant,
    /// When the last request arrived: the bits of a float, in seconds since 1970.
    last_receive: AtomicU64,
}

impl Service {
    fn received(&self) {
        self.last_receive.store(unix_s().to_bits(), Ordering::Relaxed);
    }

    fn id(&self, own: String) -> String {
        if own.is_empty() { self.app.ids.next() } else { own }
    }
}

pub(super) fn routes(app: Arc<App>) -> Routes {
    let service = Service {
        app,
        aborts: Aborts::default(),
        started_at: Instant::now(),
        last_receive: AtomicU64::new(0.0_f64.to_bits()),
    };
    Routes::new()
        .route("/vllm.grpc.engine.VllmEngine/Generate", post(generate))
        .route("/vllm.grpc.engine.VllmEngine/Embed", post(embed))
        .route("/vllm.grpc.engine.VllmEngine/HealthCheck", post(health_check))
        .route("/vllm.grpc.engine.VllmEngine/Abort", post(abort))
        .route("/vllm.grpc.engine.VllmEngine/GetModelInfo", post(model_info))
        .route("/vllm.grpc.engine.VllmEngine/GetServerInfo", post(server_info))
        .route("/vllm.grpc.engine.VllmEngine/{method}", post(unknown))
        .with_state(Arc::new(service))
}

async fn unknown(Path(method): Path<String>) -> Response {
    Status::unimplemented(format!("unknown method `{method}`")).into_http::<Body>()
}

fn generate(State(service): State<Arc<Service>>, request: Request) -> Answering {
    streaming(request, move |mut request: GenerateRequest| {
        let service = Arc::clone(&service);
        async move {
            service.received();
            let id = service.id(std::mem::take(&mut request.request_id));
            let registration = service.aborts.register(&id);
            generate::generate(&service.app, request, id, registration).await
        }
    })
}

fn embed(State(service): State<Arc<Service>>, request: Request) -> Answering {
    unary(request, move |mut request: EmbedRequest| {
        let service = Arc::clone(&service);
        async move {
            service.received();
            let id = service.id(std::mem::take(&mut request.request_id));
            let registration = service.aborts.register(&id);
            embed::embed(&service.app, request, id, registration).await
        }
    })
}

fn health_check(State(service): State<Arc<Service>>, request: Request) -> Answering {
    unary(request, move |_: Empty| {
        let healthy = service.app.engines.is_healthy();
        let message = if healthy { "Health" } else { "Engine is not alive" };
        async move { Ok(HealthCheckResponse { healthy, message: message.to_owned() }) }
    })
}

fn abort(State(service): State<Arc<Service>>, request: Request) -> Answering {
    unary(request, move |request: AbortRequest| {
        request.request_ids.iter().for_each(|id| service.aborts.abort(id));
        async { Ok(Empty {}) }
    })
}

fn model_info(State(service): State<Arc<Service>>, request: Request) -> Answering {
    unary(request, move |_: Empty| {
        let model = &service.app.model;
        let info = GetModelInfoResponse {
            model_path: model.root.clone(),
            is_generation: true,
            max_context_length: model.max_model_len,
            vocab_size: model.vocab_size,
            supports_vision: false,
            served_model_name: model.names.first().cloned().unwrap_or_default(),
            tokenizer_path: model.root.clone(),
            eos_token_ids: model.eos_tokens.iter().map(|token| token.cast_signed()).collect(),
            max_req_input_len: model.max_model_len.cast_signed(),
        };
        async { Ok(info) }
    })
}

fn server_info(State(service): State<Arc<Service>>, request: Request) -> Answering {
    unary(request, move |_: Empty| {
        let service = Arc::clone(&service);
        async move {
            let app = &service.app;
            let is_paused = app.engines.is_paused().await.map_err(ApiError::from)?;
            let settings = app.engines.settings().unwrap_or_default();
            Ok(GetServerInfoResponse {
                active_requests: app.load.load(Ordering::Relaxed) as u32,
                is_paused,
                last_receive_timestamp: f64::from_bits(service.last_receive.load(Ordering::Relaxed)),
                uptime_seconds: service.started_at.elapsed().as_secs_f64(),
                server_type: "vllm-grpc".to_owned(),
                data_parallel_size: app.engines.num_ranks() as i32,
                block_size: settings.block_size as i32,
                max_num_seqs: settings.max_num_seqs as i32,
            })
        }
    })
}
