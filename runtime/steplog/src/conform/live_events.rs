//! KV events of a live engine, batch by batch.
//!
//! A batch is published when a step's outputs have been processed and any
//! event is pending. Its blocks are compared with ours one for one: the same
//! block of ours must always be the same block of theirs. Where the capture
//! tells all tokens of a block and of those before it, its hash is computed as
//! vLLM computes it and must be theirs, bit for bit.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use vcr_block_hash::{BlockHasher, EngineHashes, HashAlgorithm, Seed, VllmLine};
use vcr_core::hash::BlockHash;
use vcr_core::kv_event::{KvEvent, KvEventLog};

use super::live::FIRST_UNKNOWN_TOKEN;
use super::report::{CaseReport, Difference};
use super::scheduler::read_all;
use crate::error::LogError;

/// A line of `kv_events.jsonl`.
#[derive(Deserialize)]
struct LiveBatch {
    seq: u64,
    batch: (f64, Vec<LiveEvent>, Option<u32>),
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum LiveEvent {
    BlockStored { block_hashes: Vec<u64>, parent_block_hash: Option<u64>, token_ids: Vec<u32> },
    BlockRemoved { block_hashes: Vec<u64> },
    AllBlocksCleared,
}

/// Compares an engine's events with a capture.
pub(super) struct EventCheck {
    captured: Option<HashMap<u64, Vec<LiveEvent>>>,
    /// Number of the next batch.
    next_seq: u64,
    not_captured: u64,
    theirs_of: HashMap<BlockHash, u64>,
    ours_of: HashMap<u64, BlockHash>,
    /// None where vLLM's seed is not known.
    hashes: Option<EngineHashes>,
}

impl EventCheck {
    pub(super) fn new(
        folder: &Path,
        engine_args: &Map<String, Value>,
        block_size_tokens: u32,
        report: &mut CaseReport,
    ) -> Result<Self, LogError> {
        let path = folder.join("kv_events.jsonl");
        let captured = if path.is_file() {
            Some(read_all::<LiveBatch>(&path)?.into_iter().map(|batch| (batch.seq, batch.batch.1)).collect())
        } else {
            report.notes.push("no `kv_events.jsonl`, so KV events are not compared".to_owned());
            None
        };
        let named = engine_args.get("prefix_caching_hash_algo").and_then(Value::as_str).unwrap_or("sha256");
        let algorithm: HashAlgorithm =
            named.parse().map_err(|error| LogError::file(folder.join("engine.json"), error))?;
        let line = VllmLine::V0_31;
        let hashes = if BlockHasher::draws_seed(algorithm, line) {
            report.notes.push(format!("{named} hashes start from a seed that is drawn at start-up: not compared"));
            None
        } else {
            let hasher = BlockHasher::new(algorithm, line, Seed::Unset { random: [0; 32] });
            NonZeroU32::new(block_size_tokens).map(|size| EngineHashes::new(hasher, size))
        };
        Ok(Self { captured, next_seq: 0, not_captured: 0, theirs_of: HashMap::new(), ours_of: HashMap::new(), hashes })
    }

    /// Compares what a step published.
    pub(super) fn batch(&mut self, log: &KvEventLog, report: &mut CaseReport) -> Result<(), Difference> {
        if log.is_empty() {
            return Ok(());
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        let Some(captured) = &mut self.captured else { return Ok(()) };
        // A subscriber that joins late misses the first batches.
        let theirs = captured.remove(&seq);
        if theirs.is_none() {
            self.not_captured += 1;
        }
        if let Some(theirs) = &theirs {
            report.compare("number of KV events", &log.len(), &theirs.len())?;
        }
        for (index, event) in log.iter().enumerate() {
            let known = self.vllm_hashes(event);
            if let Some(theirs) = &theirs {
                self.event(event, &theirs[index], known.as_deref(), report)?;
            }
        }
        Ok(())
    }

    /// Our event's blocks as vLLM hashes them, where all tokens are known.
    fn vllm_hashes(&mut self, event: KvEvent<'_>) -> Option<Vec<u64>> {
        let hashes = self.hashes.as_mut()?;
        match event {
            KvEvent::Stored { parent, blocks, tokens, .. } => {
                if tokens.is_empty() || tokens.iter().any(|&token| token >= FIRST_UNKNOWN_TOKEN) {
                    return None;
                }
                let mut digests = Vec::new();
                // Unknown if a block before this one has unknown tokens.
                hashes.stored(parent, blocks, tokens, |_| &[], &mut digests).ok()?;
                Some(digests.iter().map(|digest| digest.low_u64()).collect())
            }
            KvEvent::Removed(block) => Some(vec![hashes.removed(block).ok()?.low_u64()]),
            KvEvent::Cleared => {
                hashes.cleared();
                None
            }
        }
    }

    fn event(
        &mut self,
        ours: KvEvent<'_>,
        theirs: &LiveEvent,
        known: Option<&[u64]>,
        report: &mut CaseReport,
    ) -> Result<(), Difference> {
        report.events += 1;
        let their_blocks = match (ours, theirs) {
            (
                KvEvent::Stored { parent, blocks, tokens, .. },
                LiveEvent::BlockStored { block_hashes, parent_block_hash, token_ids },
            ) => {
                report.compare("blocks of a stored event", &blocks.len(), &block_hashes.len())?;
                report.compare(
                    "whether a stored event has a parent",
                    &parent.is_some(),
                    &parent_block_hash.is_some(),
                )?;
                if let (Some(ours), Some(theirs)) = (parent, parent_block_hash) {
                    self.same_block("parent of a stored event", ours, *theirs, report)?;
                }
                for (&ours, &theirs) in blocks.iter().zip(block_hashes) {
                    self.same_block("blocks of a stored event", ours, theirs, report)?;
                }
                if known.is_some() {
                    report.compare("tokens of a stored event", &tokens, &token_ids.as_slice())?;
                }
                block_hashes
            }
            (KvEvent::Removed(ours), LiveEvent::BlockRemoved { block_hashes }) => {
                report.compare("blocks of a removed event", &1, &block_hashes.len())?;
                self.same_block("block of a removed event", ours, block_hashes[0], report)?;
                block_hashes
            }
            (KvEvent::Cleared, LiveEvent::AllBlocksCleared) => return Ok(()),
            _ => return report.compare("kind of a KV event", &kind_of(ours), &their_kind(theirs)),
        };
        if let Some(known) = known {
            report.compare("block hashes", &known, &their_blocks.as_slice())?;
            report.hashes += known.len() as u64;
        }
        Ok(())
    }

    fn same_block(
        &mut self,
        field: &'static str,
        ours: BlockHash,
        theirs: u64,
        report: &mut CaseReport,
    ) -> Result<(), Difference> {
        let known_theirs = *self.theirs_of.entry(ours).or_insert(theirs);
        let known_ours = *self.ours_of.entry(theirs).or_insert(ours);
        if known_theirs != theirs || known_ours != ours {
            return Err(Difference { field, ours: json!(known_theirs), theirs: json!(theirs) });
        }
        report.fields += 1;
        Ok(())
    }

    /// Says what was left out.
    pub(super) fn note(&self, report: &mut CaseReport) {
        if self.not_captured > 0 && self.captured.is_some() {
            let first = "published before the capture's subscriber had joined, or lost";
            report.notes.push(format!("{} batches of KV events were {first}", self.not_captured));
        }
    }
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
        LiveEvent::BlockStored { .. } => "BlockStored",
        LiveEvent::BlockRemoved { .. } => "BlockRemoved",
        LiveEvent::AllBlocksCleared => "AllBlocksCleared",
    }
}
