//! All engines of a process.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use vcr_core::Seat;
use vcr_core::seed::derive;
use vcr_wire::{Transport, Waiter};

use crate::config::LiveConfig;
use crate::error::LiveError;
use crate::handle::{Counters, EnginesHandle, Shared, Snapshot};
use crate::rank::Rank;
use crate::switchboard::Switchboard;
use crate::waves::Waves;

/// Engines that live on threads of their own.
pub struct LiveEngines {
    threads: Vec<(u16, JoinHandle<Result<(), LiveError>>)>,
    handle: EnginesHandle,
}

impl LiveEngines {
    /// Starts all engines of `config`.
    ///
    /// # Errors
    /// When the router cannot be made, or the system has no more threads or
    /// descriptors.
    pub fn start(config: LiveConfig) -> Result<Self, LiveError> {
        let config = Arc::new(config);
        let mut transport = Transport::new();
        transport.max_frame_bytes = config.limits.max_frame_bytes;
        transport.max_waiting_requests = config.limits.max_waiting_messages;
        let stop = Arc::new(AtomicBool::new(false));
        let num_ranks = config.identity.num_ranks;
        let waiters: Vec<Waiter> = (0..num_ranks).map(|_| Waiter::new()).collect::<Result<_, _>>()?;
        let shared: Arc<[Shared]> = waiters
            .iter()
            .zip(config.identity.first_rank..)
            .map(|(waiter, rank)| {
                let num_gpu_blocks = config.engine.num_gpu_blocks;
                let (latency, time_scale) = (config.latency_name.clone(), config.time_scale);
                let snapshot = Snapshot { rank, num_gpu_blocks, latency, time_scale, ..Snapshot::default() };
                Shared::new(waiter.waker(), Arc::clone(&stop), snapshot)
            })
            .collect();
        let board = config.router.as_ref().map(|make| {
            let seat = Seat::of_seed(derive(config.seed, "router", 0));
            let wakers = waiters.iter().map(Waiter::waker).collect();
            make(&seat).map(|router| Arc::new(Switchboard::new(router, &config.engine, wakers)))
        });
        let board = board.transpose()?;
        let handle = EnginesHandle { ranks: Arc::clone(&shared), stop };
        let waves = Arc::new(Waves::new(usize::from(num_ranks)));
        let mut threads = Vec::new();
        for (index, waiter) in waiters.into_iter().enumerate() {
            let rank = Rank {
                config: Arc::clone(&config),
                transport: transport.clone(),
                shared: Arc::clone(&shared),
                waves: Arc::clone(&waves),
                board: board.clone(),
                waiter,
                index,
                base: Counters::default(),
            };
            let number = config.identity.first_rank + index as u16;
            let stop_all = handle.clone();
            let live = move || {
                // One that cannot go on takes the others with it, as the
                // processes of a deployment are restarted together.
                rank.live().inspect_err(|_| stop_all.shut_down())
            };
            let thread = std::thread::Builder::new().name(format!("engine-{number}")).spawn(live);
            threads.push((number, thread.map_err(LiveError::Thread)?));
        }
        Ok(Self { threads, handle })
    }

    /// What other threads use to look at them and to end them.
    #[must_use]
    pub fn handle(&self) -> EnginesHandle {
        self.handle.clone()
    }

    /// Waits until all have ended.
    ///
    /// # Errors
    /// Why the first of them could not go on.
    pub fn wait(self) -> Result<(), LiveError> {
        let mut result = Ok(());
        for (rank, thread) in self.threads {
            let ended = thread.join().unwrap_or(Err(LiveError::Panicked { rank }));
            result = result.and(ended);
        }
        result
    }
}
