//! Log lines about engines that wait for their frontend: at growing intervals, and from one engine for all.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vcr_wire::{Reminders, WaitHook, WaitsFor, unresolved_host};

use crate::handle::{EngineState, Shared};

struct WaitLog {
    shared: Arc<[Shared]>,
    index: usize,
    first_rank: u16,
    address: String,
    reminders: Mutex<Reminders>,
}

/// A hook that reports that the engine `index` waits for the frontend at `address`.
pub(crate) fn hook(shared: Arc<[Shared]>, index: usize, first_rank: u16, address: &str) -> WaitHook {
    let log = WaitLog { shared, index, first_rank, address: address.to_owned(), reminders: Mutex::default() };
    WaitHook::new(move |waits_for, waited| log.report(waits_for, waited))
}

impl WaitLog {
    fn report(&self, waits_for: WaitsFor, waited: Duration) {
        let due_s = self.reminders.lock().unwrap_or_else(PoisonError::into_inner).take(waited);
        let Some(due_s) = due_s.filter(|_| self.reports_for_all()) else { return };
        let address = &self.address;
        match waits_for {
            WaitsFor::Init { is_connected } => match self.taken() {
                0 => tracing::info!(
                    "waiting for the frontend at {address} ({due_s} s): {}",
                    self.reason(is_connected).unwrap_or_else(|| "nothing listens there yet".to_owned())
                ),
                taken => tracing::warn!("{}", self.mismatch(taken, due_s)),
            },
            WaitsFor::Gate => tracing::info!(
                "waiting for the coordinator of the frontend at {address} ({due_s} s): it waits for all of the \
                 frontend's engines, {} of which are here; is --data-parallel-size that of the frontend?",
                self.shared.len()
            ),
        }
    }

    /// Whether this engine is the first of the process that waits.
    fn reports_for_all(&self) -> bool {
        self.shared[..self.index].iter().all(|shared| shared.state() != EngineState::Connecting)
    }

    /// Number of engines of this process that are connected to the frontend.
    fn taken(&self) -> usize {
        let is_taken = |state| !matches!(state, EngineState::Connecting | EngineState::Stopped);
        self.shared.iter().filter(|shared| is_taken(shared.state())).count()
    }

    fn reason(&self, is_connected: bool) -> Option<String> {
        if !is_connected {
            return unresolved_host(&self.address);
        }
        Some(format!(
            "something listens there, but does not answer engine {}; is it a frontend's handshake address (its \
             --data-parallel-address and -rpc-port), and does the frontend have such an engine?",
            self.first_rank + self.index as u16
        ))
    }

    /// The frontend is connected to some engines but not to all. Frontends do not send their data-parallel size,
    /// but connect to all of their engines at once.
    fn mismatch(&self, taken: usize, due_s: u64) -> String {
        let here = self.shared.len();
        format!(
            "the frontend at {} has taken {taken} of the {here} engines here, and engine {} has waited for it for {due_s} \
             s: --data-parallel-size is {here} here, and probably {taken} at the frontend; both must be equal",
            self.address,
            self.first_rank + self.index as u16,
        )
    }
}

#[cfg(test)]
mod tests {
    use vcr_wire::Waiter;

    use super::*;
    use crate::handle::{Ends, Snapshot};

    #[test]
    fn one_reports_for_all_and_says_how_many_were_taken() {
        use EngineState::{Connecting, Serving};
        let log = |states: &[EngineState], index| {
            let one = |&state| {
                let waker = Waiter::new().expect("there are descriptors").waker();
                Shared::new(waker, &Ends::default(), Snapshot { state, ..Snapshot::default() })
            };
            let shared = states.iter().map(one).collect();
            WaitLog { shared, index, first_rank: 0, address: "tcp://f:1".to_owned(), reminders: Mutex::default() }
        };
        let fresh = [Connecting, Connecting];
        assert!(log(&fresh, 0).reports_for_all() && !log(&fresh, 1).reports_for_all());
        assert_eq!(log(&fresh, 0).taken(), 0);
        let mixed = [Serving, Connecting, Connecting];
        assert!(log(&mixed, 1).reports_for_all() && !log(&mixed, 2).reports_for_all());
        let waiting = log(&mixed, 1);
        let said = waiting.mismatch(waiting.taken(), 30);
        assert!(said.starts_with("the frontend at tcp://f:1 has taken 1 of the 3 engines here"), "{said}");
        assert!(said.contains("engine 1 has waited for it for 30 s"), "{said}");
        assert!(said.contains("--data-parallel-size is 3 here, and probably 1 at the frontend"), "{said}");
    }
}
