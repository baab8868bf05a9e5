//! A request inside the engine.

mod prompt;
pub(crate) mod queue;
mod spec;
pub(crate) mod table;

pub use prompt::Prompt;
pub use spec::{DrawnOutputs, KvRole, RequestSpec};

use crate::encoder::item::PromptItem;
use crate::kv::hash::{self, BlockHash};
use crate::kv::pool::BlockId;
use crate::seed;

/// Id of a live request in one engine. Ids are dense and reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u32);

impl RequestId {
    /// The id as an index, for tables outside the engine.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Status of a request, with the names of vLLM's `RequestStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RequestStatus {
    /// In the waiting queue, never scheduled.
    Waiting,
    /// In the waiting queue. Its grammar is being compiled, or has failed, or the scheduler has not reached the request
    /// since then.
    WaitingForGrammar,
    /// Holds blocks that a KV transfer is filling.
    WaitingForRemoteKv,
    /// Holds blocks with the arrived KV and waits for admission.
    RemoteKvReady,
    /// Holds its running slot and its blocks, and waits for the next part of its prompt.
    WaitingForInput,
    /// In the running list.
    Running,
    /// Back in the waiting queue after a preemption. Its outputs will be recomputed.
    Preempted,
    /// Ended, with its KV held for a transfer.
    HoldingKv,
    /// Ended. The slot is about to be reused.
    Finished,
}

/// The reason why a request ended. The names are vLLM's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was sampled.
    Stop,
    /// `max_tokens` or `max_model_len` was reached.
    Length,
    /// The outputs repeated a pattern too often.
    Repetition,
    /// Aborted by the client.
    Abort,
    /// The KV did not arrive ([`crate::LoadFailures::Fail`]), or the grammar could not be compiled.
    Error,
}

/// A request. The fields are ordered so that those read in every step share one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Request {
    pub(crate) tag: u64,
    /// State of the block hash chain over all known tokens.
    pub(crate) hash_state: u64,
    /// Number of known tokens: prompt plus outputs so far.
    pub(crate) num_tokens: u32,
    /// Number of tokens whose KV is computed, or will be by the steps in flight.
    pub(crate) num_computed_tokens: u32,
    pub(crate) prompt_tokens: u32,
    /// A chunk that starts before this position is prefill, otherwise decode.
    pub(crate) prefill_target_tokens: u32,
    /// Number of known tokens at which the request ends by length.
    pub(crate) end_tokens: u32,
    pub(crate) capacity_tokens: u32,
    /// Number of known tokens at which the next block hash is complete.
    pub(crate) next_hash_tokens: u32,
    /// Number of tokens at which the next block is full and is offered to the prefix cache.
    pub(crate) next_store_tokens: u32,
    /// Number of tokens scheduled in steps that have not been applied.
    pub(crate) num_in_flight_tokens: u32,
    /// Number of tokens in flight that were scheduled before a preemption. Their output is delivered, but they
    /// do not count as computed any more.
    pub(crate) num_stale_tokens: u32,
    /// Number of output tokens that the steps in flight bring if every draft is accepted.
    pub(crate) num_output_placeholders: u16,
    pub(crate) num_draft_tokens: u16,
    pub(crate) status: RequestStatus,
    pub(crate) flags: Flags,

    pub(crate) max_tokens: u32,
    pub(crate) lora: Option<u32>,
    /// Incremented whenever the request enters or leaves a queue, so that stale
    /// queue entries can be recognized.
    pub(crate) queue_epoch: u32,
    /// Rank in a queue, smaller first: the priority, or a policy's rank.
    pub(crate) rank: i64,
    pub(crate) stops: Option<Box<StopRules>>,
    pub(crate) arrival_ns: u64,
    pub(crate) sequence: u64,
    pub(crate) kv_role: KvRole,
    /// Whether the request was skipped or loads KV, and was not admitted since.
    pub(crate) deferred: bool,
    /// Whether the request is refused when it would be admitted.
    pub(crate) is_refused: bool,
    pub(crate) has_grammar: bool,
    /// Sequence number of the request's latest load.
    pub(crate) load_order: u32,
    pub(crate) block_table: Vec<BlockId>,
    pub(crate) block_hashes: Vec<BlockHash>,
    /// All known tokens, only the outputs, or nothing, depending on what the request keeps.
    pub(crate) tokens: Vec<u32>,
}

/// Hashed in place of items that the hash of a block leaves out.
const OMITTED_ITEMS: u64 = 0x6f6d_6974_7465_6421;

// Fields after the first cache line are read when a request arrives, ends or samples with stop rules. A fourth
// line would cost memory for every waiting request.
const _: () = assert!(std::mem::offset_of!(Request, max_tokens) == 64 && size_of::<Request>() == 192);

/// Flags of a request, one bit each. A test of several flags is true if any of them is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u16);

impl Flags {
    /// The request may end before its maximum length.
    pub(crate) const HAS_STOPS: Self = Self(1);
    pub(crate) const KEEPS_TOKENS: Self = Self(1 << 1);
    /// `block_hashes` covers all known tokens.
    pub(crate) const HASHED: Self = Self(1 << 2);
    /// The latest chunk ended before the last known token.
    pub(crate) const PREFILL_CHUNK: Self = Self(1 << 3);
    pub(crate) const SKIPS_LOOKUP: Self = Self(1 << 4);
    /// Stale output is dropped, not delivered.
    pub(crate) const DROPS_STALE: Self = Self(1 << 5);
    /// Outputs are kept although the prompt's tokens are not.
    pub(crate) const KEEPS_OUTPUTS: Self = Self(1 << 6);
    /// The blocks that the request may still need are counted as reserved.
    pub(crate) const RESERVES: Self = Self(1 << 7);
    /// The computed tokens do not cover all multimodal items yet.
    pub(crate) const NEEDS_ENCODER: Self = Self(1 << 8);
    /// The request sampled in a pipeline, and may not decode again yet.
    pub(crate) const OUT_OF_TURN: Self = Self(1 << 9);
    /// The request was preempted at least once.
    pub(crate) const WAS_PREEMPTED: Self = Self(1 << 10);
    /// The request loads KV, or part of its prompt must still be computed. Loads leave free the blocks that it needs.
    pub(crate) const IN_FLIGHT_PREFILL: Self = Self(1 << 11);
    /// The request's load has ended, and the scheduler has reached the request since.
    pub(crate) const TAKEN_OVER: Self = Self(1 << 12);
    /// Part of the loaded KV is missing.
    pub(crate) const LOAD_FAILED: Self = Self(1 << 13);
    /// The load brought nothing. The request keeps its place in the queue, without blocks.
    pub(crate) const LOST_LOAD: Self = Self(1 << 14);
    /// The prompt arrives in parts.
    pub(crate) const RESUMABLE: Self = Self(1 << 15);
    pub(crate) const IS_NOT_PLAIN: Self = Self(Self::HAS_STOPS.0 | Self::NEEDS_ENCODER.0);
    pub(crate) const KEEPS_ANY: Self = Self(Self::KEEPS_TOKENS.0 | Self::KEEPS_OUTPUTS.0);

    #[inline]
    pub(crate) fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, flag: Self, on: bool) {
        if on {
            self.0 |= flag.0;
        } else {
            self.0 &= !flag.0;
        }
    }
}

impl Request {
    pub(crate) fn new(spec: RequestSpec, sequence: u64, block_size_tokens: u32, max_model_len: u32) -> Self {
        let Prompt { len_tokens, tokens, block_hashes, hasher, blocks, keeps_tokens, is_hashed, items: _ } =
            spec.prompt;
        let mut flags = Flags::default();
        let stops = spec.stops.and_then(StopRules::prepared);
        flags.set(Flags::HAS_STOPS, stops.is_some());
        flags.set(Flags::KEEPS_TOKENS, keeps_tokens);
        let asks_outputs = stops.as_ref().is_some_and(|stops| stops.repetition.is_some());
        flags.set(Flags::KEEPS_OUTPUTS, asks_outputs && !keeps_tokens);
        flags.set(Flags::HASHED, is_hashed);
        flags.set(Flags::SKIPS_LOOKUP, spec.skip_reading_prefix_cache);
        let prefill_target_tokens = match spec.kv_role {
            KvRole::Destination => 0,
            KvRole::Local | KvRole::Source => len_tokens,
        };
        Self {
            tag: spec.tag,
            hash_state: hasher.state(),
            num_tokens: len_tokens,
            num_computed_tokens: 0,
            prompt_tokens: len_tokens,
            prefill_target_tokens,
            end_tokens: len_tokens.saturating_add(spec.max_tokens).min(max_model_len),
            capacity_tokens: 0,
            next_hash_tokens: (block_hashes.len() as u32 + 1)
                .saturating_mul(block_size_tokens)
                .saturating_add(blocks.lookahead_tokens),
            next_store_tokens: block_size_tokens,
            num_in_flight_tokens: 0,
            num_stale_tokens: 0,
            num_output_placeholders: 0,
            num_draft_tokens: 0,
            status: RequestStatus::Waiting,
            flags,
            max_tokens: spec.max_tokens,
            rank: spec.priority.into(),
            stops,
            arrival_ns: spec.arrival_ns,
            sequence,
            lora: spec.lora,
            queue_epoch: 0,
            kv_role: spec.kv_role,
            deferred: false,
            is_refused: spec.is_refused,
            has_grammar: false,
            load_order: 0,
            block_table: Vec::new(),
            block_hashes,
            tokens,
        }
    }

    /// Leaves the last `tokens` tokens of a prompt to the engine that continues the request. This request then gets one
    /// output token. The block hashes stay.
    pub(crate) fn leave_last(&mut self, tokens: u32, block_size_tokens: u32) {
        self.ensure_hashed(block_size_tokens);
        self.num_tokens -= tokens;
        self.prompt_tokens = self.num_tokens;
        self.prefill_target_tokens = self.prefill_target_tokens.min(self.num_tokens);
        self.max_tokens = 1;
        self.end_tokens = self.num_tokens + 1;
        if self.flags.has(Flags::KEEPS_TOKENS) {
            self.tokens.truncate(self.num_tokens as usize);
        }
    }

    #[inline]
    pub(crate) fn num_output_tokens(&self) -> u32 {
        self.num_tokens - self.prompt_tokens
    }

    /// Number of output tokens that are certain unless the request is aborted.
    #[inline]
    pub(crate) fn certain_tokens(&self) -> u32 {
        if self.flags.has(Flags::HAS_STOPS) { 0 } else { self.end_tokens - self.num_tokens }
    }

    /// Number of tokens to compute before the request decodes.
    #[inline]
    pub(crate) fn outstanding_prefill_tokens(&self) -> u32 {
        self.prefill_target_tokens.saturating_sub(self.num_computed_tokens)
    }

    /// The end of a request's prefill. After a preemption, outputs except the last one are recomputed, too.
    pub(crate) fn prefill_end(&self) -> u32 {
        self.prompt_tokens.max(self.num_tokens - 1)
    }

    /// Reserves capacity for `blocks` blocks in total and their hashes, so that a running request
    /// does not allocate.
    pub(crate) fn reserve(&mut self, blocks: u32, block_size_tokens: u32) {
        let missing = |have: usize| (blocks as usize).saturating_sub(have);
        self.block_table.reserve_exact(missing(self.block_table.len()));
        // The last block is hashed only if it becomes full.
        let full = blocks.min(self.end_tokens / block_size_tokens) as usize;
        self.block_hashes.reserve_exact(full.saturating_sub(self.block_hashes.len()));
        if self.flags.has(Flags::KEEPS_ANY) {
            let held = self.block_table.len() as u32;
            let slots = u64::from(blocks.saturating_sub(held)) * u64::from(block_size_tokens);
            let more = u64::from(self.end_tokens - self.num_tokens).min(slots);
            self.tokens.reserve_exact(more as usize);
        }
    }

    /// Marks the hash of the block in which the prompt ends and which outputs will complete. Its hash covers only the
    /// last of its items, so it must differ from the hash of a block that covers all of them.
    pub(crate) fn omit_items(&mut self, items: &[PromptItem], block_size_tokens: u32) {
        let start = self.block_hashes.len() as u32 * block_size_tokens;
        let [.., before, _] = items else { return };
        if start > 0 && before.end_tokens() > start {
            self.hash_state = hash::mark(self.hash_state, OMITTED_ITEMS);
        }
    }

    /// Computes missing `block_hashes`, if only tokens were kept so far.
    pub(crate) fn ensure_hashed(&mut self, block_size_tokens: u32) {
        if self.flags.has(Flags::HASHED) {
            return;
        }
        self.flags.set(Flags::HASHED, true);
        let tokens = std::mem::take(&mut self.tokens);
        for (index, &token) in tokens.iter().enumerate() {
            self.extend_hash(index as u32 + 1, token, block_size_tokens);
        }
        self.tokens = tokens;
    }

    /// Hashes all tokens again after a change, from the state before the first token.
    pub(crate) fn hash_again(&mut self, initial_state: u64, block_size_tokens: u32) {
        self.flags.set(Flags::HASHED, false);
        self.hash_state = initial_state;
        self.block_hashes.clear();
        self.next_hash_tokens = block_size_tokens;
        self.ensure_hashed(block_size_tokens);
    }

    #[inline]
    pub(crate) fn push_output(&mut self, token: u32, caching: bool, block_size_tokens: u32) {
        self.num_tokens += 1;
        if caching {
            self.extend_hash(self.num_tokens, token, block_size_tokens);
        }
        if self.flags.has(Flags::KEEPS_ANY) {
            self.tokens.push(token);
        }
    }

    /// Appends `outputs` output tokens that are derived from `seed` and not kept.
    pub(crate) fn push_drawn_outputs(&mut self, seed: u64, outputs: u32, caching: bool, block_size_tokens: u32) {
        let end = self.num_tokens + outputs;
        // Tokens after the last full block are never needed.
        if caching && self.next_hash_tokens <= self.end_tokens {
            let mut state = self.hash_state;
            let mut tokens = self.num_tokens;
            while tokens < end {
                let upto = end.min(self.next_hash_tokens);
                for place in tokens..upto {
                    state = hash::fold_token(state, seed::output_token(seed, place - self.prompt_tokens));
                }
                tokens = upto;
                if tokens == self.next_hash_tokens {
                    state = hash::end_block(state);
                    self.block_hashes.push(hash::identity(state));
                    self.next_hash_tokens += block_size_tokens;
                }
            }
            self.hash_state = state;
        }
        self.num_tokens = end;
    }

    pub(crate) fn finish_after(&self, token: u32) -> Option<FinishReason> {
        let stops = self.stops.as_deref();
        if stops.is_some_and(|stops| stops.end_at_token(token)) {
            return Some(FinishReason::Stop);
        }
        if self.num_tokens >= self.end_tokens {
            return Some(FinishReason::Length);
        }
        let repeats = stops.is_some_and(|stops| stops.end_by_repetition(self.kept_outputs()));
        repeats.then_some(FinishReason::Repetition)
    }

    fn kept_outputs(&self) -> &[u32] {
        if self.flags.has(Flags::KEEPS_TOKENS) { &self.tokens[self.prompt_tokens as usize..] } else { &self.tokens }
    }

    #[inline]
    fn extend_hash(&mut self, num_tokens: u32, token: u32, block_size_tokens: u32) {
        self.hash_state = hash::fold_token(self.hash_state, token);
        if num_tokens == self.next_hash_tokens {
            self.hash_state = hash::end_block(self.hash_state);
            self.block_hashes.push(hash::identity(self.hash_state));
            self.next_hash_tokens += block_size_tokens;
        }
    }
}

/// When a request ends before its maximum length, as in vLLM's `check_stop` (0.30 to 0.33,
/// `vllm/v1/core/sched/utils.py`). Each output token is checked first against `tokens`, then against the length, then
/// against `repetition`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopRules {
    /// Tokens that end the request, in any order: the end-of-sequence token and the client's
    /// `stop_token_ids`.
    pub tokens: Vec<u32>,
    /// Number of output tokens before which `repetition` does not apply. `tokens` always apply:
    /// vLLM's sampler does not return stop tokens before that, and the
    /// [`crate::TokenSource`] must not either.
    pub min_tokens: u32,
    /// Ends outputs that repeat a pattern.
    pub repetition: Option<Repetition>,
}

/// Ends a request whose outputs repeat a pattern `min_count` times in a row (vLLM's
/// `RepetitionDetectionParams`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repetition {
    /// Maximum pattern length in tokens. 0 turns the detection off.
    pub max_pattern_tokens: u32,
    /// Minimum pattern length in tokens. 0 means 1.
    pub min_pattern_tokens: u32,
    /// Number of times in a row that the pattern must occur. Values below 2 turn the detection off.
    pub min_count: u32,
}

impl StopRules {
    /// Rules with which only one token ends the request.
    #[must_use]
    pub fn of_token(token: u32) -> Self {
        Self { tokens: vec![token], ..Self::default() }
    }

    /// Converts the rules into their lookup form. None if they can never end a request.
    pub(crate) fn prepared(mut self: Box<Self>) -> Option<Box<Self>> {
        // Clients may list many tokens.
        self.tokens.sort_unstable();
        self.repetition = self.repetition.filter(Repetition::can_end_outputs);
        (!self.tokens.is_empty() || self.repetition.is_some()).then_some(self)
    }

    /// Whether `token` ends the request. The rules must be prepared.
    pub(crate) fn end_at_token(&self, token: u32) -> bool {
        self.tokens.binary_search(&token).is_ok()
    }

    /// Whether `outputs` end with too many repetitions.
    pub(crate) fn end_by_repetition(&self, outputs: &[u32]) -> bool {
        outputs.len() >= self.min_tokens as usize
            && self.repetition.is_some_and(|repetition| repetition.is_at_end_of(outputs))
    }
}

impl Repetition {
    fn can_end_outputs(&self) -> bool {
        self.min_count >= 2 && self.max_pattern_tokens >= self.min_pattern_tokens.max(1)
    }

    fn is_at_end_of(&self, outputs: &[u32]) -> bool {
        let count = self.min_count as usize;
        let longest = (self.max_pattern_tokens as usize).min(outputs.len() / count);
        (self.min_pattern_tokens.max(1) as usize..=longest).any(|pattern| {
            let tail = &outputs[outputs.len() - pattern * count..];
            // Compares each token with the token one pattern earlier, from the end, where differences are found
            // soonest.
            tail[pattern..].iter().rev().eq(tail[..tail.len() - pattern].iter().rev())
        })
    }
}
