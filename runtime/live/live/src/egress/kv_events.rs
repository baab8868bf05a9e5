//! KV events of an engine's prefix cache for subscribers.

use std::num::NonZeroU32;
use std::time::{SystemTime, UNIX_EPOCH};

use vcr_base::block_hash::{BlockHasher, Digest, EngineHashes, ExtraKey, HashRules, Seed};
use vcr_core::kv_event::{KvEvent as CoreEvent, StoredPlaces};
use vcr_core::{AnyEngine, EngineConfig, KvCacheGroup, KvCacheKind, ServingEngine as _};
use vcr_wire::{
    BlockHash, BlockRemoved, BlockStored, KvEvent, KvEventBatch, KvEventPublisher, LinkError, Protocol, Value,
    VllmMinor,
};

use super::sequence_hashes::{SequenceHashes, extra_keys};
use crate::config::KvEventSettings;
use crate::requests::{BlockKeys, Requests};

const MEDIUM: &str = "GPU";

pub(crate) struct KvEvents {
    publisher: KvEventPublisher,
    settings: KvEventSettings,
    names: Names,
    /// Groups of layers; empty if the only group has full attention.
    groups: Vec<KvCacheGroup>,
    lookahead_tokens: u32,
    version: VllmMinor,
    digests: Vec<Digest>,
    /// Events since the last batch.
    gathered: Vec<KvEvent>,
    pub(crate) published: u64,
    pub(crate) lost: u64,
}

/// The method of computing the hashes that name blocks in events.
enum Names {
    /// From the hash of the parent block, which is cached.
    Chained(EngineHashes),
    /// From all tokens of a sequence.
    OfSequences(Box<SequenceHashes>),
}

impl KvEvents {
    pub(crate) fn new(
        publisher: KvEventPublisher,
        settings: KvEventSettings,
        version: VllmMinor,
        engine: &EngineConfig,
    ) -> Self {
        let (groups, lookahead_tokens) = (engine.kv_cache_groups().to_vec(), engine.hashed_blocks().lookahead_tokens);
        let names = new_names(&settings, version, engine.block_size(), (!groups.is_empty(), lookahead_tokens));
        Self {
            publisher,
            settings,
            names,
            groups,
            lookahead_tokens,
            version,
            digests: Vec::new(),
            gathered: Vec::new(),
            published: 0,
            lost: 0,
        }
    }

    /// Number of tokens after each block that the engine must record with the block's place; `None` if it need not
    /// record places.
    pub(crate) fn recorded_lookahead(&self) -> Option<u32> {
        matches!(self.names, Names::OfSequences(_)).then_some(self.lookahead_tokens)
    }

    /// Forgets a request that has ended; its events have been gathered.
    pub(crate) fn forget(&mut self, tag: u64) {
        if let Names::OfSequences(names) = &mut self.names {
            names.forget(tag);
        }
    }

    pub(crate) fn publisher(&self) -> &KvEventPublisher {
        &self.publisher
    }

    /// Starts again with an empty cache. If subscribers may know of blocks, tells them that all blocks were removed.
    pub(crate) fn restart(&mut self, version: VllmMinor, block_size: u32) {
        self.version = version;
        self.gathered.clear();
        if self.published + self.lost > 0 {
            self.gathered.push(KvEvent::AllBlocksCleared);
        }
        let sequences = (!self.groups.is_empty(), self.lookahead_tokens);
        self.names = new_names(&self.settings, version, block_size, sequences);
    }

    /// Takes the events that `engine` has recorded; the caller clears them.
    pub(crate) fn gather(&mut self, engine: &AnyEngine, requests: &Requests) {
        let Some(log) = engine.kv_events().filter(|log| !log.is_empty()) else { return };
        let keys_of = |tag| requests.get(tag).and_then(|request| request.extras.as_ref()?.block_keys.as_ref());
        if matches!(self.names, Names::OfSequences(_)) {
            for (group, event, places) in log.iter_with_places() {
                let event = match (event, places) {
                    (CoreEvent::Stored { tag, blocks, tokens, .. }, Some(places)) => {
                        self.stored_at(group, keys_of(tag), (tag, blocks, tokens), &places)
                    }
                    (event, _) => self.gone(group, event),
                };
                self.gathered.push(event);
            }
            return;
        }
        let block_size = engine.block_size();
        for event in log.iter() {
            let event = match event {
                CoreEvent::Stored { tag, parent, blocks, tokens } => {
                    self.stored(keys_of(tag), parent, blocks, tokens, block_size)
                }
                event => self.gone(0, event),
            };
            self.gathered.push(event);
        }
    }

    /// The event that one block or all blocks were removed.
    fn gone(&mut self, group: u32, event: CoreEvent<'_>) -> KvEvent {
        let CoreEvent::Removed(block) = event else {
            match &mut self.names {
                Names::Chained(hashes) => hashes.cleared(),
                Names::OfSequences(names) => names.cleared(),
            }
            return KvEvent::AllBlocksCleared;
        };
        let digest = match &mut self.names {
            Names::Chained(hashes) => hashes.removed(block).ok(),
            Names::OfSequences(names) => names.removed(group, block),
        };
        let digest = digest.expect("the engine removes what it has stored");
        KvEvent::BlockRemoved(Box::new(BlockRemoved {
            block_hashes: vec![self.name(&digest)],
            medium: Some(MEDIUM.to_owned()),
            group_idx: Some(group.into()),
            ..BlockRemoved::default()
        }))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.gathered.is_empty()
    }

    /// Publishes the gathered events, unless the batch `is_lost`.
    pub(crate) fn publish(&mut self, is_lost: bool) -> Result<(), LinkError> {
        let ts = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        let events = std::mem::take(&mut self.gathered);
        let num_events = events.len() as u64;
        let batch = KvEventBatch { ts, events, data_parallel_rank: None };
        if is_lost {
            self.lost += num_events;
            self.publisher.withhold(&batch);
        } else {
            self.published += num_events;
            self.publisher.publish(&batch)?;
        }
        Ok(())
    }

    fn stored(
        &mut self,
        keys: Option<&BlockKeys>,
        parent: Option<u64>,
        blocks: &[u64],
        tokens: &[u32],
        block_size: u32,
    ) -> KvEvent {
        let none = BlockKeys::default();
        let keys = keys.unwrap_or(&none);
        let after = "the engine stores after what it has stored, with all tokens of the blocks";
        let Names::Chained(hashes) = &mut self.names else { unreachable!("the caller has seen") };
        let first_place = hashes.place_after(parent).expect(after);
        let size = u64::from(block_size);
        let extra: Vec<Vec<ExtraKey<'_>>> =
            (u64::from(first_place)..).take(blocks.len()).map(|place| extra_keys(keys, place * size, size)).collect();
        self.digests.clear();
        let extra_of = |index: usize| extra[index].as_slice();
        let parent = hashes.stored(parent, blocks, tokens, extra_of, &mut self.digests).expect(after);
        let extra = extra.iter().map(values_of).collect();
        let blocks = Named { digests: &self.digests, parent, extra, tokens, block_size };
        KvEvent::BlockStored(Box::new(self.block_stored(keys, blocks)))
    }

    /// The event that blocks of a request were stored in a group, at these places of its sequence.
    fn stored_at(
        &mut self,
        group: u32,
        keys: Option<&BlockKeys>,
        (tag, blocks, tokens): (u64, &[u64], &[u32]),
        places: &StoredPlaces<'_>,
    ) -> KvEvent {
        let none = BlockKeys::default();
        let keys = keys.unwrap_or(&none);
        let Names::OfSequences(names) = &mut self.names else { unreachable!("the caller has seen") };
        let (unit, ahead) = (names.block_tokens(), names.lookahead_tokens());
        let sequence = names.stored(group, tag, blocks, places, keys);
        self.digests.clear();
        self.digests.extend(places.ends.iter().map(|&end| sequence.digest_at(end, unit)));
        let parent = (places.start > 0).then(|| sequence.digest_at(places.start, unit));
        let behind: Vec<Vec<u32>> = places.ends.iter().map(|&end| sequence.behind(end, ahead)).collect();
        let size = u64::from(places.block_tokens);
        let keys_before = |&end: &u32| extra_keys(keys, u64::from(end) - size, size + ahead as u64);
        let extra = places.ends.iter().map(|end| values_of(&keys_before(end))).collect();
        let blocks = Named { digests: &self.digests, parent, extra, tokens, block_size: places.block_tokens };
        let (kind, window) = self.groups.get(group as usize).map_or(("full_attention", None), kind_of);
        KvEvent::BlockStored(Box::new(BlockStored {
            group_idx: Some(group.into()),
            kv_cache_spec_kind: Some(kind.to_owned()),
            kv_cache_spec_sliding_window: window,
            lookahead_token_ids: (ahead > 0 && self.has_key("lookahead_token_ids")).then_some(behind),
            ..self.block_stored(keys, blocks)
        }))
    }

    /// The event that blocks of the first group, which has full attention, were stored.
    fn block_stored(&self, keys: &BlockKeys, blocks: Named<'_>) -> BlockStored {
        let Named { digests, parent, extra, tokens, block_size } = blocks;
        let lora_name = keys.lora.as_ref().map(|(name, ..)| name.clone());
        BlockStored {
            block_hashes: digests.iter().map(|digest| self.name(digest)).collect(),
            parent_block_hash: parent.as_ref().map(|digest| self.name(digest)),
            token_ids: tokens.to_vec(),
            block_size: block_size.into(),
            lora_id: keys.lora.as_ref().map(|(.., int_id)| *int_id),
            medium: Some(MEDIUM.to_owned()),
            lora_name: lora_name.clone(),
            extra_keys: Some(extra).filter(|extra| !extra.is_empty()),
            group_idx: Some(0),
            kv_cache_spec_kind: Some("full_attention".to_owned()),
            session_id: keys.session_id.clone().filter(|_| self.has_key("session_id")),
            ..BlockStored::default()
        }
    }

    /// Whether events of this version have this key.
    fn has_key(&self, name: &str) -> bool {
        self.version.rules().block_stored_keys.iter().any(|key| key == name)
    }

    fn name(&self, digest: &Digest) -> BlockHash {
        if self.settings.whole_digests {
            BlockHash::Digest(digest.as_bytes().to_vec())
        } else {
            BlockHash::Int(digest.low_u64())
        }
    }
}

/// Blocks of one sequence, with their names.
struct Named<'a> {
    digests: &'a [Digest],
    parent: Option<Digest>,
    /// The extra keys of each block.
    extra: Vec<Option<Vec<Value>>>,
    tokens: &'a [u32],
    block_size: u32,
}

/// vLLM's name for the kind of a group's layers, and their window.
fn kind_of(group: &KvCacheGroup) -> (&'static str, Option<u64>) {
    match group.kind {
        KvCacheKind::FullAttention | KvCacheKind::LatentAttention => (group.kind.name(), None),
        KvCacheKind::SlidingWindow { window_tokens } => ("sliding_window", Some(window_tokens.into())),
        KvCacheKind::ChunkedLocal { .. } => ("chunked_local_attention", None),
        KvCacheKind::CrossAttention => ("cross_attention", None),
        KvCacheKind::Mamba { .. } => ("mamba", None),
    }
}

/// Every version puts the keys into events unchanged.
fn values_of(keys: &Vec<ExtraKey<'_>>) -> Option<Vec<Value>> {
    let values: Vec<_> = keys.iter().map(value_of).collect();
    (!values.is_empty()).then_some(values)
}

fn value_of(key: &ExtraKey<'_>) -> Value {
    match key {
        ExtraKey::Lora { name, .. } => Value::Str((*name).to_owned()),
        ExtraKey::MultiModal { identifier, offset } => {
            Value::Array(vec![(*identifier).into(), Value::Int((*offset).into())])
        }
        ExtraKey::CacheSalt(salt) => Value::Str((*salt).to_owned()),
        // Does not occur: the engine accepts no prompt embeddings.
        ExtraKey::PromptEmbeds(digest) => Value::Bin(digest.to_vec()),
    }
}

/// Names of an empty cache, computed from sequences if there are groups of layers or tokens after blocks.
fn new_names(
    settings: &KvEventSettings,
    version: VllmMinor,
    block_size: u32,
    (has_groups, lookahead_tokens): (bool, u32),
) -> Names {
    let minor = 27 + version as u32;
    let rules = HashRules::of_release(0, minor).expect("all versions of the protocol have hashes");
    let seed = match &settings.hash_seed {
        Some(seed) => Seed::PythonHashSeed(seed),
        // Constant where vLLM draws a random seed, so that runs can be compared.
        None => Seed::Unset { random: [0; 32] },
    };
    let hasher = BlockHasher::new(settings.algorithm, rules, seed);
    if has_groups || lookahead_tokens > 0 {
        return Names::OfSequences(Box::new(SequenceHashes::new(hasher, block_size, lookahead_tokens)));
    }
    Names::Chained(EngineHashes::new(hasher, NonZeroU32::new(block_size).expect("a checked setting")))
}
