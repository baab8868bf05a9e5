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

/// The server's state. Handlers share it.
pub struct App {
    pub engines: EngineClient,
    pub model: Model,
    /// Settings.
    pub options: ServerOptions,
    pub(crate) ids: RequestIds,
    pub(crate) responses: ResponseStore,
    pub(crate) repeated: RepeatedMemory,
    pub(crate) images: Images,
    pub(crate) structures: Structures,
    /// Requests for text in progress, for `/load`.
    pub(crate) load: AtomicUsize,
    ready_at: Instant,
}

/// Settings of the server.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// How long `/ready` is refused after the start.
    pub startup_duration: Duration,
    /// The frontend of vLLM that this one is like.
    pub frontend: FrontendKind,
    /// What `/server_info` tells of a server of SGLang, if this is one.
    pub sglang: Option<serde_json::Map<String, serde_json::Value>>,
    /// What decides whether JSON schemas of outputs are taken.
    pub schema_backend: SchemaBackend,
    /// Describe the routes at `/openapi.json`, as the Python frontend does.
    pub has_document: bool,
    /// The tokenizer's configuration for `/tokenizer_info`, which is not served without it.
    pub tokenizer_info: Option<serde_json::Value>,
    /// End each stream with its usage, whatever its request asks for.
    pub forces_usage: bool,
    /// Name tokens of logprobs by their ids, by default.
    pub tokens_as_ids: bool,
    /// Tell in each usage how many prompt tokens were cached.
    pub enable_prompt_tokens_details: bool,
    /// The name of the engines for others, with the rank behind it if there are several.
    pub engine_id: String,
    /// Give requests that are sampled without a seed one of their own, so that the
    /// same prompt gets several answers.
    pub is_varied: bool,
    /// The share of a prompt that must be cached for an answer, unless its request states another
    /// one.
    pub least_cached: Option<f64>,
    /// Memory for responses that the Responses API stores; 0 stores none.
    pub stored_responses_bytes: usize,
    /// Settings of chats.
    pub chat: ChatOptions,
    /// Checks structures of outputs before an engine gets them, if its source of tokens follows them.
    pub structures: Option<StructureCheck>,
    /// Images in answers, if there may be any.
    pub images: Option<ImageOptions>,
    /// Where the outputs of an encoder without a language model are.
    pub encoder: Option<EncoderAddress>,
}

impl App {
    /// A server of `model` on `engines`.
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

    /// Whether the start-up delay has passed and every engine serves.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        Instant::now() >= self.ready_at && self.engines.is_healthy()
    }

    /// Counts a request for text until the guard is dropped.
    pub(crate) fn count(self: &Arc<Self>) -> Counted {
        self.load.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(self))
    }
}

/// A request that `/load` counts.
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

/// The time, in seconds since 1970.
pub(crate) fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
