//! Reports engines, or a frontend, that have not connected.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vcr_wire::{Passed, RelayNotice, RelayTap, Reminders, unresolved_host};

use crate::error::RecordError;
use crate::queue::Tap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsFor {
    /// Any engine. `has_had_any` is true if an engine was connected before.
    Engines {
        has_had_any: bool,
    },
    /// The frontend's answer to this engine.
    Frontend {
        rank: u32,
    },
    Nothing,
}

#[derive(Debug)]
struct State {
    /// Engines that have sent HELLO, each with whether the frontend has answered.
    engines: BTreeMap<u32, bool>,
    has_had_any: bool,
    is_over: bool,
}

impl State {
    fn waits_for(&self) -> WaitsFor {
        match self.engines.iter().find(|(_, is_answered)| !**is_answered) {
            Some((rank, _)) => WaitsFor::Frontend { rank: *rank },
            None if self.engines.is_empty() => WaitsFor::Engines { has_had_any: self.has_had_any },
            None => WaitsFor::Nothing,
        }
    }
}

/// Tracks which peers have connected.
#[derive(Debug)]
pub(crate) struct PeerWatch {
    state: Mutex<State>,
    changed: Condvar,
    frontend: String,
    engines: String,
    timeout: Option<Duration>,
}

impl PeerWatch {
    /// Creates a watch for the frontend and engines at these addresses.
    pub(crate) fn new(frontend: &str, engines: &str, timeout: Option<Duration>) -> Self {
        let state = State { engines: BTreeMap::new(), has_had_any: false, is_over: false };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            frontend: frontend.to_owned(),
            engines: engines.to_owned(),
            timeout,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn noticed(&self, rank: u32, notice: &RelayNotice) {
        let mut state = self.lock();
        match notice {
            RelayNotice::Hello { .. } => _ = state.engines.insert(rank, false),
            RelayNotice::Init { .. } => {
                state.engines.insert(rank, true);
                state.has_had_any = true;
            }
            RelayNotice::EngineLost | RelayNotice::InitRefused { .. } => _ = state.engines.remove(&rank),
            RelayNotice::Ready | RelayNotice::FrontendLost { .. } | RelayNotice::Refused { .. } => return,
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Ends [`PeerWatch::watch`].
    pub(crate) fn close(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Logs missing peers until [`PeerWatch::close`] is called. Fails after the timeout.
    pub(crate) fn watch(&self) -> Result<(), RecordError> {
        let mut state = self.lock();
        while !state.is_over {
            let waits_for = state.waits_for();
            let timeout = self.timeout_of(waits_for);
            let (since, mut reminders) = (Instant::now(), Reminders::default());
            while !state.is_over && state.waits_for() == waits_for {
                let waited = since.elapsed();
                if let Some(timeout) = timeout.filter(|timeout| *timeout <= waited) {
                    return Err(self.silence(waits_for, timeout));
                }
                if waits_for == WaitsFor::Nothing {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                let until = timeout.map_or(reminders.next(), |timeout| timeout.min(reminders.next()));
                let waiting = self.changed.wait_timeout(state, until.saturating_sub(waited));
                state = waiting.unwrap_or_else(PoisonError::into_inner).0;
                if let Some(seconds) = reminders.take(since.elapsed())
                    && state.waits_for() == waits_for
                {
                    // Release the lock, because this may look up a host name.
                    drop(state);
                    self.remind(waits_for, seconds);
                    state = self.lock();
                }
            }
        }
        Ok(())
    }

    /// There is no timeout for engines that return after a disconnect.
    fn timeout_of(&self, waits_for: WaitsFor) -> Option<Duration> {
        let is_limited = matches!(waits_for, WaitsFor::Engines { has_had_any: false } | WaitsFor::Frontend { .. });
        self.timeout.filter(|_| is_limited)
    }

    fn remind(&self, waits_for: WaitsFor, seconds: u64) {
        match waits_for {
            WaitsFor::Engines { .. } => tracing::info!("waiting for engines at {} ({seconds} s)", self.engines),
            WaitsFor::Frontend { rank } => {
                let reason = unresolved_host(&self.frontend).map(|reason| format!(": {reason}"));
                tracing::info!(
                    "waiting for the frontend at {} ({seconds} s), which has not answered engine {rank}{}",
                    self.frontend,
                    reason.unwrap_or_default()
                );
            }
            WaitsFor::Nothing => {}
        }
    }

    fn silence(&self, waits_for: WaitsFor, waited: Duration) -> RecordError {
        match waits_for {
            WaitsFor::Frontend { rank } => {
                let address = self.frontend.clone();
                let reason = unresolved_host(&address).unwrap_or_else(|| {
                    "is it a frontend's handshake address, and does the frontend have such an engine?".to_owned()
                });
                RecordError::NoFrontend { address, rank, waited, reason }
            }
            _ => RecordError::NoEngines { address: self.engines.clone(), waited },
        }
    }
}

/// Watches connections and forwards everything to `tap`.
pub(crate) struct PeerWatchTap<'a> {
    pub(crate) tap: Tap<'a>,
    pub(crate) peers: &'a PeerWatch,
}

impl RelayTap for PeerWatchTap<'_> {
    #[inline]
    fn passed(&mut self, message: Passed<'_>) {
        self.tap.passed(message);
    }

    fn noticed(&mut self, rank: u32, at_ns: u64, notice: RelayNotice) {
        self.peers.noticed(rank, &notice);
        self.tap.noticed(rank, at_ns, notice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_who_is_missing() {
        let peers = PeerWatch::new("tcp://f:1", "tcp://e:1", None);
        let waits_for = || peers.lock().waits_for();
        assert_eq!(waits_for(), WaitsFor::Engines { has_had_any: false });
        for rank in [1, 0] {
            peers.noticed(rank, &RelayNotice::Hello { again: false });
        }
        assert_eq!(waits_for(), WaitsFor::Frontend { rank: 0 });
        for rank in [0, 1] {
            peers.noticed(rank, &RelayNotice::Init { clients: 1, coordinator: false });
        }
        assert_eq!(waits_for(), WaitsFor::Nothing);
        for rank in [0, 1] {
            peers.noticed(rank, &RelayNotice::EngineLost);
        }
        assert_eq!(waits_for(), WaitsFor::Engines { has_had_any: true });
    }

    #[test]
    fn it_gives_up_in_time() {
        let peers = PeerWatch::new("tcp://no-such-host.invalid:1", "tcp://e:1", Some(Duration::from_millis(10)));
        let error = peers.watch().expect_err("no frontend connects").to_string();
        assert_eq!(error, "no engine has connected to tcp://e:1 within 0.01 s");
        peers.noticed(3, &RelayNotice::Hello { again: false });
        let error = peers.watch().expect_err("no engine answers").to_string();
        assert!(error.contains("has not answered engine 3 within 0.01 s: the host `no-such-host.invalid`"), "{error}");
        peers.close();
        peers.watch().expect("it is over");
    }
}
