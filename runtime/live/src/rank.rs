//! The life of one engine: it finds its frontend, serves it, and starts again
//! where that is gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vcr_core::seed::derive;
use vcr_core::{Engine, EngineConfig, Seat};
use vcr_wire::{
    EngineGreeting, EngineLink, EngineLinkConfig, Init, KvEventPublisher, LinkError, ReadyResponse, Transport, Value,
    Waiter, monotonic_ns,
};

use crate::adapters::Adapters;
use crate::config::LiveConfig;
use crate::error::LiveError;
use crate::faults::Faults;
use crate::handle::{Counters, EngineState, Shared};
use crate::kv_events::KvEvents;
use crate::outputs::Outputs;
use crate::pause::Pauses;
use crate::requests::Requests;
use crate::routed::Routes;
use crate::server::{End, Server, Shutdown};
use crate::stats::StatsKeeper;
use crate::switchboard::Switchboard;
use crate::tokens::Tokens;
use crate::transfer::Transfers;
use crate::waves::Waves;

/// How often a waiting engine looks whether it should stop.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// One engine of this process.
pub(crate) struct Rank {
    pub(crate) config: Arc<LiveConfig>,
    pub(crate) transport: Transport,
    pub(crate) shared: Arc<[Shared]>,
    pub(crate) waves: Arc<Waves>,
    pub(crate) board: Option<Arc<Switchboard>>,
    pub(crate) waiter: Waiter,
    pub(crate) index: usize,
    /// What former incarnations have counted.
    pub(crate) base: Counters,
}

impl Rank {
    fn number(&self) -> u16 {
        self.config.identity.first_rank + self.index as u16
    }

    fn shared(&self) -> &Shared {
        &self.shared[self.index]
    }

    fn is_stopped(&self) -> bool {
        self.shared().stop.load(Ordering::Relaxed)
    }

    fn state(&self, state: EngineState) {
        self.shared().update(|snapshot| snapshot.state = state);
    }

    /// Lives until it is told to stop, or cannot go on.
    pub(crate) fn live(mut self) -> Result<(), LiveError> {
        // Best effort: without it waits may end some fifty microseconds late.
        _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let result = self.serve_frontends();
        self.state(EngineState::Stopped);
        result
    }

    fn serve_frontends(&mut self) -> Result<(), LiveError> {
        let mut kv_events = self.kv_events()?;
        let mut faults =
            Faults::new(&self.config.faults, derive(self.config.seed, "live.faults", self.number().into()));
        loop {
            self.state(EngineState::Connecting);
            let Some(link) = self.connect(kv_events.as_ref(), &mut faults)? else { return Ok(()) };
            let EngineLink { init, mut inputs, outputs } = link;
            let mut server = self.server(&init, outputs, kv_events.take(), faults)?;
            tracing::info!(rank = self.number(), api_servers = inputs.clients(), "serving");
            let ended = server.run(&mut inputs, &self.waiter);
            server.leave_switchboard();
            let end = ended.inspect_err(|error| {
                tracing::error!(rank = self.number(), "the engine cannot go on: {error}");
                // As vLLM's engine does when it cannot go on; there is nobody
                // left to hear of a second failure.
                _ = server.outputs.send_dead();
            })?;
            server.snapshot_now();
            self.base = server.all_counters();
            (kv_events, faults) = (server.kv_events.take(), server.faults);
            if let Some(events) = &mut kv_events {
                events.restart(server.line, self.config.engine.block_size);
            }
            match end {
                End::ShutDown => return Ok(()),
                End::FrontendLost => {
                    tracing::info!(rank = self.number(), "waiting for a frontend to come back");
                }
                End::Crashed { restart_ns: None } => {
                    self.state(EngineState::Crashed);
                    while !self.is_stopped() {
                        std::thread::sleep(STOP_INTERVAL);
                    }
                    return Ok(());
                }
                End::Crashed { restart_ns: Some(restart_ns) } => {
                    self.state(EngineState::Crashed);
                    drop(inputs);
                    self.pause(restart_ns);
                }
            }
            if self.is_stopped() {
                return Ok(());
            }
        }
    }

    /// Does nothing for a while, unless it is told to stop.
    fn pause(&self, for_ns: u64) {
        let end = Instant::now() + Duration::from_nanos(for_ns);
        while !self.is_stopped() && Instant::now() < end {
            std::thread::sleep(STOP_INTERVAL.min(end.saturating_duration_since(Instant::now())));
        }
    }

    fn kv_events(&self) -> Result<Option<KvEvents>, LiveError> {
        let Some(settings) = &self.config.kv_events else { return Ok(None) };
        let publisher = KvEventPublisher::open(&self.transport, settings.config.clone(), self.number())?;
        let line = self.config.identity.default_line();
        Ok(Some(KvEvents::new(publisher, settings.clone(), line, self.config.engine.block_size)))
    }

    /// Finds a frontend; `None` when it is told to stop meanwhile.
    fn connect(&self, kv_events: Option<&KvEvents>, faults: &mut Faults) -> Result<Option<EngineLink>, LiveError> {
        let identity = &self.config.identity;
        let config = EngineLinkConfig {
            local: identity.is_local,
            headless: identity.is_headless,
            parallel_config_hash: identity.parallel_config_hash.clone(),
            // Whoever starts engines before frontends has his reasons.
            timeout: Duration::MAX,
            stop: Arc::clone(&self.shared().stop),
            ..EngineLinkConfig::new(&identity.handshake_address, self.number())
        };
        tracing::info!(rank = self.number(), address = identity.handshake_address, "waiting for the frontend");
        let greeting = match EngineGreeting::hello(&self.transport, config) {
            Ok(greeting) => greeting,
            Err(LinkError::Stopped) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let delay_ns = faults.start_delay_ns();
        if delay_ns > 0 {
            tracing::warn!(rank = self.number(), delay = ?Duration::from_nanos(delay_ns), "a fault slows the start");
            self.pause(delay_ns);
        }
        match greeting.ready(&self.ready_response(kv_events)) {
            Ok(link) => Ok(Some(link)),
            Err(LinkError::Stopped) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What the frontend must know of this engine.
    fn ready_response(&self, kv_events: Option<&KvEvents>) -> ReadyResponse {
        let identity = &self.config.identity;
        let engine = &self.config.engine;
        let usable = u64::from(engine.num_gpu_blocks - 1) * u64::from(engine.block_size);
        let max_model_len = u64::from(engine.max_model_len());
        let version = || format!("{}.0", identity.default_line());
        let suffix = if identity.num_ranks > 1 { format!("-dp{}", self.number()) } else { String::new() };
        ReadyResponse {
            max_model_len,
            num_gpu_blocks: engine.num_gpu_blocks.into(),
            block_size: engine.block_size.into(),
            dtype: identity.dtype,
            vllm_version: identity.vllm_version.clone().unwrap_or_else(version),
            world_size: identity.tensor_parallel_size.into(),
            tensor_parallel_size: identity.tensor_parallel_size.into(),
            data_parallel_rank: self.number().into(),
            max_num_seqs: engine.max_num_seqs.into(),
            max_num_batched_tokens: engine.max_num_batched_tokens.into(),
            instance_id: format!("{}{suffix}", identity.instance_id),
            supports_lora: engine.max_loras > 0,
            max_loras: engine.max_loras.into(),
            kv_cache_size_tokens: Some(usable),
            kv_cache_max_concurrency: Some(usable as f64 / max_model_len as f64),
            kv_events_config: kv_events.map(|events| events.publisher().config().clone()),
            enable_sleep_mode: true,
            effective_attention_block_size: Some(engine.block_size.into()),
            ..ReadyResponse::default()
        }
    }

    fn server(
        &self,
        init: &Init,
        outputs: vcr_wire::EngineOutputs,
        kv_events: Option<KvEvents>,
        faults: Faults,
    ) -> Result<Server, LiveError> {
        let config = &self.config;
        let rank = self.number();
        let seed = |purpose| derive(config.seed, purpose, rank.into());
        let seat = |purpose| seat(config.seed, purpose, rank);
        let line = config.identity.default_line();
        let injector = config.injector.as_ref().map(|make| make(&seat("live.injector"))).transpose()?;
        let policy = config.policy.as_ref().map(|make| make(&seat("policy"))).transpose()?;
        let mut engine = Engine::new(EngineConfig::clone(&config.engine));
        let needs_overlap = self.board.as_ref().is_some_and(|board| board.needs_overlap());
        engine.pool_mut().record_events(kv_events.is_some() || needs_overlap);
        let origin_ns = monotonic_ns();
        Ok(Server {
            transport: self.transport.clone(),
            shared: Arc::clone(&self.shared),
            index: self.index,
            rank,
            line,
            line_is_known: false,
            refuses_all: None,
            latency: (config.latency)(&seat("latency"))?,
            latency_name: config.latency_name.clone(),
            time_scale: config.time_scale,
            tokens: Tokens::new(config.tokens.clone(), &seat("live.tokens"))?,
            requests: Requests::default(),
            stats: StatsKeeper::new(line.rules()),
            outputs: Outputs::new(outputs, (config.identity.first_rank, self.index), line.rules(), self.board.clone()),
            routes: self.board.clone().map(|board| Routes::new(board, self.index)),
            kv_events,
            adapters: Adapters::new(config.engine.max_loras),
            pauses: Pauses::default(),
            waves: self.waves(init),
            transfers: Transfers::new(
                &config.transfer,
                &self.transport,
                rank,
                config.identity.num_ranks,
                seed("live.transfers"),
            ),
            loads: Default::default(),
            faults,
            injector,
            happened: Vec::new(),
            player: Default::default(),
            prompt_chain: Default::default(),
            pipeline: Default::default(),
            follows_ns: None,
            may_decide: true,
            owes_stats: false,
            stalled_until_ns: 0,
            shutdown: Shutdown::Running,
            end: None,
            base: self.base,
            counters: Counters::default(),
            told_counts: (0, 0),
            is_full: false,
            origin_ns,
            snapshot_ns: 0,
            is_shown: false,
            released: Vec::new(),
            engine,
            policy,
            config: Arc::clone(config),
        })
    }

    /// Waves, if there is a coordinator and the model is a mixture of experts:
    /// vllm-rs has a coordinator for nothing else, and a Python frontend says
    /// so by the settings that it sends.
    fn waves(&self, init: &Init) -> Option<Arc<Waves>> {
        let addresses = &init.addresses;
        addresses.coordinator_output.as_ref()?;
        let has_settings = matches!(&init.parallel_config, Value::Map(pairs) if !pairs.is_empty());
        let is_moe = has_settings || addresses.frontend_stats_publish_address.is_none();
        self.config.identity.is_moe.unwrap_or(is_moe).then(|| Arc::clone(&self.waves))
    }
}

/// The seat at engine `rank` of what serves `purpose`.
pub(crate) fn seat(base_seed: u64, purpose: &str, rank: u16) -> Seat<'static> {
    let engine = Some(u32::from(rank));
    Seat { engine, ..Seat::of_seed(derive(base_seed, purpose, rank.into())) }
}
