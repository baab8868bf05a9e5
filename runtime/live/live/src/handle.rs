//! Access to engines from other threads: snapshots and commands.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vcr_wire::{VllmMinor, Waker};

use crate::config::LatencyFactory;
use crate::counters::Counters;
use crate::faults::rule::FaultRule;

/// A command to an engine that serves.
#[derive(Clone)]
pub enum Command {
    /// Use another latency model from now on.
    SetLatency {
        /// Makes the model.
        factory: LatencyFactory,
        /// Name of the model in snapshots.
        name: String,
    },
    /// Divide all durations by this, which must be positive.
    SetTimeScale(f64),
    AddFault(FaultRule),
    /// End the fault with this text.
    RemoveFault(String),
    /// End all faults.
    ClearFaults,
    /// Pause scheduling, or resume it.
    SetPaused(bool),
    /// Drop the prefix cache, running requests included.
    ResetPrefixCache,
}

/// The phase of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineState {
    /// The engine waits for its frontend.
    #[default]
    Connecting,
    Serving,
    /// A fault stalls the engine.
    Stalled,
    /// A fault has crashed the engine, which may restart.
    Crashed,
    /// The engine waits for the requests in progress, and then stops.
    Draining,
    /// The engine has stopped.
    Stopped,
}

impl EngineState {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Connecting, Self::Serving, Self::Stalled, Self::Crashed, Self::Draining, Self::Stopped];

    /// The state in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Serving => "serving",
            Self::Stalled => "stalled",
            Self::Crashed => "crashed",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
        }
    }
}

/// The state of an engine. Counts are totals since its process started.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The engine's rank.
    pub rank: u16,
    pub state: EngineState,
    /// The frontend's vLLM version, once it is known.
    pub version: Option<VllmMinor>,
    /// Requests that compute prompts or generate tokens.
    pub num_running: usize,
    /// Requests that wait.
    pub num_waiting: usize,
    /// Whether the engine is paused, by a frontend or from outside.
    pub is_paused: bool,
    /// Whether the engine sleeps.
    pub is_sleeping: bool,
    /// Share of KV blocks in use.
    pub kv_cache_usage: f64,
    /// KV blocks that no request uses and whose content is kept.
    pub num_cached_blocks: u32,
    /// KV blocks, the null block included.
    pub num_gpu_blocks: u32,
    /// Finished prompts whose blocks a decode engine has not fetched.
    pub num_held_prompts: usize,
    /// Totals of the data plane, if there is one, since this frontend connected.
    pub plane: Option<PlaneTotals>,
    /// Name of the latency model.
    pub latency: String,
    /// Divisor of all durations.
    pub time_scale: f64,
    /// All fault rules.
    pub faults: Vec<String>,
    /// Fault rules that may happen again.
    pub num_faults_in_force: usize,
    pub counters: Counters,
}

/// Totals of a data plane, by peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaneTotals {
    /// The plane's name.
    pub name: &'static str,
    pub totals: vcr_transfer::Statistics,
}

/// Flags that end all engines of a process.
#[derive(Clone, Default)]
pub(crate) struct Ends {
    pub(crate) stop: Arc<AtomicBool>,
    /// Set before `stop` if an engine has failed.
    pub(crate) has_failed: Arc<AtomicBool>,
}

/// State of one engine that its thread shares with others.
pub(crate) struct Shared {
    commands: Mutex<Commands>,
    snapshot: Mutex<Snapshot>,
    waker: Waker,
    pub(crate) stop: Arc<AtomicBool>,
    /// Set before `stop` if an engine of the process has failed.
    has_failed: Arc<AtomicBool>,
}

/// Commands to one engine.
#[derive(Default)]
struct Commands {
    waiting: VecDeque<Command>,
    /// The texts of the fault rules after all commands.
    faults: Vec<String>,
}

impl Commands {
    fn push(&mut self, command: Command) {
        match &command {
            Command::AddFault(rule) => self.faults.push(rule.to_string()),
            Command::RemoveFault(rule) => {
                if let Some(place) = self.faults.iter().position(|fault| fault == rule) {
                    self.faults.remove(place);
                }
            }
            Command::ClearFaults => self.faults.clear(),
            _ => {}
        }
        self.waiting.push_back(command);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The values are replaced as a whole, never half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(waker: Waker, ends: &Ends, snapshot: Snapshot) -> Self {
        let Ends { stop, has_failed } = ends.clone();
        let commands = Commands { faults: snapshot.faults.clone(), ..Commands::default() };
        Self { commands: Mutex::new(commands), snapshot: Mutex::new(snapshot), waker, stop, has_failed }
    }

    /// Ends the engine because it has failed.
    pub(crate) fn fail_soon(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether the process has failed, so that its engines must send ENGINE_CORE_DEAD.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    pub(crate) fn state(&self) -> EngineState {
        lock(&self.snapshot).state
    }

    pub(crate) fn next_command(&self) -> Option<Command> {
        lock(&self.commands).waiting.pop_front()
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut lock(&self.snapshot));
    }
}

/// All engines of a process, for use by any thread. The default has none.
#[derive(Clone, Default)]
pub struct EnginesHandle {
    pub(crate) ranks: Arc<[Shared]>,
    pub(crate) ends: Ends,
}

impl EnginesHandle {
    /// Snapshots of all engines, at most 50 ms old.
    #[must_use]
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.ranks.iter().map(|shared| lock(&shared.snapshot).clone()).collect()
    }

    /// Sends a command to one engine or to all; engines run it between two steps. Returns `false` if there is no
    /// such engine.
    pub fn command(&self, rank: Option<u16>, command: &Command) -> bool {
        let mut is_known = false;
        for shared in self.ranks.iter() {
            if rank.is_none_or(|rank| lock(&shared.snapshot).rank == rank) {
                lock(&shared.commands).push(command.clone());
                shared.waker.wake();
                is_known = true;
            }
        }
        is_known
    }

    /// Whether one engine, or any, has a fault rule with this text after all commands.
    #[must_use]
    pub fn has_fault(&self, rank: Option<u16>, rule: &str) -> bool {
        self.ranks
            .iter()
            .filter(|shared| rank.is_none_or(|rank| lock(&shared.snapshot).rank == rank))
            .any(|shared| lock(&shared.commands).faults.iter().any(|fault| fault == rule))
    }

    /// Ends all engines as SIGTERM does in vLLM: requests in progress finish or are aborted, then the threads end.
    pub fn shut_down(&self) {
        self.ends.stop.store(true, Ordering::Release);
        for shared in self.ranks.iter() {
            shared.waker.wake();
        }
    }

    /// Ends all engines because one of them has failed: each sends ENGINE_CORE_DEAD, so no frontend
    /// waits for an answer.
    pub(crate) fn fail(&self) {
        self.ends.has_failed.store(true, Ordering::Relaxed);
        self.shut_down();
    }
}
