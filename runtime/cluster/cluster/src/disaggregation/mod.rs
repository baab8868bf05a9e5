//! KV transfers from prefill to decode engines.

mod link;

use std::collections::{BTreeMap, VecDeque};

use vcr_core::plan::RemoteLoad;
use vcr_core::{Prompt, RequestId, ServingEngine};

use crate::config::{
    ConditionalConfig, ConditionalPolicy, LinkConfig, LinkSharing, PrefillCancellation, SourceOutput, Topology,
    TransferScope,
};
use crate::event::{Event, EventQueue};
use crate::fleet::Worker;
pub use link::{Link, TransferKey};

/// A part of a handoff that is processed at the current instant, after the instant's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// A worker may have blocks for a prompt that another engine computed.
    Reservation { worker: u32 },
    /// The KV of a request has arrived.
    TakeOver(TransferKey),
}

/// The handoffs of a run. A run without prefill engines has none.
pub(crate) struct KvHandoffs {
    config: Option<LinkConfig>,
    links: Vec<Link>,
    due: VecDeque<Due>,
    /// Transfers of requests whose clients have cancelled, by tag and attempt.
    orphans: BTreeMap<(u64, u32), Orphan>,
}

/// Source and destination of a transfer whose client has cancelled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orphan {
    pub(crate) source: HeldAt,
    pub(crate) destination: HeldAt,
}

/// A request's KV at one incarnation of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldAt {
    pub(crate) worker: u32,
    pub(crate) incarnation: u32,
    pub(crate) id: RequestId,
}

impl KvHandoffs {
    pub(crate) fn new(topology: &Topology) -> Self {
        let config = topology.link().cloned();
        let links = match (topology, config.as_ref().and_then(|link| link.bandwidth_bytes_per_s)) {
            (Topology::Disaggregated { prefill, link, .. }, Some(bytes_per_s)) => {
                let count = match link.sharing {
                    LinkSharing::Shared => 1,
                    LinkSharing::PerPrefillEngine => prefill.most_engines(),
                    LinkSharing::Unshared => 0,
                };
                (0..count).map(|_| Link::new(bytes_per_s)).collect()
            }
            _ => Vec::new(),
        };
        Self { config, links, due: VecDeque::new(), orphans: BTreeMap::new() }
    }

    /// The output that prefill engines generate, if there are prefill engines.
    pub(crate) fn source_output(&self) -> Option<SourceOutput> {
        self.config.as_ref().map(|config| config.source_output)
    }

    /// Handling of prompts whose clients cancel.
    pub(crate) fn cancellation(&self) -> PrefillCancellation {
        self.config.as_ref().map_or(PrefillCancellation::Anytime, |config| config.cancellation)
    }

    /// Records that a transfer continues although its client has cancelled.
    pub(crate) fn orphan(&mut self, TransferKey { tag, attempt }: TransferKey, orphan: Orphan) {
        self.orphans.insert((tag, attempt), orphan);
    }

    /// Removes and returns the record of a transfer that has ended, if its client had cancelled.
    pub(crate) fn take_orphan(&mut self, TransferKey { tag, attempt }: TransferKey) -> Option<Orphan> {
        self.orphans.remove(&(tag, attempt))
    }

    /// For each link, the bytes of all transfers and the time with at least one transfer in progress.
    pub(crate) fn link_totals(&self) -> impl Iterator<Item = (u64, u64)> {
        self.links.iter().map(|link| (link.bytes(), link.busy_ns()))
    }

    pub(crate) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    pub(crate) fn push_due(&mut self, due: Due) {
        self.due.push_back(due);
    }

    pub(crate) fn pop_due(&mut self) -> Option<Due> {
        self.due.pop_front()
    }

    /// Starts a transfer from a prefill engine. Returns its duration, unless the duration depends on the link's
    /// other transfers.
    pub(crate) fn start(
        &mut self,
        now_ns: u64,
        key: TransferKey,
        load: &RemoteLoad,
        source_engine: u32,
        events: &mut EventQueue,
    ) -> Option<u64> {
        let Some(config) = &self.config else { return Some(0) };
        let tokens = match config.scope {
            TransferScope::Missing => load.moved_tokens,
            TransferScope::FullPrompt => load.missing_tokens + load.cached_tokens,
        };
        let bytes = u64::from(tokens) * config.kv_bytes_per_token;
        if self.links.is_empty() || bytes == 0 {
            let alone_ns = match config.sharing {
                LinkSharing::Unshared => config.alone_ns(bytes),
                LinkSharing::Shared | LinkSharing::PerPrefillEngine => 0,
            };
            return Some(config.latency_ns.saturating_add(alone_ns));
        }
        let link = self.link_from(source_engine);
        self.links[link as usize].start(now_ns, key, bytes);
        self.expect(link, events);
        None
    }

    /// Delivers the complete transfers of a link. Does nothing if the link's load has changed since `version`.
    pub(crate) fn progress(&mut self, link: u32, version: u64, now_ns: u64, events: &mut EventQueue) {
        if self.links[link as usize].version() != version {
            return;
        }
        let latency_ns = self.config.as_ref().map_or(0, |config| config.latency_ns);
        while let Some(key) = self.links[link as usize].pop_complete(now_ns) {
            events.push(now_ns + latency_ns, Event::TransferDelivered { tag: key.tag, attempt: key.attempt });
        }
        self.expect(link, events);
    }

    pub(crate) fn cancel(&mut self, now_ns: u64, key: TransferKey, source_engine: u32, events: &mut EventQueue) {
        if !self.links.is_empty() {
            let link = self.link_from(source_engine);
            self.links[link as usize].cancel(now_ns, key);
            self.expect(link, events);
        }
    }

    fn link_from(&self, source_engine: u32) -> u32 {
        match self.config.as_ref().map(|config| config.sharing) {
            Some(LinkSharing::PerPrefillEngine) => source_engine,
            Some(LinkSharing::Shared | LinkSharing::Unshared) | None => 0,
        }
    }

    fn expect(&self, index: u32, events: &mut EventQueue) {
        let link = &self.links[index as usize];
        if let Some(at_ns) = link.next_completion_ns() {
            events.push(at_ns, Event::LinkProgress { link: index, version: link.version() });
        }
    }
}

/// Whether the decode engines compute the request's prompt, as conditional disaggregation decides.
pub(crate) fn stays_with_decode(
    config: &ConditionalConfig,
    prompt: &Prompt,
    prefill: &[Worker],
    decode: &[Worker],
) -> bool {
    let up = || decode.iter().filter(|worker| worker.lifecycle().is_up());
    let Some(first) = up().next() else { return false };
    if decode_is_busy(config, up()) {
        return false;
    }
    let prefill_is_busy = || prefill_is_busy(config, prefill.iter().filter(|worker| worker.lifecycle().is_up()));
    let is_short = || {
        let cached = up().map(|worker| worker.engine().cached_prefix_blocks(prompt.block_hashes()));
        let cached_tokens = cached.max().unwrap_or(0) * first.block_size_tokens();
        let prompt_tokens = prompt.len_tokens();
        let uncached_tokens = prompt_tokens.saturating_sub(cached_tokens);
        uncached_tokens <= config.eff_isl_threshold_tokens
            || f64::from(uncached_tokens) <= config.eff_isl_ratio_threshold * f64::from(prompt_tokens)
    };
    match config.policy {
        ConditionalPolicy::IslBounding => is_short(),
        ConditionalPolicy::PrefillLoad => prefill_is_busy(),
        ConditionalPolicy::IslOrLoad => is_short() || prefill_is_busy(),
    }
}

fn prefill_is_busy<'a>(config: &ConditionalConfig, mut workers: impl Iterator<Item = &'a Worker>) -> bool {
    let Some(threshold) = config.prefill_busy_threshold else { return false };
    workers.all(|worker| {
        let budget = f64::from(worker.engine().max_num_batched_tokens());
        worker.engine().load().outstanding_prefill_tokens as f64 > threshold * budget
    })
}

fn decode_is_busy<'a>(config: &ConditionalConfig, mut workers: impl Iterator<Item = &'a Worker>) -> bool {
    let Some(threshold) = config.decode_busy_threshold else { return false };
    workers.all(|worker| {
        let load = worker.engine().load();
        f64::from(load.num_active_blocks) > threshold * f64::from(load.num_usable_blocks)
    })
}
