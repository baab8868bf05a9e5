//! Totals of a plane, by peer and direction.

use std::collections::BTreeMap;

use crate::error::ErrorKind;

/// The direction in which bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the peer, which holds the blocks, to this engine.
    Read,
    /// From this engine to the peer, which expects the blocks.
    Write,
}

/// The size and times of a complete transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Number of bytes in the moved pages.
    pub bytes: u64,
    /// Number of pages, or parts of pages.
    pub pages: u64,
    /// Time from the start to the request of the first page, without `connect_ns`.
    pub queue_ns: u64,
    /// Time spent on a new connection.
    pub connect_ns: u64,
    /// Time from the request of the first page to the check of the last one.
    pub move_ns: u64,
}

/// Totals of the transfers with one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerStatistics {
    /// Number of complete transfers that this engine started.
    pub transfers: u64,
    /// Bytes received from the peer, in transfers of either side.
    pub received_bytes: u64,
    /// Bytes sent to the peer.
    pub sent_bytes: u64,
    /// Pages, or parts of pages, that were received.
    pub received_pages: u64,
    /// Pages, or parts of pages, that were sent.
    pub sent_pages: u64,
    /// Time that complete transfers waited for a connection, in nanoseconds.
    pub queue_ns: u64,
    /// Time that complete transfers spent on new connections, in nanoseconds.
    pub connect_ns: u64,
    /// Time that complete transfers moved pages, in nanoseconds.
    pub move_ns: u64,
    /// Number of notices sent to the peer.
    pub notices: u64,
    /// Number of failures, by their kind.
    pub failures: BTreeMap<ErrorKind, u64>,
}

/// Maximum number of peers that are counted separately. The others are counted together as `other`, because
/// requests can name any number of peers.
const MAX_PEERS: usize = 128;

/// Totals of a plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    peers: BTreeMap<String, PeerStatistics>,
}

impl Statistics {
    /// The totals of a peer.
    pub fn peer(&mut self, name: &str) -> &mut PeerStatistics {
        let is_known = self.peers.contains_key(name);
        let name = if is_known || self.peers.len() < MAX_PEERS { name } else { "other" };
        self.peers.entry(name.to_owned()).or_default()
    }

    /// The totals by peer, `host:port`.
    pub fn peers(&self) -> impl Iterator<Item = (&str, &PeerStatistics)> {
        self.peers.iter().map(|(name, peer)| (name.as_str(), peer))
    }

    /// Counts a complete transfer.
    pub fn complete(&mut self, peer: &str, direction: Direction, moved: &Moved) {
        let peer = self.peer(peer);
        peer.transfers += 1;
        peer.queue_ns += moved.queue_ns;
        peer.connect_ns += moved.connect_ns;
        peer.move_ns += moved.move_ns;
        let (bytes, pages) = match direction {
            Direction::Read => (&mut peer.received_bytes, &mut peer.received_pages),
            Direction::Write => (&mut peer.sent_bytes, &mut peer.sent_pages),
        };
        *bytes += moved.bytes;
        *pages += moved.pages;
    }

    /// Counts a failed transfer from a peer.
    pub fn fail(&mut self, peer: &str, kind: ErrorKind) {
        *self.peer(peer).failures.entry(kind).or_default() += 1;
    }

    /// Adds the totals of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        for (name, more) in &other.peers {
            let peer = sum.peer(name);
            peer.transfers += more.transfers;
            peer.received_bytes += more.received_bytes;
            peer.sent_bytes += more.sent_bytes;
            peer.received_pages += more.received_pages;
            peer.sent_pages += more.sent_pages;
            peer.queue_ns += more.queue_ns;
            peer.connect_ns += more.connect_ns;
            peer.move_ns += more.move_ns;
            peer.notices += more.notices;
            for (kind, count) in &more.failures {
                *peer.failures.entry(*kind).or_default() += count;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_beyond_the_limit_are_counted_together() {
        let mut statistics = Statistics::default();
        for peer in 0..1000 {
            statistics.fail(&format!("host-{peer}:1"), ErrorKind::Unreachable);
        }
        assert_eq!(statistics.peers().count(), MAX_PEERS + 1);
        let other = statistics.peer("other").failures[&ErrorKind::Unreachable];
        assert_eq!(other, 1000 - MAX_PEERS as u64);
    }

    #[test]
    fn sums_have_all_peers() {
        let mut one = Statistics::default();
        one.complete("a:1", Direction::Read, &Moved { bytes: 5, pages: 1, ..Moved::default() });
        let mut other = one.clone();
        other.complete("b:1", Direction::Write, &Moved { bytes: 7, pages: 1, ..Moved::default() });
        let mut sum = one.plus(&other);
        assert_eq!((sum.peer("a:1").received_bytes, sum.peer("b:1").sent_bytes), (10, 7));
    }
}
