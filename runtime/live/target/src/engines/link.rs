//! The link between a run's pools, shared by all transfers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vcr_cluster::{Link, LinkConfig, LinkSharing, TransferKey};
use vcr_live::SharedLink;

/// A simulated link that uses the system's clock.
#[derive(Debug)]
struct TimedLink {
    kv_bytes_per_token: u64,
    latency_ns: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    link: Link,
    /// The latest time that any engine has passed. Engines read the clock one after another, so it may be ahead of
    /// theirs.
    now_ns: u64,
    next: u64,
    /// Engine and request of each transfer in progress, by transfer number.
    under_way: BTreeMap<u64, (u16, u64)>,
    /// Requests whose KV has arrived or will arrive, by engine, time and transfer number.
    arrivals: BTreeMap<(u16, u64, u64), u64>,
}

impl State {
    /// Completes the transfers that have ended by now.
    fn complete_transfers(&mut self, now_ns: u64, latency_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        while let Some(at_ns) = self.link.next_completion_ns().filter(|at_ns| *at_ns <= self.now_ns) {
            while let Some(TransferKey { tag: number, .. }) = self.link.pop_complete(at_ns) {
                let Some((rank, tag)) = self.under_way.remove(&number) else { continue };
                self.arrivals.insert((rank, at_ns.saturating_add(latency_ns), number), tag);
            }
        }
    }

    fn first_arrival(&self, rank: u16) -> Option<(u16, u64, u64)> {
        self.arrivals.range((rank, 0, 0)..=(rank, u64::MAX, u64::MAX)).next().map(|(key, _)| *key)
    }
}

/// The link that all transfers of a run share. None if they do not share one.
pub(crate) fn shared_link(config: Option<&LinkConfig>) -> Option<Arc<dyn SharedLink>> {
    let config = config.filter(|link| link.sharing == LinkSharing::Shared)?;
    let state = State {
        link: Link::new(config.bandwidth_bytes_per_s?),
        now_ns: 0,
        next: 0,
        under_way: BTreeMap::new(),
        arrivals: BTreeMap::new(),
    };
    Some(Arc::new(TimedLink {
        kv_bytes_per_token: config.kv_bytes_per_token,
        latency_ns: config.latency_ns,
        state: Mutex::new(state),
    }))
}

impl TimedLink {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under this lock leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedLink for TimedLink {
    fn start(&self, rank: u16, tag: u64, tokens: u32, now_ns: u64) {
        let mut state = self.state();
        state.complete_transfers(now_ns, self.latency_ns);
        let (number, now_ns) = (state.next, state.now_ns);
        state.next += 1;
        let bytes = u64::from(tokens) * self.kv_bytes_per_token;
        if bytes == 0 {
            state.arrivals.insert((rank, now_ns.saturating_add(self.latency_ns), number), tag);
            return;
        }
        state.under_way.insert(number, (rank, tag));
        state.link.start(now_ns, TransferKey { tag: number, attempt: 0 }, bytes);
    }

    fn next_arrived(&self, rank: u16, now_ns: u64) -> Option<u64> {
        let mut state = self.state();
        state.complete_transfers(now_ns, self.latency_ns);
        let first = state.first_arrival(rank).filter(|(_, at_ns, _)| *at_ns <= now_ns)?;
        state.arrivals.remove(&first)
    }

    fn next_arrival_ns(&self, rank: u16) -> Option<u64> {
        let state = self.state();
        let arrival = state.first_arrival(rank).map(|(_, at_ns, _)| at_ns);
        let is_waited_for = state.under_way.values().any(|(other, _)| *other == rank);
        let completion = state.link.next_completion_ns().filter(|_| is_waited_for);
        arrival.into_iter().chain(completion).min()
    }
}

#[cfg(test)]
mod tests {
    use vcr_cluster::{SourceOutput, TransferScope};

    use vcr_cluster::PrefillCancellation;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A link with 1 MB/ms and 1 kB per token.
    fn link(sharing: LinkSharing) -> Option<Arc<dyn SharedLink>> {
        shared_link(Some(&LinkConfig {
            bandwidth_bytes_per_s: Some(1_000_000_000),
            latency_ns: MS,
            kv_bytes_per_token: 1_000,
            sharing,
            scope: TransferScope::Missing,
            source_output: SourceOutput::FirstToken,
            cancellation: PrefillCancellation::default(),
            plane: None,
        }))
    }

    #[test]
    fn transfers_to_two_engines_halve_each_other() {
        let link = link(LinkSharing::Shared).unwrap();
        link.start(0, 7, 10_000, 0);
        link.start(1, 8, 10_000, 5 * MS);
        // The first transfer takes 5 ms alone and 10 ms at half speed. Then the second has 5 ms left.
        assert_eq!(link.next_arrival_ns(0), Some(15 * MS));
        assert_eq!(link.next_arrived(0, 15 * MS), None, "it has yet to cross the link");
        assert_eq!(link.next_arrival_ns(0), Some(16 * MS));
        assert_eq!(link.next_arrived(1, 30 * MS), Some(8));
        assert_eq!(link.next_arrived(0, 30 * MS), Some(7));
        assert_eq!((link.next_arrival_ns(0), link.next_arrival_ns(1)), (None, None));
    }

    #[test]
    fn late_looks_and_clocks_that_differ_a_little_lose_nothing() {
        let link = link(LinkSharing::Shared).unwrap();
        link.start(0, 1, 1_000, 10 * MS);
        link.start(0, 2, 0, 9 * MS);
        assert_eq!(link.next_arrived(0, 11 * MS), Some(2));
        assert_eq!(link.next_arrived(0, 12 * MS), Some(1));
        assert_eq!(link.next_arrived(0, 90 * MS), None);
    }

    #[test]
    fn other_links_are_not_shared() {
        assert!(link(LinkSharing::Unshared).is_none() && link(LinkSharing::PerPrefillEngine).is_none());
        assert!(shared_link(None).is_none());
    }
}
