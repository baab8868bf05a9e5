//! The thread of one engine: it connects to a frontend, serves it, and connects to the next one when the first is
//! lost.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vcr_core::seed::derive;
use vcr_wire::{
    EngineGreeting, EngineLink, EngineLinkConfig, EngineOutputs, Init, KvEventPublisher, LinkError, LocalLink,
    ReadyResponse, Transport, Value, Waiter, Waker,
};

use crate::config::{Identity, LiveConfig};
use crate::context::{Context, latency_model, plugin_context};
use crate::counters::Counters;
use crate::egress::kv_events::KvEvents;
use crate::egress::waves::Waves;
use crate::error::LiveError;
use crate::faults::active::Faults;
use crate::handle::{EngineState, Shared};
use crate::kv_transfer::meetings::Meetings;
use crate::kv_transfer::mover::Mover;
use crate::kv_transfer::transfers::engine_name;
use crate::lifecycle::End;
use crate::process::waiting;
use crate::routing::dispatcher::Dispatcher;
use crate::routing::routes::Routes;
use crate::server::{Links, PersistentState, Plugins, Server};
use crate::tokens::Tokens;

/// Interval at which a waiting engine checks whether it must shut down.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) struct Rank {
    pub(crate) config: Arc<LiveConfig>,
    pub(crate) transport: Transport,
    /// Used only for connections to the side channels of other engines.
    pub(crate) peer_transport: Transport,
    pub(crate) shared: Arc<[Shared]>,
    pub(crate) waves: Arc<Waves>,
    pub(crate) dispatcher: Option<Arc<Dispatcher>>,
    pub(crate) waiter: Waiter,
    /// Data plane for the first frontend, if there is a data plane.
    pub(crate) mover: Option<Mover>,
    /// The link to a frontend in this process, if there is one.
    pub(crate) local: Option<LocalLink>,
    pub(crate) index: usize,
}

impl Rank {
    fn number(&self) -> u16 {
        self.config.identity.first_rank + self.index as u16
    }

    fn shared(&self) -> &Shared {
        &self.shared[self.index]
    }

    fn is_stopped(&self) -> bool {
        self.shared().stop.load(Ordering::Acquire)
    }

    fn state(&self, state: EngineState) {
        self.shared().update(|snapshot| snapshot.state = state);
    }

    /// Runs until a shutdown, or until the engine fails.
    pub(crate) fn live(mut self) -> Result<(), LiveError> {
        // Best effort: without this, waits may end some fifty microseconds late on Linux.
        #[cfg(target_os = "linux")]
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        crate::process::time_slice::shorten_time_slice();
        let result = self.serve_frontends();
        // This tells waiting clients that no answer will come.
        self.close_local();
        self.state(EngineState::Stopped);
        result
    }

    fn close_local(&self) {
        if let Some(link) = &self.local {
            link.close();
        }
    }

    fn serve_frontends(&mut self) -> Result<(), LiveError> {
        let mut lasting = PersistentState {
            kv_events: self.kv_events()?,
            faults: Faults::new(&self.config.faults, derive(self.config.seed, "live.faults", self.number().into())),
            counters: Counters::default(),
        };
        loop {
            self.state(EngineState::Connecting);
            // Make the plugins and the mover before the frontend counts on this engine, because they may fail.
            let plugins = self.plugins()?;
            let mover = match self.mover.take() {
                Some(mover) => Some(mover),
                None => start_mover(&self.config, self.number(), self.waiter.waker())?,
            };
            let meetings = self.start_meetings()?;
            let Some((link, routes)) = self.connect(&mut lasting)? else { return Ok(()) };
            let EngineLink { init, mut inputs, outputs } = link;
            let context = Context::new(Arc::clone(&self.config), self.index);
            let mut server =
                Server::new(context, self.links(&init, (outputs, routes), (mover, meetings)), plugins, lasting);
            tracing::info!(rank = self.number(), api_servers = inputs.clients(), "serving");
            // A bug must not leave a frontend waiting either.
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let ended = server.run(&mut inputs, &self.waiter);
                server.close_routes();
                ended
            }));
            if let Ok(Err(error)) = &ended {
                tracing::error!(rank = self.number(), "the engine has failed: {error}");
            }
            let is_dead = match &ended {
                Ok(Ok(End::ShutDown)) => self.shared().has_failed(),
                Ok(Ok(End::FrontendLost | End::Crashed { .. })) => false,
                Ok(Err(_)) | Err(_) => true,
            };
            if is_dead {
                // vLLM's engine also tells its frontends when it fails. If this message fails, nobody can be told.
                _ = server.send_dead();
            }
            let end = ended.unwrap_or_else(|panic| resume_unwind(panic))?;
            let mut links;
            (lasting, links) = server.finish();
            match end {
                End::ShutDown => {
                    links.flush()?;
                    return Ok(());
                }
                End::FrontendLost => {
                    tracing::info!(rank = self.number(), "waiting for a frontend to come back");
                }
                End::Crashed { restart_ns: None } => {
                    self.state(EngineState::Crashed);
                    // A real connection stays open here. A link within the process has none, so close the link.
                    self.close_local();
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

    /// Sleeps until the time is over or a shutdown begins.
    fn pause(&self, for_ns: u64) {
        let end = Instant::now() + Duration::from_nanos(for_ns);
        while !self.is_stopped() && Instant::now() < end {
            std::thread::sleep(STOP_INTERVAL.min(end.saturating_duration_since(Instant::now())));
        }
    }

    fn kv_events(&self) -> Result<Option<KvEvents>, LiveError> {
        let Some(settings) = &self.config.kv_events else { return Ok(None) };
        let publisher = KvEventPublisher::open(&self.transport, settings.config.clone(), self.number())?;
        let version = self.config.identity.default_version();
        Ok(Some(KvEvents::new(publisher, settings.clone(), version, &self.config.engine)))
    }

    /// Connects to a frontend, and makes the router count on this engine; `None` after a shutdown.
    fn connect(&self, lasting: &mut PersistentState) -> Result<Option<(EngineLink, Option<Routes>)>, LiveError> {
        if let Some(link) = &self.local {
            self.delay_start(lasting);
            if self.is_stopped() {
                return Ok(None);
            }
            let routes = self.open_routes();
            let link = EngineLink::local(link, &self.ready_response(lasting.kv_events.as_ref()));
            return Ok(Some((link, routes)));
        }
        let identity = &self.config.identity;
        let config = EngineLinkConfig {
            local: identity.is_local,
            headless: identity.is_headless,
            parallel_config_hash: identity.parallel_config_hash.clone(),
            timeout: identity.connect_timeout.unwrap_or(Duration::MAX),
            stop: Arc::clone(&self.shared().stop),
            on_wait: Some(waiting::hook(
                Arc::clone(&self.shared),
                self.index,
                identity.first_rank,
                &identity.handshake_address,
            )),
            ..EngineLinkConfig::new(&identity.handshake_address, self.number())
        };
        tracing::info!(rank = self.number(), address = identity.handshake_address, "waiting for the frontend");
        let greeting = match EngineGreeting::hello(&self.transport, config) {
            Ok(greeting) => greeting,
            Err(LinkError::Stopped) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let is_whole = check_size(identity, greeting.init())?;
        if !is_whole && self.index == 0 {
            tracing::warn!(
                "the frontend has --data-parallel-size {}, and only {} of its engines are here: it waits for the others, which \
                 must be started elsewhere",
                greeting.init().data_parallel_size().unwrap_or_default(),
                identity.num_ranks
            );
        }
        self.delay_start(lasting);
        let routes = self.open_routes();
        let error = match greeting.ready(&self.ready_response(lasting.kv_events.as_ref())) {
            Ok(link) => return Ok(Some((link, routes))),
            Err(error) => error,
        };
        if let Some(routes) = routes {
            routes.close(std::iter::empty());
        }
        if matches!(error, LinkError::Stopped) { Ok(None) } else { Err(error.into()) }
    }

    fn open_routes(&self) -> Option<Routes> {
        self.dispatcher.clone().map(|dispatcher| Routes::new(dispatcher, self.index))
    }

    /// Waits if a fault delays the start.
    fn delay_start(&self, lasting: &mut PersistentState) {
        let delay_ns = lasting.faults.start_delay_ns();
        if delay_ns > 0 {
            tracing::warn!(rank = self.number(), delay = ?Duration::from_nanos(delay_ns), "a fault slows the start");
            self.pause(delay_ns);
        }
    }

    fn ready_response(&self, kv_events: Option<&KvEvents>) -> ReadyResponse {
        let identity = &self.config.identity;
        let engine = &self.config.engine;
        let usable = u64::from(engine.num_gpu_blocks() - 1) * u64::from(engine.block_size());
        let max_model_len = u64::from(engine.max_model_len());
        let version = || format!("{}.0", identity.default_version());
        let suffix = if identity.num_ranks > 1 { format!("-dp{}", self.number()) } else { String::new() };
        ReadyResponse {
            max_model_len,
            num_gpu_blocks: engine.num_gpu_blocks().into(),
            block_size: u64::from(engine.block_size() / engine.context_ranks()),
            dtype: identity.dtype,
            vllm_version: identity.vllm_version.clone().unwrap_or_else(version),
            world_size: u64::from(identity.tensor_parallel_size) * u64::from(engine.pipeline_parallel_size()),
            tensor_parallel_size: identity.tensor_parallel_size.into(),
            pipeline_parallel_size: engine.pipeline_parallel_size().into(),
            decode_context_parallel_size: engine.context_ranks().into(),
            data_parallel_rank: self.number().into(),
            max_num_seqs: engine.max_num_seqs().into(),
            max_num_batched_tokens: engine.max_num_batched_tokens().into(),
            instance_id: format!("{}{suffix}", identity.instance_id),
            supports_lora: engine.max_loras() > 0,
            max_loras: engine.max_loras().into(),
            kv_cache_size_tokens: Some(usable),
            kv_cache_max_concurrency: Some(usable as f64 / max_model_len as f64),
            kv_events_config: kv_events.map(|events| events.publisher().config().clone()),
            enable_sleep_mode: true,
            effective_attention_block_size: Some(engine.block_size().into()),
            ..ReadyResponse::default()
        }
    }

    /// Makes the plugins, anew for each frontend.
    fn plugins(&self) -> Result<Plugins, LiveError> {
        let config = &self.config;
        let plugin_context = |purpose| plugin_context(config.seed, purpose, self.number());
        Ok(Plugins {
            latency: latency_model(config, &config.latency, self.number())?,
            tokens: Tokens::new(config.tokens.clone(), &plugin_context("live.tokens"))?,
            policy: config.policy.as_ref().map(|make| make(&plugin_context("policy"))).transpose()?,
            injector: config.injector.as_ref().map(|make| make(&plugin_context("live.injector"))).transpose()?,
        })
    }

    fn links(
        &self,
        init: &Init,
        (outputs, routes): (EngineOutputs, Option<Routes>),
        (mover, meetings): (Option<Mover>, Option<Meetings>),
    ) -> Links {
        Links {
            outputs,
            transport: self.transport.clone(),
            peer_transport: self.peer_transport.clone(),
            shared: Arc::clone(&self.shared),
            dispatcher: self.dispatcher.clone(),
            routes,
            waves: self.waves(init),
            mover,
            meetings,
        }
    }

    fn start_meetings(&self) -> Result<Option<Meetings>, LiveError> {
        let transfer = &self.config.transfer;
        let Some(settings) = &transfer.meetings else { return Ok(None) };
        let engine_id = engine_name(transfer, self.number(), self.config.identity.num_ranks);
        let waker = self.waiter.waker();
        Meetings::start(settings, transfer, engine_id, self.number(), Arc::new(move || waker.wake())).map(Some)
    }

    /// The waves, if there is a coordinator and the model is a mixture of experts. vllm-rs has a coordinator only
    /// for such models; a Python frontend shows it by its settings.
    fn waves(&self, init: &Init) -> Option<Arc<Waves>> {
        let addresses = &init.addresses;
        addresses.coordinator_output.as_ref()?;
        let has_settings = matches!(&init.parallel_config, Value::Map(pairs) if !pairs.is_empty());
        let is_moe = has_settings || addresses.frontend_stats_publish_address.is_none();
        self.config.identity.is_moe.unwrap_or(is_moe).then(|| Arc::clone(&self.waves))
    }
}

pub(crate) fn start_mover(config: &LiveConfig, rank: u16, waker: Waker) -> Result<Option<Mover>, LiveError> {
    let transfer = &config.transfer;
    let Some(settings) = &transfer.plane else { return Ok(None) };
    let engine_id = engine_name(transfer, rank, config.identity.num_ranks);
    Mover::start(settings, transfer, engine_id, rank, Arc::new(move || waker.wake())).map(Some)
}

/// Compares the ranks of this process with the data-parallel size that the frontend states, if it does. Returns
/// `false` if the frontend also has other engines.
fn check_size(identity: &Identity, init: &Init) -> Result<bool, LiveError> {
    let Some(frontend) = init.data_parallel_size() else { return Ok(true) };
    let (first, last) = (identity.first_rank, identity.first_rank + (identity.num_ranks - 1));
    if u64::from(last) >= frontend {
        let address = identity.handshake_address.clone();
        return Err(LiveError::DataParallelSize { address, frontend, first, last });
    }
    Ok(u64::from(identity.num_ranks) == frontend)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcr_wire::Dtype;

    #[test]
    fn engines_beyond_those_of_the_frontend_are_an_error() {
        let identity = |first_rank, num_ranks| Identity {
            handshake_address: "tcp://f:1".to_owned(),
            connect_timeout: None,
            first_rank,
            num_ranks,
            version: None,
            vllm_version: None,
            instance_id: String::new(),
            dtype: Dtype::Bfloat16,
            tensor_parallel_size: 1,
            is_local: false,
            is_headless: true,
            parallel_config_hash: None,
            is_moe: None,
        };
        let of_size = |size: u64| Init {
            parallel_config: Value::Map(vec![("data_parallel_size".into(), size.into())]),
            ..Init::default()
        };
        assert!(check_size(&identity(0, 4), &of_size(4)).expect("equal"));
        assert!(check_size(&identity(0, 4), &Init::default()).expect("it does not say"));
        assert!(!check_size(&identity(2, 2), &of_size(4)).expect("the first two are elsewhere"));
        let error = check_size(&identity(1, 2), &of_size(2)).expect_err("there is no engine 2").to_string();
        let expected =
            "the frontend at tcp://f:1 has --data-parallel-size 2, but the engines here are 1 to 2: its own are 0 to 1";
        assert_eq!(error, expected);
    }
}
