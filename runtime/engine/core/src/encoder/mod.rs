//! The encoder of a multimodal model: the items that it computes in each step, and its cache.
//!
//! Owns the items of requests and the encoder cache. It decides as vLLM 0.32 and 0.33 do
//! (`_try_schedule_encoder_inputs` and `_free_encoder_inputs` of `vllm/v1/core/sched/scheduler.py`).
//! An item is computed as a whole, before the first of its placeholder tokens. A chunk ends before an item that
//! exceeds the compute budget of the step or the free space of the cache. An engine creates its [`Encoder`] when
//! the first request with items arrives.

mod cache;
mod input_ids;
pub(crate) mod item;

pub use item::PromptItem;

use self::cache::EncoderCache;
use self::input_ids::InputIds;
use crate::config::{EngineConfig, SchedulerRules};
use crate::plan::{EncoderInput, StepPlan};
use crate::request::RequestId;
use crate::stats::EncoderCacheStats;

#[derive(Debug)]
pub(crate) struct Encoder {
    cache: EncoderCache,
    /// Replaces the cache in encoder-decoder models, where the decoder reads the outputs by cross attention.
    unshared: Option<UnsharedOutputs>,
    budget_embeds: u32,
    /// Whether a larger item raises the budget. (vLLM takes the largest item that the model allows.)
    budget_grows: bool,
    cache_grows: bool,
    rules: SchedulerRules,
    is_chunking_off: bool,
    /// Number of tokens after a chunk that a drafter also reads.
    lookahead_tokens: u32,
    requests: Vec<Option<Box<RequestItems>>>,
    decision: Decision,
    passed: Vec<u32>,
}

/// Embeddings in the encoder cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncoderCacheUse {
    /// All embeddings in the cache.
    pub cached_embeds: u32,
    /// Embeddings that requests reference. The other embeddings may be evicted.
    pub referenced_embeds: u32,
}

#[derive(Debug)]
struct RequestItems {
    items: Vec<PromptItem>,
    held: Held,
}

/// Items that a request references.
#[derive(Debug, Default)]
struct Held {
    /// Indices of the items.
    places: InputIds,
    entries: Vec<(u64, u32)>,
}

/// Encoder inputs of the latest chunk, until the chunk is scheduled or dropped.
#[derive(Debug, Default)]
struct Decision {
    /// Items to compute.
    inputs: Vec<u32>,
    /// Items with the same content as an item that is about to be computed.
    duplicates: Vec<u32>,
    /// Number of cached items that this request looks up for the first time.
    num_hits: u32,
    /// Remaining compute budget.
    budget_embeds: u32,
}

fn key_of(item: &PromptItem) -> (u64, u32) {
    (item.identity(), item.num_embeds())
}

fn embeds_of(items: &[PromptItem]) -> u32 {
    items.iter().map(PromptItem::num_embeds).fold(0, u32::saturating_add)
}

impl Decision {
    /// Schedules all items of an encoder-decoder prompt, or none.
    fn computes_all(&mut self, items: &[PromptItem], outputs: &UnsharedOutputs) -> bool {
        let needed = embeds_of(items);
        if needed > self.budget_embeds || !outputs.has_room(needed) {
            return false;
        }
        self.budget_embeds -= needed;
        self.inputs.extend(0..items.len() as u32);
        true
    }
}

impl Encoder {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        Self {
            cache: EncoderCache::new(config.encoder_cache_embeds()),
            unshared: config.is_encoder_decoder().then(|| UnsharedOutputs::new(config.encoder_cache_embeds())),
            budget_embeds: config.encoder_budget_embeds(),
            budget_grows: config.encoder_budget_grows(),
            cache_grows: config.encoder_cache_grows(),
            rules: config.rules(),
            is_chunking_off: config.disable_chunked_mm_input(),
            lookahead_tokens: config.drafting().prefill_lookahead_tokens,
            requests: Vec::new(),
            decision: Decision::default(),
            passed: Vec::new(),
        }
    }

    pub(crate) fn cache_use(&self) -> EncoderCacheUse {
        match &self.unshared {
            Some(outputs) => {
                EncoderCacheUse { cached_embeds: outputs.num_used(), referenced_embeds: outputs.num_used() }
            }
            None => EncoderCacheUse {
                cached_embeds: self.cache.num_cached(),
                referenced_embeds: self.cache.num_referenced(),
            },
        }
    }

    pub(crate) fn budget_embeds(&self) -> u32 {
        self.budget_embeds
    }

    /// Registers the items of a new request, ordered by position. Without a configured limit, the largest item
    /// raises the budget and the capacity.
    pub(crate) fn enter(&mut self, id: RequestId, items: Vec<PromptItem>) {
        let largest = items.iter().map(PromptItem::num_embeds).max().unwrap_or(0);
        if self.budget_grows {
            self.budget_embeds = self.budget_embeds.max(largest);
        }
        if self.cache_grows {
            self.cache.grow_to(largest);
            if let Some(outputs) = &mut self.unshared {
                outputs.grow_to(largest);
            }
        }
        if self.requests.len() <= id.index() {
            self.requests.resize_with(id.index() + 1, || None);
        }
        self.requests[id.index()] = Some(Box::new(RequestItems { items, held: Held::default() }));
    }

    /// Drops the references and items of a request that has ended.
    pub(crate) fn forget(&mut self, id: RequestId) {
        self.release(id);
        if let Some(place) = self.requests.get_mut(id.index()) {
            *place = None;
        }
    }

    /// Clears the cache. Running requests keep their encoder outputs.
    pub(crate) fn reset(&mut self) {
        self.cache.reset();
        if let Some(outputs) = &mut self.unshared {
            outputs.reset();
        }
        self.requests.iter_mut().flatten().for_each(|request| request.held = Held::default());
    }

    /// Chooses the items for a chunk of `tokens` tokens that follows `computed` tokens, within the compute budget.
    /// Returns how many tokens the chunk may have. Cached items are referenced from now on, even if the
    /// chunk is not scheduled.
    pub(crate) fn cut_chunk(&mut self, id: RequestId, computed: u32, tokens: u32, budget_embeds: u32) -> u32 {
        let decision = &mut self.decision;
        decision.inputs.clear();
        decision.duplicates.clear();
        decision.num_hits = 0;
        decision.budget_embeds = budget_embeds;
        let Some(Some(request)) = self.requests.get_mut(id.index()) else { return tokens };
        let RequestItems { items, held } = &mut **request;
        if let Some(outputs) = &self.unshared {
            return if computed > 0 || decision.computes_all(items, outputs) { tokens } else { 0 };
        }
        let end = computed.saturating_add(tokens);
        let read_end = end.saturating_add(self.lookahead_tokens);
        let computed_and_read = computed.saturating_add(self.lookahead_tokens);
        let first = items.partition_point(|item| item.end_tokens() <= computed);
        let mut to_compute_embeds = 0;
        for (index, item) in items.iter().enumerate().skip(first) {
            let start = item.offset_tokens();
            if start >= read_end {
                break;
            }
            // Only under some rules, an item at the start of a chunk is also kept whole.
            let may_be_whole = computed < start || computed == start && self.rules.keeps_first_item_whole();
            let is_split = self.is_chunking_off && may_be_whole && end < item.end_tokens();
            if is_split && self.rules.keeps_cached_items_whole() {
                return start.saturating_sub(computed_and_read);
            }
            let key = key_of(item);
            if decision.inputs.iter().any(|&other| key_of(&items[other as usize]) == key) {
                if self.rules.refers_at_every_place() {
                    decision.duplicates.push(index as u32);
                }
                continue;
            }
            if self.cache.contains(key) {
                decision.num_hits += u32::from(held.hold(&mut self.cache, items, index as u32));
                continue;
            }
            if is_split {
                return start.saturating_sub(computed_and_read);
            }
            let num_embeds = item.num_embeds();
            if num_embeds > decision.budget_embeds || !self.cache.make_room(num_embeds + to_compute_embeds) {
                return if self.rules.reads_uncomputed_items_as_text() {
                    tokens.min(start.saturating_sub(computed))
                } else {
                    start.saturating_sub(computed_and_read)
                };
            }
            let needed_end = if self.rules.computes_items_read_ahead() { read_end } else { end };
            if item.has_embeds_within(computed, needed_end) {
                to_compute_embeds += num_embeds;
                decision.budget_embeds -= num_embeds;
                decision.inputs.push(index as u32);
            }
        }
        tokens
    }

    /// Adds the items of the latest chunk to the cache and to the plan.
    /// Returns the remaining compute budget if anything is computed.
    pub(crate) fn commit(
        &mut self,
        id: RequestId,
        tag: u64,
        plan: &mut StepPlan,
        stats: &mut EncoderCacheStats,
    ) -> Option<u32> {
        let Some(Some(request)) = self.requests.get_mut(id.index()) else { return None };
        let RequestItems { items, held } = &mut **request;
        let decision = &self.decision;
        for &input in &decision.inputs {
            let (identity, num_embeds) = key_of(&items[input as usize]);
            if let Some(outputs) = &mut self.unshared {
                outputs.take(identity, num_embeds);
            } else {
                self.cache.insert((identity, num_embeds));
                held.take_computed(items, input);
            }
            plan.add_encoder_input(EncoderInput { request: id, tag, input, identity, num_embeds });
            stats.computed_items += 1;
            stats.computed_embeds += u64::from(num_embeds);
        }
        let mut hits = decision.num_hits;
        for &input in &decision.duplicates {
            hits += u32::from(held.hold(&mut self.cache, items, input));
        }
        stats.hits += u64::from(hits);
        stats.queries += u64::from(hits) + decision.inputs.len() as u64;
        (!decision.inputs.is_empty()).then_some(decision.budget_embeds)
    }

    /// Embeddings that the latest chunk computes.
    pub(crate) fn decided_embeds(&self, id: RequestId) -> u32 {
        let Some(Some(request)) = self.requests.get(id.index()) else { return 0 };
        self.decision.inputs.iter().map(|&input| request.items[input as usize].num_embeds()).sum()
    }

    /// Drops the references to items that end within the first `processed` tokens. Returns whether
    /// the request needs the encoder no more, as long as it is not preempted.
    pub(crate) fn pass(&mut self, id: RequestId, processed: u32) -> bool {
        let Some(Some(request)) = self.requests.get_mut(id.index()) else { return true };
        let RequestItems { items, held } = &mut **request;
        if let Some(outputs) = &mut self.unshared {
            outputs.give_back(if processed > 0 { embeds_of(items) } else { 0 });
            return false;
        }
        let ahead = if self.rules.reads_uncomputed_items_as_text() { 0 } else { self.lookahead_tokens };
        let is_passed = |input: u32| items[input as usize].end_tokens().saturating_add(ahead) <= processed;
        self.passed.clear();
        self.passed.extend(held.places.iter().filter(|&input| is_passed(input)));
        let until_last = self.rules.refers_until_last_place();
        for &input in &self.passed {
            held.let_go(&mut self.cache, items, input, until_last);
        }
        held.places.is_empty() && items.last().is_none_or(|last| last.end_tokens() <= processed)
    }

    /// Drops all references of a request. Returns whether the request has items.
    pub(crate) fn release(&mut self, id: RequestId) -> bool {
        let Some(Some(request)) = self.requests.get_mut(id.index()) else { return false };
        let RequestItems { items, held } = &mut **request;
        if let Some(outputs) = &mut self.unshared {
            outputs.give_back(embeds_of(items));
            return true;
        }
        self.passed.clear();
        self.passed.extend(held.places.iter());
        for &input in &self.passed {
            held.let_go(&mut self.cache, items, input, self.rules.refers_until_last_place());
        }
        true
    }

    pub(crate) fn list_evicted(&mut self, plan: &mut StepPlan) {
        if let Some(outputs) = &mut self.unshared {
            outputs.take_passed(&mut plan.freed_encoder_items);
            return;
        }
        let lists_returned = !self.rules.lists_lasting_evictions_alone();
        self.cache.take_evicted(lists_returned, &mut plan.freed_encoder_items);
    }
}

impl Held {
    /// References an item that has just been added to the cache.
    fn take_computed(&mut self, items: &[PromptItem], input: u32) {
        self.places.insert(input);
        self.entries.push(key_of(&items[input as usize]));
    }

    /// References the cache entry of an item. Returns false if this position already did.
    fn hold(&mut self, cache: &mut EncoderCache, items: &[PromptItem], input: u32) -> bool {
        let key = key_of(&items[input as usize]);
        if !self.entries.contains(&key) {
            self.entries.push(key);
            cache.refer(key);
        }
        self.places.insert(input)
    }

    /// Drops a position of an item. All positions of the item share one reference, which ends with the last position
    /// if `until_last`, otherwise with the first.
    fn let_go(&mut self, cache: &mut EncoderCache, items: &[PromptItem], input: u32, until_last: bool) {
        let key = key_of(&items[input as usize]);
        let is_held = self.places.remove(input);
        if !is_held || until_last && self.places.iter().any(|other| key_of(&items[other as usize]) == key) {
            return;
        }
        if let Some(entry) = self.entries.iter().position(|&entry| entry == key) {
            self.entries.swap_remove(entry);
            cache.drop_reference(key);
        }
    }
}

// Encoder outputs of encoder-decoder models. Requests do not share them (vLLM's `EncoderDecoderCacheManager`, which is
// the same from 0.27 to 0.33).
//
// Cross-attention layers keep their inputs, so an encoder output is needed for one step only. Capacity is
// counted as in vLLM: an item is charged when it is computed. Its request gives the charge back
// with each applied step, and again when it ends, is preempted or finds no blocks. So the free
// capacity can exceed the total capacity.

#[derive(Debug)]
struct UnsharedOutputs {
    num_slots: u32,
    num_free: i64,
    /// Identities of the items that the current step computes.
    computed: Vec<u64>,
    /// Items of the previous step, whose outputs are no longer needed.
    passed: Vec<u64>,
}

impl UnsharedOutputs {
    fn new(num_slots: u32) -> Self {
        Self { num_slots, num_free: num_slots.into(), computed: Vec::new(), passed: Vec::new() }
    }

    fn grow_to(&mut self, num_slots: u32) {
        let more = num_slots.saturating_sub(self.num_slots);
        self.num_slots += more;
        self.num_free += i64::from(more);
    }

    fn reset(&mut self) {
        *self = Self::new(self.num_slots);
    }

    /// Number of embeddings charged; 0 if more has been given back than charged.
    fn num_used(&self) -> u32 {
        u32::try_from(i64::from(self.num_slots) - self.num_free).unwrap_or(0)
    }

    fn has_room(&self, num_embeds: u32) -> bool {
        i64::from(num_embeds) <= self.num_free
    }

    /// Charges a computed item.
    fn take(&mut self, identity: u64, num_embeds: u32) {
        self.num_free -= i64::from(num_embeds);
        self.computed.push(identity);
    }

    /// Gives back the charge of a request's items, even if they were not charged.
    fn give_back(&mut self, num_embeds: u32) {
        self.num_free = self.num_free.saturating_add(num_embeds.into());
    }

    /// Takes the items of the previous step when a step has been decided.
    fn take_passed(&mut self, identities: &mut Vec<u64>) {
        identities.append(&mut self.passed);
        std::mem::swap(&mut self.passed, &mut self.computed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_back_more_often_than_taken() {
        let mut outputs = UnsharedOutputs::new(10);
        assert!(outputs.has_room(10) && !outputs.has_room(11));
        outputs.take(7, 8);
        assert_eq!((outputs.num_used(), outputs.has_room(3)), (8, false));
        outputs.give_back(8);
        outputs.give_back(8);
        assert_eq!((outputs.num_used(), outputs.has_room(18)), (0, true));
        outputs.reset();
        assert!(!outputs.has_room(11));
    }

    #[test]
    fn items_are_listed_a_step_later() {
        let mut outputs = UnsharedOutputs::new(10);
        let mut listed = Vec::new();
        outputs.take(7, 2);
        outputs.take_passed(&mut listed);
        assert!(listed.is_empty());
        outputs.take(8, 2);
        outputs.take_passed(&mut listed);
        assert_eq!(listed, [7]);
        outputs.take_passed(&mut listed);
        assert_eq!(listed, [7, 8]);
    }
}
