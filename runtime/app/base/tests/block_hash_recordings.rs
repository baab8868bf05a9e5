//! Compares hashes with those of a real engine.
//!
//! `../shared/data/vllm-cpu` has the KV events of runs of vLLM 0.32.0 with sha256 and without `PYTHONHASHSEED`. The
//! events contain tokens and the low 64 bits of hashes, so every hash can be recomputed from tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use vcr_base::block_hash::{BlockHasher, Digest, EngineHashes, EngineHashesError, HashAlgorithm, HashRules, Seed};

const BLOCK_SIZE_TOKENS: NonZeroU32 = NonZeroU32::new(32).expect("not zero");

#[derive(Deserialize)]
struct Message {
    /// Timestamp and events; the last field is unused.
    batch: (f64, Vec<Event>, u32),
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Event {
    BlockStored {
        block_hashes: Vec<u64>,
        parent_block_hash: Option<u64>,
        token_ids: Vec<u32>,
        block_size: NonZeroU32,
        extra_keys: Option<Vec<Option<serde_json::Value>>>,
    },
    BlockRemoved {
        block_hashes: Vec<u64>,
    },
}

fn recordings() -> Option<PathBuf> {
    vcr_skips::sample("vllm-cpu")
}

fn events(path: &Path) -> Vec<Event> {
    let text = std::fs::read_to_string(path).expect("a recording is readable");
    let messages = text.lines().map(|line| serde_json::from_str::<Message>(line).expect("a recording is JSON lines"));
    messages.flat_map(|message| message.batch.1).collect()
}

fn hasher() -> BlockHasher {
    BlockHasher::new(HashAlgorithm::Sha256, HashRules::V0_31, Seed::Unset { random: [0; 32] })
}

/// Recomputes the hash of every stored block from its tokens; returns the number of hashes.
fn check_hashes(events: &[Event]) -> usize {
    let mut hasher = hasher();
    // Events have only part of the parent's digest; the whole digest was computed before.
    let mut digests: BTreeMap<u64, Digest> = BTreeMap::new();
    let mut compared = 0;
    for event in events {
        let Event::BlockStored { block_hashes, parent_block_hash, token_ids, block_size, extra_keys } = event else {
            continue;
        };
        assert!(extra_keys.iter().flatten().all(Option::is_none), "the recordings have no extra keys");
        let block_size = block_size.get() as usize;
        assert_eq!(token_ids.len(), block_hashes.len() * block_size);
        let mut parent = parent_block_hash.map(|low| digests[&low]);
        for (&expected, tokens) in block_hashes.iter().zip(token_ids.chunks_exact(block_size)) {
            let digest = hasher.hash_block(parent.as_ref(), tokens, &[]);
            assert_eq!(digest.low_u64(), expected);
            digests.insert(expected, digest);
            parent = Some(digest);
            compared += 1;
        }
    }
    compared
}

/// Replays the events with vLLM's hashes as block ids; returns the number of removed blocks.
fn check_cache(events: &[Event]) -> usize {
    let mut hashes = EngineHashes::new(hasher(), BLOCK_SIZE_TOKENS);
    let mut ever_stored: BTreeSet<u64> = BTreeSet::new();
    let mut removed = 0;
    for event in events {
        match event {
            Event::BlockStored { block_hashes, parent_block_hash, token_ids, block_size, .. } => {
                assert_eq!(*block_size, BLOCK_SIZE_TOKENS);
                let mut out = Vec::new();
                let parent = hashes.stored(*parent_block_hash, block_hashes, token_ids, |_| &[], &mut out);
                assert_eq!(parent.expect("parents are cached").map(|digest| digest.low_u64()), *parent_block_hash);
                assert!(out.iter().map(Digest::low_u64).eq(block_hashes.iter().copied()));
                ever_stored.extend(block_hashes);
            }
            Event::BlockRemoved { block_hashes } => {
                for &block in block_hashes {
                    match hashes.removed(block) {
                        Ok(digest) => assert_eq!(digest.low_u64(), block),
                        // The warm-up request stored this block before the recording began.
                        Err(EngineHashesError::UnknownBlock { .. }) if !ever_stored.contains(&block) => continue,
                        Err(error) => panic!("{error}"),
                    }
                    removed += 1;
                }
            }
        }
    }
    removed
}

#[test]
fn recorded_hashes_are_reproduced() {
    let Some(root) = recordings() else { return };
    for (run, stored, removed) in
        [("const", 622, 0), ("burst-preempt", 305, 240), ("multiturn", 179, 0), ("priority", 315, 268), ("wire", 59, 0)]
    {
        let events = events(&root.join(run).join("kv_events.jsonl"));
        assert_eq!((check_hashes(&events), check_cache(&events)), (stored, removed), "{run}");
        println!("{run}: {stored} hashes and {removed} removals reproduced");
    }
}
