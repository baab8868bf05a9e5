use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use vcr_core::PluginContext;
use vcr_core::seed::derive;
use vcr_wire::{LocalLink, LocalSink, Transport, Waiter, check_peer_address};

use crate::config::LiveConfig;
use crate::egress::waves::Waves;
use crate::error::LiveError;
use crate::handle::{Ends, EnginesHandle, Shared, Snapshot};
use crate::process::rank::{Rank, start_mover};
use crate::routing::dispatcher::Dispatcher;

/// Number of engines that share a ZeroMQ context. A context has 1,023 sockets; each engine needs four for each API
/// server and some more.
const ENGINES_OF_A_CONTEXT: usize = 8;

/// All engines of a process, each on its own thread.
pub struct LiveEngines {
    threads: Vec<(u16, JoinHandle<Result<(), LiveError>>)>,
    handle: EnginesHandle,
}

impl LiveEngines {
    /// Starts all engines of `config`.
    ///
    /// # Errors
    /// The address cannot be that of a frontend, the router cannot be made, or the system has no more threads or
    /// descriptors.
    pub fn start(config: LiveConfig) -> Result<Self, LiveError> {
        check_peer_address(&config.identity.handshake_address)?;
        Self::start_linked(config, None).map(|(engines, _)| engines)
    }

    /// Starts all engines of `config` behind a frontend in this process: `sink` receives their outputs, and each of
    /// the returned links leads to one engine. The handshake address is not used.
    ///
    /// # Errors
    /// The router cannot be made, or the system has no more threads or descriptors.
    pub fn start_local(config: LiveConfig, sink: &LocalSink) -> Result<(Self, Vec<LocalLink>), LiveError> {
        Self::start_linked(config, Some(sink))
    }

    fn start_linked(config: LiveConfig, sink: Option<&LocalSink>) -> Result<(Self, Vec<LocalLink>), LiveError> {
        let config = Arc::new(config);
        let make_transport = || {
            let mut transport = Transport::new();
            transport.max_frame_bytes = config.limits.max_frame_bytes;
            transport.max_waiting_requests = config.limits.max_waiting_messages;
            transport
        };
        let ends = Ends::default();
        let num_ranks = config.identity.num_ranks;
        let waiters: Vec<Waiter> = (0..num_ranks).map(|_| Waiter::new()).collect::<Result<_, _>>()?;
        let shared: Arc<[Shared]> = waiters
            .iter()
            .zip(config.identity.first_rank..)
            .map(|(waiter, rank)| {
                let num_gpu_blocks = config.engine.num_gpu_blocks();
                let (latency, time_scale) = (config.latency_name.clone(), config.time_scale);
                let faults: Vec<_> = config.faults.iter().map(ToString::to_string).collect();
                let num_faults_in_force = faults.len();
                let snapshot = Snapshot {
                    rank,
                    num_gpu_blocks,
                    latency,
                    time_scale,
                    faults,
                    num_faults_in_force,
                    ..Snapshot::default()
                };
                Shared::new(waiter.waker(), &ends, snapshot)
            })
            .collect();
        let dispatcher = config.router.as_ref().map(|make| {
            let plugin_context = PluginContext::of_seed(derive(config.seed, "router", 0));
            let wakers = waiters.iter().map(Waiter::waker).collect();
            make(&plugin_context).map(|router| Arc::new(Dispatcher::new(router, &config.engine, wakers)))
        });
        let dispatcher = dispatcher.transpose()?;
        let handle = EnginesHandle { ranks: Arc::clone(&shared), ends };
        let waves = Arc::new(Waves::new(usize::from(num_ranks)));
        let mut engines = Self { threads: Vec::new(), handle };
        let mut links = Vec::new();
        let mut transport = make_transport();
        for (index, waiter) in waiters.into_iter().enumerate() {
            if index > 0 && index % ENGINES_OF_A_CONTEXT == 0 {
                transport = make_transport();
            }
            let number = config.identity.first_rank + index as u16;
            let local = sink
                .map(|sink| LocalLink::new(number, waiter.waker(), config.limits.max_waiting_messages, sink.clone()));
            links.extend(local.clone());
            let mover = start_mover(&config, number, waiter.waker());
            let mover = match mover {
                Ok(mover) => mover,
                Err(error) => {
                    engines.handle.fail();
                    // The other engines' errors follow from this one.
                    _ = engines.wait();
                    return Err(error);
                }
            };
            let rank = Rank {
                config: Arc::clone(&config),
                transport: transport.clone(),
                peer_transport: make_transport(),
                shared: Arc::clone(&shared),
                waves: Arc::clone(&waves),
                dispatcher: dispatcher.clone(),
                waiter,
                mover,
                local,
                index,
            };
            let all = engines.handle();
            let live = move || {
                // A failed engine ends all engines, because the processes of a deployment are restarted together.
                let ended = catch_unwind(AssertUnwindSafe(|| rank.live()));
                if !matches!(ended, Ok(Ok(()))) {
                    all.fail();
                }
                ended.unwrap_or_else(|panic| resume_unwind(panic))
            };
            match std::thread::Builder::new().name(format!("engine-{number}")).spawn(live) {
                Ok(thread) => engines.threads.push((number, thread)),
                Err(error) => {
                    engines.handle.fail();
                    // The other engines' errors follow from this one.
                    _ = engines.wait();
                    return Err(LiveError::Thread(error));
                }
            }
        }
        Ok((engines, links))
    }

    /// A handle for other threads to observe and end the engines.
    #[must_use]
    pub fn handle(&self) -> EnginesHandle {
        self.handle.clone()
    }

    /// Waits until all engines have ended.
    ///
    /// # Errors
    /// The error of the first engine that has failed.
    pub fn wait(self) -> Result<(), LiveError> {
        let mut result = Ok(());
        for (rank, thread) in self.threads {
            let ended = thread.join().unwrap_or(Err(LiveError::Panicked { rank }));
            result = result.and(ended);
        }
        result
    }
}
