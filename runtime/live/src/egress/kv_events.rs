//! KV events of an engine's prefix cache for subscribers.

use std::num::NonZeroU32;
use std::time::{SystemTime, UNIX_EPOCH};

use vcr_block_hash::{BlockHasher, Digest, EngineHashes, ExtraKey, HashRules, Seed};
use vcr_core::Engine;
use vcr_core::kv_event::KvEvent as CoreEvent;
use vcr_wire::{
    BlockHash, BlockRemoved, BlockStored, KvEvent, KvEventBatch, KvEventPublisher, LinkError, Value, VllmMinor,
};

use crate::config::KvEventSettings;
use crate::requests::{BlockKeys, Requests};

/// The storage medium of the blocks.
const MEDIUM: &str = "GPU";

/// The publisher of one engine's events.
pub(crate) struct KvEvents {
    publisher: KvEventPublisher,
    settings: KvEventSettings,
    hashes: EngineHashes,
    version: VllmMinor,
    digests: Vec<Digest>,
    /// Events since the last batch.
    gathered: Vec<KvEvent>,
    pub(crate) published: u64,
    pub(crate) lost: u64,
}

impl KvEvents {
    pub(crate) fn new(
        publisher: KvEventPublisher,
        settings: KvEventSettings,
        version: VllmMinor,
        block_size: u32,
    ) -> Self {
        let hashes = new_hashes(&settings, version, block_size);
        Self { publisher, settings, hashes, version, digests: Vec::new(), gathered: Vec::new(), published: 0, lost: 0 }
    }

    pub(crate) fn publisher(&self) -> &KvEventPublisher {
        &self.publisher
    }

    /// Starts again with an empty cache, and tells subscribers so if they know of
    /// any block in it.
    pub(crate) fn restart(&mut self, version: VllmMinor, block_size: u32) {
        self.version = version;
        self.gathered.clear();
        if self.published + self.lost > 0 {
            self.gathered.push(KvEvent::AllBlocksCleared);
        }
        self.hashes = new_hashes(&self.settings, version, block_size);
    }

    /// Takes the events that `engine` has recorded; the caller clears them.
    pub(crate) fn gather(&mut self, engine: &Engine, requests: &Requests) {
        let Some(log) = engine.pool().events().filter(|log| !log.is_empty()) else { return };
        let block_size = engine.config().block_size;
        for event in log.iter() {
            let event = match event {
                CoreEvent::Stored { tag, parent, blocks, tokens } => {
                    let keys = requests.get(tag).and_then(|request| request.extras.as_ref()?.block_keys.as_ref());
                    self.stored(keys, parent, blocks, tokens, block_size)
                }
                CoreEvent::Removed(block) => {
                    let digest = self.hashes.removed(block).expect("the engine removes what it has stored");
                    KvEvent::BlockRemoved(Box::new(BlockRemoved {
                        block_hashes: vec![self.name(&digest)],
                        medium: Some(MEDIUM.to_owned()),
                        group_idx: Some(0),
                        ..BlockRemoved::default()
                    }))
                }
                CoreEvent::Cleared => {
                    self.hashes.cleared();
                    KvEvent::AllBlocksCleared
                }
            };
            self.gathered.push(event);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.gathered.is_empty()
    }

    /// Publishes the gathered events, unless the batch `is_lost`.
    ///
    /// # Errors
    /// When the library fails.
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
        let first_place = self.hashes.place_after(parent).expect(after);
        let extra: Vec<Vec<ExtraKey<'_>>> =
            (first_place..).take(blocks.len()).map(|place| extra_keys(keys, place, block_size)).collect();
        self.digests.clear();
        let extra_of = |index: usize| extra[index].as_slice();
        let parent = self.hashes.stored(parent, blocks, tokens, extra_of, &mut self.digests).expect(after);
        // In events the keys stand as they are, on every version.
        let as_values = |keys: &Vec<ExtraKey<'_>>| {
            let values: Vec<_> = keys.iter().map(value_of).collect();
            (!values.is_empty()).then_some(values)
        };
        let extra_keys: Vec<_> = extra.iter().map(as_values).collect();
        let lora_name = keys.lora.as_ref().map(|(name, ..)| name.clone());
        KvEvent::BlockStored(Box::new(BlockStored {
            block_hashes: self.digests.iter().map(|digest| self.name(digest)).collect(),
            parent_block_hash: parent.as_ref().map(|digest| self.name(digest)),
            token_ids: tokens.to_vec(),
            block_size: block_size.into(),
            lora_id: keys.lora.as_ref().map(|(.., int_id)| *int_id),
            medium: Some(MEDIUM.to_owned()),
            lora_name: lora_name.clone(),
            extra_keys: Some(extra_keys),
            group_idx: Some(0),
            kv_cache_spec_kind: Some("full_attention".to_owned()),
            session_id: keys
                .session_id
                .clone()
                .filter(|_| self.version.rules().block_stored_keys.iter().any(|key| key == "session_id")),
            ..BlockStored::default()
        }))
    }

    fn name(&self, digest: &Digest) -> BlockHash {
        if self.settings.whole_digests {
            BlockHash::Digest(digest.as_bytes().to_vec())
        } else {
            BlockHash::Int(digest.low_u64())
        }
    }
}

/// The keys of the block at this place of a sequence.
fn extra_keys(keys: &BlockKeys, place: u32, block_size: u32) -> Vec<ExtraKey<'_>> {
    let start = u64::from(place) * u64::from(block_size);
    let end = start + u64::from(block_size);
    let lora = keys.lora.as_ref().map(|(name, path, _)| ExtraKey::Lora { name, path });
    let is_inside = |offset: u64, tokens: u32| tokens > 0 && offset < end && offset + u64::from(tokens) > start;
    let media = keys.media.iter().filter(|medium| is_inside(medium.offset.into(), medium.tokens)).map(|medium| {
        ExtraKey::MultiModal { identifier: &medium.identifier, offset: i64::from(medium.offset) - start as i64 }
    });
    let salt = keys.cache_salt.as_deref().filter(|_| place == 0).map(ExtraKey::CacheSalt);
    lora.into_iter().chain(media).chain(salt).collect()
}

fn value_of(key: &ExtraKey<'_>) -> Value {
    match key {
        ExtraKey::Lora { name, .. } => Value::Str((*name).to_owned()),
        ExtraKey::MultiModal { identifier, offset } => {
            Value::Array(vec![(*identifier).into(), Value::Int((*offset).into())])
        }
        ExtraKey::CacheSalt(salt) => Value::Str((*salt).to_owned()),
        // The engine takes no prompt embeddings.
        ExtraKey::PromptEmbeds(digest) => Value::Bin(digest.to_vec()),
    }
}

fn new_hashes(settings: &KvEventSettings, version: VllmMinor, block_size: u32) -> EngineHashes {
    let minor = 27 + version as u32;
    let rules = HashRules::of_release(0, minor).expect("all versions of the protocol have hashes");
    let seed = match &settings.hash_seed {
        Some(seed) => Seed::PythonHashSeed(seed),
        // Fixed where vLLM draws, so that runs can be compared.
        None => Seed::Unset { random: [0; 32] },
    };
    let block_size = NonZeroU32::new(block_size).expect("a checked setting");
    EngineHashes::new(BlockHasher::new(settings.algorithm, rules, seed), block_size)
}
