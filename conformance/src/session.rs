//! A client, its engines, and requests to them.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail, ensure};
use futures::{Stream, StreamExt};
use tempfile::TempDir;
use vllm_engine_core_client::protocol::handshake::EngineCoreReadyResponse;
use vllm_engine_core_client::protocol::output::{EngineCoreEventType, EngineCoreFinishReason, StopReason};
use vllm_engine_core_client::protocol::request::EngineCoreRequest;
use vllm_engine_core_client::protocol::sampling::EngineCoreSamplingParams;
use vllm_engine_core_client::protocol::stats::PrefillStats;
use vllm_engine_core_client::{
    CoordinatorMode, EngineCoreClient, EngineCoreClientConfig, EngineCoreStreamOutput, TransportMode,
};
use vllm_metrics::METRICS;

use crate::engine::{EngineCommand, EngineProcess};
use crate::expect::same;
use crate::line;

/// How a client and its engines are set up.
pub struct Setup {
    /// Unix sockets, and not TCP.
    pub ipc: bool,
    pub engines: usize,
    /// With the client's own coordinator of waves.
    pub coordinator: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self { ipc: false, engines: 1, coordinator: false }
    }
}

/// Numbers values that must differ from all earlier ones.
static NEXT: AtomicU64 = AtomicU64::new(1);

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Tokens that no prompt has begun with, in a vocabulary of usual size.
pub fn fresh_prompt(length: usize) -> Vec<u32> {
    let mut state = next().wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut token = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1_000 + u32::try_from(state >> 40).unwrap_or(0) % 30_000
    };
    (0..length).map(|_| token()).collect()
}

/// A request for N tokens that always takes the likeliest one.
pub fn request(prompt: Vec<u32>, max_tokens: u32) -> EngineCoreRequest {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let params = EngineCoreSamplingParams { max_tokens, temperature: 0.0, ..EngineCoreSamplingParams::for_test() };
    EngineCoreRequest {
        request_id: format!("conformance-{}", next()),
        prompt_token_ids: Some(prompt),
        sampling_params: Some(params),
        arrival_time: now.as_secs_f64(),
        ..EngineCoreRequest::default()
    }
}

/// The same with other parameters.
pub fn request_with(
    prompt: Vec<u32>,
    max_tokens: u32,
    change: impl FnOnce(&mut EngineCoreSamplingParams),
) -> EngineCoreRequest {
    let mut request = request(prompt, max_tokens);
    change(request.sampling_params.get_or_insert_default());
    request
}

/// A client with engines behind it.
pub struct Session {
    pub client: EngineCoreClient,
    engines: Vec<EngineProcess>,
    model: String,
    patience: Duration,
    _folder: TempDir,
}

impl Session {
    pub async fn start(command: &EngineCommand, setup: Setup) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let ipc = |name: &str| setup.ipc.then(|| format!("ipc://{}/{name}", folder.path().display()));
        let address = match ipc("handshake") {
            Some(address) => address,
            None => format!("tcp://127.0.0.1:{}", free_port()?),
        };
        let mut engines = Vec::new();
        for rank in 0..setup.engines {
            engines.push(command.start(&address, rank, setup.engines, folder.path())?);
        }
        let model = format!("model-{}", next());
        let mut config = EngineCoreClientConfig::new_single(&address)
            .with_model_name(&model)
            .with_coordinator_mode(setup.coordinator.then_some(CoordinatorMode::InProc));
        config.transport_mode = TransportMode::HandshakeOwner {
            handshake_address: address,
            advertised_host: "127.0.0.1".to_owned(),
            engine_count: setup.engines,
            ready_timeout: command.patience,
            local_input_address: ipc("inputs"),
            local_output_address: ipc("outputs"),
        };
        let connecting = EngineCoreClient::connect(config);
        let client = tokio::select! {
            client = connecting => client.context("the client did not start")?,
            error = someone_ends(&mut engines) => return Err(error),
        };
        Ok(Self { client, engines, model, patience: command.patience, _folder: folder })
    }

    pub fn ready(&self) -> &EngineCoreReadyResponse {
        self.client.ready_response()
    }

    pub fn block_size(&self) -> usize {
        usize::try_from(self.ready().block_size).unwrap_or(usize::MAX)
    }

    /// More tokens than an answer to a short prompt soon has.
    pub fn endless(&self) -> u32 {
        u32::try_from(self.ready().max_model_len).unwrap_or(u32::MAX).saturating_sub(20)
    }

    /// That the client has met nothing it could not use.
    pub fn is_well(&self) -> Result<()> {
        match self.client.health_error() {
            Some(error) => Err(anyhow!(error).context("the client has given the engine up")),
            None => Ok(()),
        }
    }

    pub fn what_the_engines_said(&self) -> String {
        self.engines.iter().map(EngineProcess::said).collect::<Vec<_>>().join("\n")
    }

    /// Asks, and waits for the whole answer.
    pub async fn ask(&self, request: EngineCoreRequest) -> Result<Answer> {
        let id = request.request_id.clone();
        let prompt_tokens = request.prompt_token_ids.as_ref().map_or(0, Vec::len);
        let stream = self.begin(request).await?;
        Answer::of(stream, prompt_tokens).await.with_context(|| format!("request {id}"))
    }

    /// Asks, and leaves the outputs to the caller.
    pub async fn begin(
        &self,
        request: EngineCoreRequest,
    ) -> Result<impl Stream<Item = vllm_engine_core_client::Result<EngineCoreStreamOutput>> + Unpin + use<>> {
        Ok(line::outputs(self.client.call(request).await?))
    }

    /// A metric of the client, summed over its engines. Names of counters end in `_total`.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let text = METRICS.render()?;
        let label = format!("model_name=\"{}\"", self.model);
        let values = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|labels| labels.starts_with('{')) && line.contains(&label)
        });
        let values = values.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<f64>());
        let values = values.collect::<Result<Vec<f64>, _>>()?;
        ensure!(!values.is_empty(), "the client has no metric `{name}`");
        Ok(values.iter().sum())
    }

    /// Asserts that a metric reaches this value.
    pub async fn metric_becomes(&self, name: &str, expected: f64) -> Result<()> {
        let deadline = tokio::time::Instant::now() + self.patience / 4;
        while self.metric(name)? != expected {
            if tokio::time::Instant::now() > deadline {
                bail!("`{name}`: expected {expected}, found {}", self.metric(name)?);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

/// A port outside the range that the system assigns: the client binds its other sockets first, and
/// one of them could get it.
fn free_port() -> Result<u16> {
    let first = 15_000 + u64::from(std::process::id()) * 100;
    let mut ports = (0..15_000).map(|_| 15_000 + ((first + next()) % 15_000) as u16);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).context("no port is free")
}

async fn someone_ends(engines: &mut [EngineProcess]) -> anyhow::Error {
    loop {
        if let Some(error) = engines.iter_mut().find_map(|engine| engine.is_alive().err()) {
            return error;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// All that came for a request.
pub struct Answer {
    pub outputs: Vec<EngineCoreStreamOutput>,
    pub tokens: Vec<u32>,
    pub prefill: PrefillStats,
}

impl Answer {
    async fn of(
        mut stream: impl Stream<Item = vllm_engine_core_client::Result<EngineCoreStreamOutput>> + Unpin,
        prompt_tokens: usize,
    ) -> Result<Self> {
        let mut outputs = Vec::new();
        while let Some(output) = stream.next().await {
            outputs.push(output?);
        }
        let tokens = outputs.iter().flat_map(|output| output.new_token_ids.iter().copied()).collect();
        let first = outputs.first().ok_or_else(|| anyhow!("no output came"))?;
        let Some(prefill) = &first.prefill_stats else { bail!("the first output has no prefill_stats") };
        // Later lines box it.
        let prefill = PrefillStats::clone(prefill);
        let answer = Self { outputs, tokens, prefill };
        answer.is_sound(prompt_tokens)?;
        Ok(answer)
    }

    /// Invariants of every answer.
    fn is_sound(&self, prompt_tokens: usize) -> Result<()> {
        let (last, before) = self.outputs.split_last().ok_or_else(|| anyhow!("no output came"))?;
        ensure!(before.iter().all(|output| !output.finished()), "an output behind the last one came");
        ensure!(last.finished(), "the last output says nothing of an end");
        ensure!(
            self.outputs.windows(2).all(|pair| pair[0].timestamp <= pair[1].timestamp),
            "the messages' times run backwards"
        );
        let engines: BTreeSet<u32> = self.outputs.iter().map(|output| output.engine_index).collect();
        same("engines that answered", engines.len(), 1)?;
        self.prefill_is_sound(prompt_tokens)?;
        self.events_are_sound()
    }

    fn prefill_is_sound(&self, prompt_tokens: usize) -> Result<()> {
        let PrefillStats { num_prompt_tokens, num_computed_tokens, num_cached_tokens, .. } = self.prefill;
        same("num_prompt_tokens", num_prompt_tokens as usize, prompt_tokens)?;
        same("computed and cached tokens", num_computed_tokens + num_cached_tokens, num_prompt_tokens)?;
        let parts = self.prefill.num_local_cached_tokens + self.prefill.num_external_cached_tokens;
        same("num_cached_tokens", num_cached_tokens, parts)?;
        ensure!(
            self.outputs[1..].iter().all(|output| output.prefill_stats.is_none()),
            "prefill_stats came twice for a request"
        );
        Ok(())
    }

    /// The first output reports when the request was queued and scheduled.
    fn events_are_sound(&self) -> Result<()> {
        let events = self.outputs[0].events.as_deref().unwrap_or_default();
        let kinds: Vec<EngineCoreEventType> = events.iter().map(|event| event.r#type).collect();
        ensure!(
            kinds.starts_with(&[EngineCoreEventType::Queued, EngineCoreEventType::Scheduled]),
            "events of the first output: expected queued and scheduled, found {kinds:?}"
        );
        ensure!(
            events.windows(2).all(|pair| pair[0].timestamp <= pair[1].timestamp)
                && events.iter().all(|event| event.timestamp <= self.outputs[0].timestamp),
            "the events' times run backwards: {events:?} in a message of {}",
            self.outputs[0].timestamp
        );
        Ok(())
    }

    pub fn last(&self) -> &EngineCoreStreamOutput {
        &self.outputs[self.outputs.len() - 1]
    }

    /// That it ended so.
    pub fn ended(&self, reason: EngineCoreFinishReason, stop: Option<StopReason>) -> Result<()> {
        same(
            "finish_reason and stop_reason",
            (self.last().finish_reason, self.last().stop_reason.clone()),
            (Some(reason), stop),
        )
    }
}
