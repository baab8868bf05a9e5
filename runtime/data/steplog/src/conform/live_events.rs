//! Compares the KV events of a live engine, batch by batch.
//!
//! vLLM publishes a batch when a step's outputs were processed and events are pending. The blocks are compared one
//! by one: a block of the core must always correspond to the same block of vLLM. If the capture has all tokens of a
//! block and of the blocks before it, vLLM's hash is computed here and must equal the captured hash, bit for bit.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use vcr_base::block_hash::{BlockHasher, HashAlgorithm, Seed};
use vcr_core::hash::BlockHash;
use vcr_core::kv_event::{KvEvent, KvEventLog, StoredPlaces};

use super::block_names::{BlockNames, Named};
use super::capture::Capture;
use super::report::{CaseReport, Difference, EventPlace};
use super::scope::EventScope;
use crate::error::LogError;
use crate::jsonl::{is_there, read_all, resolved};
use crate::live::LiveAdded;

#[derive(Deserialize)]
struct LiveBatch {
    seq: u64,
    batch: (f64, Vec<LiveEvent>, Option<u32>),
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum LiveEvent {
    BlockStored(LiveStored),
    BlockRemoved { block_hashes: Vec<u64>, medium: Option<String>, group_idx: Option<u32> },
    AllBlocksCleared,
}

#[derive(Deserialize)]
struct LiveStored {
    block_hashes: Vec<u64>,
    parent_block_hash: Option<u64>,
    token_ids: Vec<u32>,
    block_size: Option<u32>,
    medium: Option<String>,
    group_idx: Option<u32>,
    kv_cache_spec_kind: Option<String>,
    lookahead_token_ids: Option<Vec<Vec<u32>>>,
    /// The data that vLLM hashes with each block in addition to the tokens.
    extra_keys: Option<Vec<Option<Vec<Value>>>>,
}

impl LiveStored {
    /// The texts among the extra keys of the blocks: names of adapters, or a `cache_salt`.
    fn texts(&self) -> impl Iterator<Item = &str> {
        self.extra_keys.iter().flatten().flatten().flatten().filter_map(Value::as_str)
    }
}

impl LiveEvent {
    fn scope(&self) -> EventScope<'_> {
        match self {
            Self::BlockStored(stored) => EventScope {
                kind: stored.kv_cache_spec_kind.as_deref(),
                group: stored.group_idx,
                medium: stored.medium.as_deref(),
                block_size: stored.block_size,
                looks_ahead: stored.lookahead_token_ids.is_some(),
            },
            Self::BlockRemoved { medium, group_idx, .. } => EventScope {
                kind: None,
                group: *group_idx,
                medium: medium.as_deref(),
                block_size: None,
                looks_ahead: false,
            },
            Self::AllBlocksCleared => {
                EventScope { kind: None, group: None, medium: None, block_size: None, looks_ahead: false }
            }
        }
    }
}

struct Captured {
    line: u64,
    events: Vec<LiveEvent>,
}

struct OurEvent<'a> {
    group: u32,
    event: KvEvent<'a>,
    places: Option<StoredPlaces<'a>>,
    named: Option<Named>,
}

pub(super) struct EventCheck {
    /// Batches by sequence number; None if no events were captured.
    captured: Option<HashMap<u64, Captured>>,
    next_seq: u64,
    not_captured: u64,
    /// vLLM's hashes, by group and the core's hash.
    theirs_of: HashMap<(u32, BlockHash), u64>,
    ours_of: HashMap<(u32, u64), BlockHash>,
    /// Computes vLLM's hashes; None if vLLM's seed is unknown.
    names: Option<BlockNames>,
    has_places: bool,
    /// Requests with an adapter. vLLM also hashes the adapter's path, which the capture lacks.
    with_adapter: HashSet<u64>,
}

impl EventCheck {
    pub(super) fn read(folder: &Path, capture: &Capture, report: &mut CaseReport) -> Result<Self, LogError> {
        let path = folder.join("kv_events.jsonl");
        let config = &capture.config;
        let captured = if is_there(&path) {
            Some(captured(&resolved(&path), capture)?)
        } else {
            report.notes.push("no `kv_events.jsonl`, so KV events are not compared".to_owned());
            None
        };
        let hasher = hasher(capture, report).map_err(|error| LogError::file(folder.join("engine.json"), error))?;
        let lookahead_tokens = config.drafting().hash_lookahead_tokens;
        let has_places = config.has_kv_cache_groups() || lookahead_tokens > 0;
        let names = NonZeroU32::new(config.hashed_blocks().size_tokens).zip(hasher).map(|(size, hasher)| {
            if has_places {
                BlockNames::of_sequences(hasher, size, lookahead_tokens)
            } else {
                BlockNames::chained(hasher, size)
            }
        });
        Ok(Self {
            captured,
            next_seq: 0,
            not_captured: 0,
            theirs_of: HashMap::new(),
            ours_of: HashMap::new(),
            names,
            has_places,
            with_adapter: HashSet::new(),
        })
    }

    /// Whether the core must record the positions of blocks.
    pub(super) fn has_places(&self) -> bool {
        self.has_places
    }

    pub(super) fn added(&mut self, tag: u64, added: &LiveAdded) {
        if added.lora.is_some() {
            self.with_adapter.insert(tag);
        }
        if let Some(names) = &mut self.names {
            names.added(tag, added);
        }
    }

    pub(super) fn batch(&mut self, log: &KvEventLog, report: &mut CaseReport) -> Result<(), Difference> {
        if log.is_empty() {
            return Ok(());
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        let Some(captured) = &mut self.captured else { return Ok(()) };
        // A subscriber that connects late misses the first batches.
        let theirs = captured.remove(&seq);
        if theirs.is_none() {
            self.not_captured += 1;
        }
        let with_places = self.has_places.then(|| log.iter_with_places()).into_iter().flatten();
        let alone = (!self.has_places).then(|| log.iter()).into_iter().flatten().map(|event| (0, event, None));
        for (index, (group, event, places)) in with_places.chain(alone).enumerate() {
            let ours = OurEvent { group, named: self.vllm_names(group, event, places.as_ref()), event, places };
            let Some(Captured { line, events }) = &theirs else { continue };
            let place = EventPlace { line: *line, event: index };
            let Some(theirs) = events.get(index) else { break };
            self.event(&ours, theirs, report).map_err(|difference| Difference { event: Some(place), ..difference })?;
        }
        if let Some(Captured { line, events }) = &theirs {
            let place = EventPlace { line: *line, event: events.len().min(log.len()) };
            report
                .compare("number of KV events", &log.len(), &events.len())
                .map_err(|difference| Difference { event: Some(place), ..difference })?;
        }
        Ok(())
    }

    /// vLLM's hashes of the event's blocks, if all tokens are known.
    fn vllm_names(&mut self, group: u32, event: KvEvent<'_>, places: Option<&StoredPlaces<'_>>) -> Option<Named> {
        let has_adapter = matches!(event, KvEvent::Stored { tag, .. } if self.with_adapter.contains(&tag));
        self.names.as_mut().filter(|_| !has_adapter)?.of_event(group, event, places)
    }

    fn event(&mut self, ours: &OurEvent<'_>, theirs: &LiveEvent, report: &mut CaseReport) -> Result<(), Difference> {
        report.events += 1;
        let (group, known) = (ours.group, ours.named.as_ref());
        if self.has_places && !matches!(ours.event, KvEvent::Cleared) {
            report.compare("group of a KV event", &group, &theirs.scope().group.unwrap_or(0))?;
        }
        let their_blocks = match (ours.event, theirs) {
            (KvEvent::Stored { parent, blocks, tokens, .. }, LiveEvent::BlockStored(theirs)) => {
                report.compare("blocks of a stored event", &blocks.len(), &theirs.block_hashes.len())?;
                let has_parent = theirs.parent_block_hash.is_some();
                report.compare("whether a stored event has a parent", &parent.is_some(), &has_parent)?;
                if let Some((ours, theirs)) = parent.zip(theirs.parent_block_hash) {
                    self.same_block("parent of a stored event", (group, ours), theirs, report)?;
                }
                if known.is_some() {
                    report.compare("tokens of a stored event", &tokens, &theirs.token_ids.as_slice())?;
                }
                if let Some((places, size)) = ours.places.as_ref().zip(theirs.block_size) {
                    report.compare("block size of a stored event", &places.block_tokens, &size)?;
                }
                if let Some((known, behind)) = known.zip(theirs.lookahead_token_ids.as_ref()) {
                    report.compare("tokens behind the blocks of a stored event", &known.behind, behind)?;
                }
                &theirs.block_hashes
            }
            (KvEvent::Removed(_), LiveEvent::BlockRemoved { block_hashes, .. }) => {
                report.compare("blocks of a removed event", &1, &block_hashes.len())?;
                block_hashes
            }
            (KvEvent::Cleared, LiveEvent::AllBlocksCleared) => return Ok(()),
            (ours, _) => return report.compare("kind of a KV event", &kind_of(ours), &their_kind(theirs)),
        };
        if let Some(known) = known {
            report.compare("block hashes", &known.blocks, their_blocks)?;
            report.hashes += known.blocks.len() as u64;
        }
        match ours.event {
            KvEvent::Stored { blocks, .. } => {
                for (&ours, &theirs) in blocks.iter().zip(their_blocks) {
                    self.same_block("blocks of a stored event", (group, ours), theirs, report)?;
                }
            }
            KvEvent::Removed(ours) => {
                for &theirs in their_blocks {
                    self.same_block("block of a removed event", (group, ours), theirs, report)?;
                }
            }
            KvEvent::Cleared => {}
        }
        Ok(())
    }

    fn same_block(
        &mut self,
        field: &'static str,
        (group, ours): (u32, BlockHash),
        theirs: u64,
        report: &mut CaseReport,
    ) -> Result<(), Difference> {
        let known_theirs = *self.theirs_of.entry((group, ours)).or_insert(theirs);
        let known_ours = *self.ours_of.entry((group, theirs)).or_insert(ours);
        if known_theirs != theirs || known_ours != ours {
            return Err(Difference { field, ours: json!(known_theirs), theirs: json!(theirs), event: None });
        }
        report.fields += 1;
        Ok(())
    }

    /// Fails if the capture has events that the core did not publish, and reports events that were not captured.
    pub(super) fn finish(&self, report: &mut CaseReport) -> Result<(), Difference> {
        let Some(captured) = &self.captured else { return Ok(()) };
        let batches = captured.keys().map(|seq| seq.saturating_add(1)).max().unwrap_or(0);
        if batches > self.next_seq {
            report.compare("batches of KV events", &self.next_seq, &batches)?;
        }
        if self.not_captured > 0 {
            let why = "published before the capture's subscriber had joined, or lost";
            report.notes.push(format!("batches of KV events missing from the capture: {} ({why})", self.not_captured));
        }
        if !self.with_adapter.is_empty() && self.names.is_some() {
            let why = "an adapter's path is hashed too, and the capture does not have it";
            report.notes.push(format!("hashes of requests with adapters are not compared: {why}"));
        }
        Ok(())
    }
}

fn captured(path: &Path, capture: &Capture) -> Result<HashMap<u64, Captured>, LogError> {
    let mut captured = HashMap::new();
    let keys = KnownKeys::of(capture);
    for (line, LiveBatch { seq, batch: (_, events, _) }) in read_all::<LiveBatch>(path)? {
        for event in &events {
            let checked = event.scope().check(&capture.config).and_then(|()| keys.check(event));
            checked.map_err(|what| LogError::out_of_scope(path, Some(line), what))?;
        }
        if captured.insert(seq, Captured { line, events }).is_some() {
            return Err(LogError::line(path, line, format_args!("`seq`: batch {seq} occurs twice")));
        }
    }
    Ok(captured)
}

/// Texts in a capture that keep blocks apart.
struct KnownKeys<'a> {
    salts: HashSet<&'a str>,
    /// Whether requests have adapters. Events contain the adapters' names, the capture only their numbers.
    has_adapters: bool,
}

impl<'a> KnownKeys<'a> {
    fn of(capture: &'a Capture) -> Self {
        let added = || capture.log.steps.iter().flat_map(|(_, step)| &step.added);
        Self {
            salts: added().filter_map(|added| added.cache_salt.as_deref()).collect(),
            has_adapters: added().any(|added| added.lora.is_some()),
        }
    }

    /// Refuses a salt that the capture's requests lack, because the core would share blocks that vLLM keeps apart.
    fn check(&self, event: &LiveEvent) -> Result<(), String> {
        let LiveEvent::BlockStored(stored) = event else { return Ok(()) };
        match stored.texts().find(|text| !self.has_adapters && !self.salts.contains(text)) {
            Some(text) => Err(format!(
                "`extra_keys` has \"{text}\", but no request in `steps.jsonl` has this `cache_salt`: recorded with an \
                 earlier `live_log.py`; record it again"
            )),
            None => Ok(()),
        }
    }
}

/// Returns the hasher of vLLM's blocks; None if vLLM's seed is unknown.
fn hasher(capture: &Capture, report: &mut CaseReport) -> Result<Option<BlockHasher>, String> {
    let named = capture.args.get("prefix_caching_hash_algo").and_then(Value::as_str).unwrap_or("sha256");
    let algorithm: HashAlgorithm =
        named.parse().map_err(|error| format!("`engine_args.prefix_caching_hash_algo`: {error}"))?;
    let rules = capture.hash_rules;
    if BlockHasher::draws_seed(algorithm, rules) {
        report.notes.push(format!("{named} hashes start from a seed that is drawn at start-up: not compared"));
        return Ok(None);
    }
    Ok(Some(BlockHasher::new(algorithm, rules, Seed::Unset { random: [0; 32] })))
}

fn kind_of(event: KvEvent<'_>) -> &'static str {
    match event {
        KvEvent::Stored { .. } => "BlockStored",
        KvEvent::Removed(_) => "BlockRemoved",
        KvEvent::Cleared => "AllBlocksCleared",
    }
}

fn their_kind(event: &LiveEvent) -> &'static str {
    match event {
        LiveEvent::BlockStored(_) => "BlockStored",
        LiveEvent::BlockRemoved { .. } => "BlockRemoved",
        LiveEvent::AllBlocksCleared => "AllBlocksCleared",
    }
}
