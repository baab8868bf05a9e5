//! KV transfers between live engines that moved real bytes.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::ledger::record::ns_to_ms;

/// A transfer that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvTransfer {
    /// Index in the report of the engine that generates the output.
    pub engine: u32,
    /// Index in the report of the engine that computed the prompt.
    pub from: u32,
    /// When the receiver knew that the transfer had ended, in nanoseconds of the run.
    pub end_ns: u64,
    /// The KV that was moved, or the kind of failure.
    pub outcome: Result<KvMoved, &'static str>,
}

/// The size and times of a complete transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvMoved {
    /// Bytes of all pages.
    pub bytes: u64,
    /// Number of pages or parts of pages.
    pub pages: u64,
    /// Nanoseconds until the first page was requested, without the time of a new connection.
    pub queue_ns: u64,
    /// Nanoseconds for opening a new connection.
    pub connect_ns: u64,
    /// Nanoseconds from the first page to the last page.
    pub move_ns: u64,
}

/// All transfers between two engines.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KvPeerReport {
    /// Name of the engine that generates outputs.
    pub engine: String,
    /// Name of the engine that computes prompts.
    pub from: String,
    /// Number of complete transfers.
    pub transfers: u64,
    /// Bytes of all pages.
    pub bytes: u64,
    /// Number of pages or parts of pages.
    pub pages: u64,
    /// Total milliseconds of waiting for a connection.
    pub queue_ms: f64,
    /// Total milliseconds for opening new connections.
    pub connect_ms: f64,
    /// Total milliseconds for moving pages.
    pub move_ms: f64,
    /// Number of failed transfers by kind of failure.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<&'static str, u64>,
}

impl KvTransfer {
    /// The phases of a complete transfer: name, start and end in nanoseconds of the run.
    #[must_use]
    pub fn phases(&self) -> Vec<(&'static str, u64, u64)> {
        let Ok(moved) = &self.outcome else { return Vec::new() };
        let mut start_ns = self.end_ns.saturating_sub(moved.queue_ns + moved.connect_ns + moved.move_ns);
        let parts = [("queue", moved.queue_ns), ("connect", moved.connect_ns), ("move", moved.move_ns)];
        let phase = |(name, ns): (&'static str, u64)| {
            let phase = (name, start_ns, start_ns + ns);
            start_ns += ns;
            phase
        };
        parts.into_iter().filter(|(_, ns)| *ns > 0).map(phase).collect()
    }
}

/// Sums of transfers by pair of engines.
pub(crate) fn by_peer(transfers: &[KvTransfer], engine_names: &[String]) -> Vec<KvPeerReport> {
    let mut sums: BTreeMap<(u32, u32), (KvMoved, KvPeerReport)> = BTreeMap::new();
    let name = |engine: u32| engine_names.get(engine as usize).cloned().unwrap_or_else(|| engine.to_string());
    for transfer in transfers {
        let (times, sum) = sums.entry((transfer.engine, transfer.from)).or_default();
        match &transfer.outcome {
            Ok(moved) => {
                sum.transfers += 1;
                sum.bytes += moved.bytes;
                sum.pages += moved.pages;
                times.queue_ns += moved.queue_ns;
                times.connect_ns += moved.connect_ns;
                times.move_ns += moved.move_ns;
            }
            Err(kind) => *sum.failures.entry(kind).or_default() += 1,
        }
    }
    let named = |((engine, from), (times, sum)): ((u32, u32), (KvMoved, KvPeerReport))| KvPeerReport {
        engine: name(engine),
        from: name(from),
        queue_ms: ns_to_ms(times.queue_ns),
        connect_ms: ns_to_ms(times.connect_ns),
        move_ms: ns_to_ms(times.move_ns),
        ..sum
    };
    sums.into_iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_summed_by_both_engines_and_have_phases() {
        let moved = KvMoved { bytes: 10, pages: 2, queue_ns: 1_000_000, connect_ns: 0, move_ns: 3_000_000 };
        let transfer = KvTransfer { engine: 1, from: 0, end_ns: 9_000_000, outcome: Ok(moved) };
        assert_eq!(transfer.phases(), [("queue", 5_000_000, 6_000_000), ("move", 6_000_000, 9_000_000)]);
        let failed = KvTransfer { outcome: Err("corrupt"), ..transfer.clone() };
        assert_eq!(failed.phases(), []);
        let other = KvTransfer { engine: 2, ..transfer.clone() };
        let names = ["prefill 0", "decode 0"].map(str::to_owned);
        let sums = by_peer(&[transfer.clone(), failed, other, transfer], &names);
        assert_eq!(sums.len(), 2);
        let first = &sums[0];
        assert_eq!(
            (first.engine.as_str(), first.from.as_str(), sums[1].engine.as_str()),
            ("decode 0", "prefill 0", "2")
        );
        assert_eq!((first.transfers, first.bytes, first.pages, first.queue_ms, first.move_ms), (2, 20, 4, 2.0, 6.0));
        assert_eq!(first.failures, BTreeMap::from([("corrupt", 1)]));
    }
}
