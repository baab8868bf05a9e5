//! KV events of a live engine, batch by batch.
//!
//! A batch is published when a step's outputs have been processed and any
//! event is pending. Its blocks are compared with ours one for one: the same
//! block of ours must always be the same block of theirs.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use vcr_core::hash::BlockHash;
use vcr_core::kv_event::{KvEvent, KvEventLog};

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

pub(super) struct EventCheck {
    captured: HashMap<u64, Vec<LiveEvent>>,
    /// Number of the next batch.
    next_seq: u64,
    not_captured: u64,
    theirs_of: HashMap<BlockHash, u64>,
    ours_of: HashMap<u64, BlockHash>,
}
