//! A request inside the engine, and the table that holds them.
//!
//! Requests are dense ids here; a slot is reused once its request is finished
//! and no step in flight refers to it.

use crate::hash::{BlockHash, ChainHasher};
use crate::kv_pool::BlockId;

/// Dense id of a live request of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u32);

impl RequestId {
    /// The id as an index, for tables kept beside the engine.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A prompt as the engine needs it: its length and the identity of its blocks.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub(crate) len_tokens: u32,
    pub(crate) block_hashes: Vec<BlockHash>,
    pub(crate) hasher: ChainHasher,
}

impl Prompt {
    /// An empty prompt to which tokens and runs are added.
    #[must_use]
    pub fn new(block_size_tokens: u32, salt: u64) -> Self {
        Self { len_tokens: 0, block_hashes: Vec::new(), hasher: ChainHasher::new(block_size_tokens, salt) }
    }

    /// Appends single tokens.
    pub fn push_tokens(&mut self, tokens: impl IntoIterator<Item = u32>) {
        for token in tokens {
            self.len_tokens += 1;
            self.block_hashes.extend(self.hasher.push_token(token));
        }
    }

    /// Appends a run of shared content; see [`ChainHasher::push_run`].
    pub fn push_run(&mut self, content: u64, offset_tokens: u32, len_tokens: u32) {
        self.len_tokens += len_tokens;
        self.hasher.push_run(content, offset_tokens, len_tokens, &mut self.block_hashes);
    }

    /// Number of tokens.
    #[must_use]
    pub fn len_tokens(&self) -> u32 {
        self.len_tokens
    }

    /// Hashes of the full blocks, first to last.
    #[must_use]
    pub fn block_hashes(&self) -> &[BlockHash] {
        &self.block_hashes
    }
}

/// Where a request's prompt KV comes from and goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvRole {
    /// Computed here and dropped at the end.
    #[default]
    Local,
    /// Computed here and held after the end until the driver releases it: the
    /// prefill side of a disaggregated pair.
    Source,
    /// Computed elsewhere and moved into blocks reserved here: the decode side.
    Destination,
}

/// What a client asks of the engine.
#[derive(Clone, Debug)]
pub struct RequestSpec {
    /// The driver's own number for the request, given back with every output.
    pub tag: u64,
    /// The prompt.
    pub prompt: Prompt,
    /// Output tokens after which the request ends. 0 asks for the prefill
    /// alone: it completes without output (vLLM's API refuses this; replayed
    /// traces contain it).
    pub max_tokens: u32,
    /// A sampled token that ends the request.
    pub stop_token: Option<u32>,
    /// Smaller is served first under the priority policy.
    pub priority: i32,
    /// Arrival time; breaks ties of priority, before order of submission.
    pub arrival_ns: u64,
    /// Adapter id, if any.
    pub lora: Option<u32>,
    /// Where the prompt's KV comes from and goes to.
    pub kv_role: KvRole,
}

/// Where a request stands. Names are vLLM's `RequestStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestStatus {
    /// In the waiting queue, never scheduled.
    Waiting,
    /// Holds blocks that a KV transfer is filling.
    WaitingForRemoteKv,
    /// Its KV has arrived; waits for admission, holding blocks.
    RemoteKvReady,
    /// In the running list.
    Running,
    /// Back in the waiting queue; its outputs will be recomputed.
    Preempted,
    /// Ended, its KV held for a transfer.
    HoldingKv,
    /// Ended; the slot is about to be reused.
    Finished,
}

/// Why a request ended. Names are vLLM's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was sampled.
    Stop,
    /// `max_tokens` or the model length was reached.
    Length,
    /// Aborted by the client.
    Abort,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) tag: u64,
    pub(crate) status: RequestStatus,
    pub(crate) prompt_tokens: u32,
    /// Known tokens: prompt and outputs so far.
    pub(crate) num_tokens: u32,
    /// Tokens whose KV is computed, or will be by the step in flight.
    pub(crate) num_computed_tokens: u32,
    /// A chunk that starts below this depth is prefill work, at or above it decode.
    pub(crate) prefill_target_tokens: u32,
    pub(crate) max_tokens: u32,
    pub(crate) stop_token: Option<u32>,
    pub(crate) priority: i32,
    pub(crate) arrival_ns: u64,
    pub(crate) sequence: u64,
    pub(crate) lora: Option<u32>,
    pub(crate) kv_role: KvRole,
    /// Bumped whenever the request enters or leaves a queue, so that stale
    /// queue entries can be told from live ones.
    pub(crate) queue_epoch: u32,
    pub(crate) block_table: Vec<BlockId>,
    pub(crate) block_hashes: Vec<BlockHash>,
    pub(crate) hasher: ChainHasher,
    /// Leading blocks already offered to the prefix cache.
    pub(crate) num_stored_blocks: u32,
}

impl Request {
    pub(crate) fn num_output_tokens(&self) -> u32 {
        self.num_tokens - self.prompt_tokens
    }

    /// Tokens still to be computed before the request decodes.
    pub(crate) fn outstanding_prefill_tokens(&self) -> u32 {
        self.prefill_target_tokens.saturating_sub(self.num_computed_tokens)
    }
}

/// Slots of live requests.
#[derive(Debug, Default)]
pub(crate) struct RequestTable {
    slots: Vec<Request>,
    vacant: Vec<u32>,
    /// Finished while a step in flight may still name them.
    retired: Vec<u32>,
}

impl RequestTable {
    pub(crate) fn insert(&mut self, request: Request) -> RequestId {
        match self.vacant.pop() {
            Some(slot) => {
                // Queues may still hold entries of the slot's former owner.
                let epoch = self.slots[slot as usize].queue_epoch + 1;
                self.slots[slot as usize] = Request { queue_epoch: epoch, ..request };
                RequestId(slot)
            }
            None => {
                self.slots.push(request);
                RequestId(self.slots.len() as u32 - 1)
            }
        }
    }

    pub(crate) fn retire(&mut self, id: RequestId) {
        let request = &mut self[id];
        request.status = RequestStatus::Finished;
        request.queue_epoch += 1;
        request.block_table = Vec::new();
        request.block_hashes = Vec::new();
        self.retired.push(id.0);
    }

    /// Lets retired slots be reused; only while no step is in flight.
    pub(crate) fn recycle(&mut self) {
        self.vacant.append(&mut self.retired);
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.vacant.len() - self.retired.len()
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = &Request> {
        self.slots.iter().filter(|request| request.status != RequestStatus::Finished)
    }
}

impl std::ops::Index<RequestId> for RequestTable {
    type Output = Request;

    #[inline]
    fn index(&self, id: RequestId) -> &Request {
        &self.slots[id.0 as usize]
    }
}

impl std::ops::IndexMut<RequestId> for RequestTable {
    #[inline]
    fn index_mut(&mut self, id: RequestId) -> &mut Request {
        &mut self.slots[id.0 as usize]
    }
}
