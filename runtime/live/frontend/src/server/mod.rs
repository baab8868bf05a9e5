//! The HTTP server.

pub mod adapters;
pub mod chats;
pub mod error;
pub mod frontend_kind;
pub(crate) mod ids;
pub mod model;
mod openapi;
pub(crate) mod responses;
pub(crate) mod routes;
pub mod schema_backend;
pub mod structures;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::engine::EngineClient;
use crate::media::{EncoderAddress, ImageOptions, Images};
use chats::ChatOptions;
use frontend_kind::FrontendKind;
use ids::RequestIds;
use model::Model;
use responses::{RepeatedMemory, ResponseStore};
use schema_backend::SchemaBackend;
use structures::{StructureCheck, Structures};

/// The server's state, shared by all handlers.
pub struct App {
    pub engines: EngineClient,
    pub model: Model,
    /// Settings of the server.
    pub options: ServerOptions,
    pub(crate) ids: RequestIds,
    pub(crate) responses: ResponseStore,
    pub(crate) repeated: RepeatedMemory,
    pub(crate) images: Images,
    pub(crate) structures: Structures,
    /// The number of text requests in progress, for `/load`.
    pub(crate) load: AtomicUsize,
    ready_at: Instant,
}

/// Settings of the server.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Time after the start for which `/ready` fails.
    pub startup_duration: Duration,
    /// The simulated frontend of vLLM.
    pub frontend: FrontendKind,
    /// SGLang's settings for `/server_info`. Set if SGLang's server is simulated.
    pub sglang: Option<serde_json::Map<String, serde_json::Value>>,
    /// The backend that decides which JSON schemas are accepted.
    pub schema_backend: SchemaBackend,
    /// Whether to serve an OpenAPI document at `/openapi.json`, as the Python frontend does.
    pub has_document: bool,
    /// The tokenizer's configuration for `/tokenizer_info`. Without it, that path is not served.
    pub tokenizer_info: Option<serde_json::Value>,
    /// Whether each stream ends with usage, even if the request does not ask for it.
    pub forces_usage: bool,
    /// Whether logprobs name tokens by id by default.
    pub tokens_as_ids: bool,
    /// Whether usage contains the number of cached prompt tokens.
    pub enable_prompt_tokens_details: bool,
    /// The engine id for other servers. With several ranks, the rank is appended.
    pub engine_id: String,
    /// Whether to give requests without a seed their own seed, so that equal prompts get different answers.
    pub is_varied: bool,
    /// The default share of a prompt that must be cached for an answer.
    pub least_cached: Option<f64>,
    /// Memory limit for stored responses, in bytes. 0 stores none.
    pub stored_responses_bytes: usize,
    /// Settings of chats.
    pub chat: ChatOptions,
    /// Checks structured outputs before a request reaches an engine, if the token source follows them.
    pub structures: Option<StructureCheck>,
    /// Settings of images in answers, if enabled.
    pub images: Option<ImageOptions>,
    /// The place of the outputs of an encoder-only server.
    pub encoder: Option<EncoderAddress>,
}

impl App {
    /// Creates a server of `model` on `engines`.
    #[must_use]
    pub fn new(engines: EngineClient, model: Model, options: ServerOptions) -> Arc<Self> {
        let ready_at = Instant::now() + options.startup_duration;
        Arc::new(Self {
            images: Images::new(options.images),
            structures: Structures::new(options.structures.clone()),
            responses: ResponseStore::new(options.stored_responses_bytes),
            repeated: RepeatedMemory::new(),
            engines,
            model,
            options,
            ids: RequestIds::new(),
            load: AtomicUsize::new(0),
            ready_at,
        })
    }

    /// Whether the startup delay is over and all engines are healthy.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        Instant::now() >= self.ready_at && self.engines.is_healthy()
    }

    /// Counts a text request until the guard is dropped.
    pub(crate) fn count(self: &Arc<Self>) -> Counted {
        self.load.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(self))
    }
}

/// A text request that `/load` counts.
pub(crate) struct Counted(Arc<App>);

impl Counted {
    pub(crate) fn app(&self) -> &App {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.load.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The current time in seconds since 1970.
pub(crate) fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
