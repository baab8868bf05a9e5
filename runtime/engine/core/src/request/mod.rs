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

/// Dense id of a live request of one engine.
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
    /// In the waiting queue: its grammar is being compiled or has failed, or the request has not
    /// had its turn since.
    WaitingForGrammar,
    /// Holds blocks that a KV transfer is filling.
    WaitingForRemoteKv,
    /// Its KV has arrived; waits for admission, holding blocks.
    RemoteKvReady,
    /// It holds its slot and its blocks, and waits for the next part of its prompt.
    WaitingForInput,
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
    /// The outputs repeated themselves too often.
    Repetition,
    /// Aborted by the client.
    Abort,
    /// Its KV did not arrive ([`crate::LoadFailures::Fail`]), or its grammar cannot be compiled.
    Error,
}

/// The order of the fields puts those read in every step into one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Request {
    pub(crate) tag: u64,
    /// State of the block hash chain over all known tokens.
    pub(crate) hash_state: u64,
    /// Known tokens: prompt and outputs so far.
    pub(crate) num_tokens: u32,
    /// Tokens whose KV is computed, or will be by the steps in flight.
    pub(crate) num_computed_tokens: u32,
    pub(crate) prompt_tokens: u32,
    /// A chunk that starts below this depth is prefill work, at or above it decode.
    pub(crate) prefill_target_tokens: u32,
    /// Number of known tokens at which the request ends by length.
    pub(crate) end_tokens: u32,
    /// Slots of the block table.
    pub(crate) capacity_tokens: u32,
    /// Number of known tokens that completes the next block hash.
    pub(crate) next_hash_tokens: u32,
    /// Number of tokens that fills the next block, which is then offered to the prefix cache.
    pub(crate) next_store_tokens: u32,
    /// Scheduled in steps that have not been applied.
    pub(crate) num_in_flight_tokens: u32,
    /// The part of these that was scheduled before a preemption: their output is delivered, but
    /// does not count as computed now.
    pub(crate) num_stale_tokens: u32,
    /// Output tokens that steps in flight will bring if every draft is accepted.
    pub(crate) num_output_placeholders: u16,
    /// Draft tokens to be verified in the next step.
    pub(crate) num_draft_tokens: u16,
    pub(crate) status: RequestStatus,
    pub(crate) flags: Flags,

    pub(crate) max_tokens: u32,
    pub(crate) lora: Option<u32>,
    /// Bumped whenever the request enters or leaves a queue, so that stale
    /// queue entries can be distinguished from live ones.
    pub(crate) queue_epoch: u32,
    /// Place in a queue by rank, smaller first: the priority, or a policy's rank.
    pub(crate) rank: i64,
    pub(crate) stops: Option<Box<StopRules>>,
    pub(crate) arrival_ns: u64,
    pub(crate) sequence: u64,
    pub(crate) kv_role: KvRole,
    /// Stepped over, or loading KV, and not admitted since.
    pub(crate) deferred: bool,
    /// It is refused when it would be admitted.
    pub(crate) is_refused: bool,
    /// Its outputs follow a grammar.
    pub(crate) has_grammar: bool,
    /// Start order of its load of KV.
    pub(crate) load_order: u32,
    pub(crate) block_table: Vec<BlockId>,
    pub(crate) block_hashes: Vec<BlockHash>,
    /// Known tokens, or the outputs alone, if they are kept.
    pub(crate) tokens: Vec<u32>,
}

// Fields after the first line are read when a request arrives, ends or samples with rules; another line would
// cost every waiting request.
/// Stands for items that the key of a block leaves out.
const OMITTED_ITEMS: u64 = 0x6f6d_6974_7465_6421;

const _: () = assert!(std::mem::offset_of!(Request, max_tokens) == 64 && size_of::<Request>() == 192);

/// Flags of a request, one bit each; tests of several are of any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u16);

impl Flags {
    /// It may end before its length.
    pub(crate) const HAS_STOPS: Self = Self(1);
    pub(crate) const KEEPS_TOKENS: Self = Self(1 << 1);
    /// `block_hashes` covers all known tokens.
    pub(crate) const HASHED: Self = Self(1 << 2);
    /// Its latest chunk ended before the last known token.
    pub(crate) const PREFILL_CHUNK: Self = Self(1 << 3);
    pub(crate) const SKIPS_LOOKUP: Self = Self(1 << 4);
    /// Stale output is dropped, not delivered.
    pub(crate) const DROPS_STALE: Self = Self(1 << 5);
    /// Outputs are kept though the prompt's tokens are not.
    pub(crate) const KEEPS_OUTPUTS: Self = Self(1 << 6);
    /// Blocks that it may still take are counted as reserved.
    pub(crate) const RESERVES: Self = Self(1 << 7);
    /// Some of its multimodal items are not yet behind its computed tokens.
    pub(crate) const NEEDS_ENCODER: Self = Self(1 << 8);
    /// It sampled in a pipeline, and its next step is not due yet.
    pub(crate) const OUT_OF_TURN: Self = Self(1 << 9);
    /// It was preempted at least once.
    pub(crate) const WAS_PREEMPTED: Self = Self(1 << 10);
    /// It loads KV, or has a part of its prompt still to compute: loads leave it the blocks it needs.
    pub(crate) const IN_FLIGHT_PREFILL: Self = Self(1 << 11);
    /// The request's load has ended, and the scheduler has reached the request since.
    pub(crate) const TAKEN_OVER: Self = Self(1 << 12);
    /// A part of its loaded KV is missing.
    pub(crate) const LOAD_FAILED: Self = Self(1 << 13);
    /// Its load returned nothing; it waits at its place without blocks.
    pub(crate) const LOST_LOAD: Self = Self(1 << 14);
    /// Its prompt comes in parts.
    pub(crate) const RESUMABLE: Self = Self(1 << 15);
    /// Properties that prevent plain application of its steps.
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

    /// Leaves the last `tokens` tokens of a prompt to the engine that continues it, which gets one
    /// output. Hashes of blocks stay.
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

    /// Output tokens that are certain, unless the request is aborted.
    #[inline]
    pub(crate) fn certain_tokens(&self) -> u32 {
        if self.flags.has(Flags::HAS_STOPS) { 0 } else { self.end_tokens - self.num_tokens }
    }

    /// Tokens still to compute before the request decodes.
    #[inline]
    pub(crate) fn outstanding_prefill_tokens(&self) -> u32 {
        self.prefill_target_tokens.saturating_sub(self.num_computed_tokens)
    }

    /// The end of a request's prefill: a request with output recomputes that after a preemption, except for
    /// the last token.
    pub(crate) fn prefill_end(&self) -> u32 {
        self.prompt_tokens.max(self.num_tokens - 1)
    }

    /// Reserves capacity for `blocks` blocks in total and their metadata, so that a running request
    /// does not allocate.
    pub(crate) fn reserve(&mut self, blocks: u32, block_size_tokens: u32) {
        let missing = |have: usize| (blocks as usize).saturating_sub(have);
        self.block_table.reserve_exact(missing(self.block_table.len()));
        // The last block is hashed only if it is full.
        let full = blocks.min(self.end_tokens / block_size_tokens) as usize;
        self.block_hashes.reserve_exact(full.saturating_sub(self.block_hashes.len()));
        if self.flags.has(Flags::KEEPS_ANY) {
            let held = self.block_table.len() as u32;
            let slots = u64::from(blocks.saturating_sub(held)) * u64::from(block_size_tokens);
            let more = u64::from(self.end_tokens - self.num_tokens).min(slots);
            self.tokens.reserve_exact(more as usize);
        }
    }

    /// Hashes the block in which the prompt ends, to be completed by outputs. If the key of another
    /// block has all of these items, this block gets only the last item. It also differs from every
    /// other block of this kind.
    pub(crate) fn omit_items(&mut self, items: &[PromptItem], block_size_tokens: u32) {
        let start = self.block_hashes.len() as u32 * block_size_tokens;
        let [.., before, _] = items else { return };
        if start > 0 && before.end_tokens() > start {
            self.hash_state = hash::mark(self.hash_state, OMITTED_ITEMS);
        }
    }

    /// Completes `block_hashes`, if the tokens were only kept so far.
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

    /// Hashes all tokens, which have changed, from the state before the first one.
    pub(crate) fn hash_again(&mut self, initial_state: u64, block_size_tokens: u32) {
        self.flags.set(Flags::HASHED, false);
        self.hash_state = initial_state;
        self.block_hashes.clear();
        self.next_hash_tokens = block_size_tokens;
        self.ensure_hashed(block_size_tokens);
    }

    /// Appends an output token.
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

    /// Appends this number of outputs that follow from `seed` and are not kept.
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

    /// Whether the request ends with its latest output, `token`.
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

    /// The outputs so far; none unless they are kept.
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

/// When a request ends before its length, as in vLLM's `check_stop` (0.30 to 0.33,
/// `vllm/v1/core/sched/utils.py`). For each output token the order is: `tokens`, the length,
/// `repetition`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopRules {
    /// Tokens that end the request, in any order: the end-of-sequence token and the client's
    /// `stop_token_ids`.
    pub tokens: Vec<u32>,
    /// Number of output tokens before which `repetition` does not apply. `tokens` still apply:
    /// vLLM's sampler never returns one of those earlier, and neither may the
    /// [`crate::TokenSource`].
    pub min_tokens: u32,
    /// Ends outputs that repeat themselves.
    pub repetition: Option<Repetition>,
}

/// Ends a request whose outputs repeat a pattern `min_count` times in a row (vLLM's
/// `RepetitionDetectionParams`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repetition {
    /// Length of the longest pattern that counts, in tokens. With 0 none does.
    pub max_pattern_tokens: u32,
    /// Length of the shortest pattern that counts, in tokens. 0 is the same as 1.
    pub min_pattern_tokens: u32,
    /// Number of times that the pattern must be there in all. Below 2 nothing counts.
    pub min_count: u32,
}

impl StopRules {
    /// One token that ends the request, and nothing else does.
    #[must_use]
    pub fn of_token(token: u32) -> Self {
        Self { tokens: vec![token], ..Self::default() }
    }

    /// Converts the rules into their lookup form; none if they can never end a request.
    pub(crate) fn prepared(mut self: Box<Self>) -> Option<Box<Self>> {
        // Clients may name half a vocabulary.
        self.tokens.sort_unstable();
        self.repetition = self.repetition.filter(Repetition::can_end_outputs);
        (!self.tokens.is_empty() || self.repetition.is_some()).then_some(self)
    }

    /// Whether `token` ends the request. Asked of prepared rules only.
    pub(crate) fn end_at_token(&self, token: u32) -> bool {
        self.tokens.binary_search(&token).is_ok()
    }

    /// Whether these outputs repeat themselves too often.
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
            // Every token equals the one a pattern before it. The end differs soonest.
            tail[pattern..].iter().rev().eq(tail[..tail.len() - pattern].iter().rev())
        })
    }
}
