//! Plans of steps and their outputs. The engine reuses both buffers for every step.

pub(crate) mod in_flight;

use std::ops::Range;

use crate::kv::groups::KvCacheGroup;
use crate::kv::pool::BlockId;
use crate::plugins::latency::{EncoderShape, KvGroupShape, RecomputeShape, StepShape};
use crate::request::{FinishReason, RequestId};

/// The state in which a request enters a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduledKind {
    /// Admitted for the first time, or after its KV was loaded.
    New,
    /// Admitted again after a preemption.
    Resumed,
    /// Already running.
    Running,
}

/// One request's part of a step.
#[derive(Clone, Debug)]
pub struct ScheduledRequest {
    /// The request's id in the engine.
    pub request: RequestId,
    /// The driver's number for the request.
    pub tag: u64,
    /// Number of tokens computed in this step.
    pub num_scheduled_tokens: u32,
    /// Number of tokens computed or cached before this step. For a request of kind `New`, they came from this
    /// engine's cache. After a [`RemoteLoad`], they are the whole prompt without the last token, which is
    /// recomputed. After a [`TierLoad`], they are the tokens that the load counts.
    pub num_computed_tokens: u32,
    /// The state in which the request enters the step.
    pub kind: ScheduledKind,
    /// Whether the chunk is prefill, not decode.
    pub is_prefill: bool,
    /// Whether the chunk reaches the last known token, so that the step samples for the request.
    pub samples: bool,
    /// Number of draft tokens that this step verifies.
    pub num_draft_tokens: u16,
    /// Blocks allocated in this step, as a range of [`StepPlan::block_ids`]. The
    /// whole block table unless `kind` is `Running`.
    pub blocks: Range<u32>,
}

/// A KV transfer from another engine, into blocks that the engine has just reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteLoad {
    /// The request that waits for the transfer.
    pub request: RequestId,
    /// The driver's number for the request.
    pub tag: u64,
    /// Number of prompt tokens in this engine's own cache, which need no transfer.
    pub cached_tokens: u32,
    /// Number of prompt tokens to transfer.
    pub missing_tokens: u32,
    /// Number of tokens whose KV over all layers has as many bytes as the transfer: the missing tokens, minus the
    /// parts that layers other than full attention do not need.
    pub moved_tokens: u32,
}

/// A load from the tiers below the device, into blocks that the engine has just reserved.
/// [`KvTiers`](crate::KvTiers) report its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierLoad {
    /// The request that waits for the load.
    pub request: RequestId,
    /// The driver's number for the request.
    pub tag: u64,
    /// Number of tokens found in the device's cache.
    pub device_tokens: u32,
    /// Number of further tokens that come from the host.
    pub host_tokens: u32,
    /// Number of further tokens that come from the disk.
    pub disk_tokens: u32,
}

/// A connector's answer to a lookup of a request's KV after the local hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalHit {
    /// Number of tokens after the local hit. None if the connector does not know yet, so that the request must be
    /// skipped.
    pub tokens: Option<u32>,
    /// Whether the request waits while the tokens are loaded. Otherwise they are loaded within its step.
    pub is_async: bool,
}

/// A lookup of a KV connector, made before an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalLookup {
    /// The driver's number for the request.
    pub tag: u64,
    /// Number of tokens found in the engine's own cache.
    pub local_tokens: u32,
    /// The answer.
    pub hit: ExternalHit,
}

/// An item that the encoder computes in a step, before the chunk that needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderInput {
    /// The first request that needs the item.
    pub request: RequestId,
    /// The driver's number for the request.
    pub tag: u64,
    /// Index of the item in the request.
    pub input: u32,
    /// The item's identity; see [`PromptItem::identity`](crate::PromptItem::identity).
    pub identity: u64,
    /// Number of embeddings to compute.
    pub num_embeds: u32,
}

/// The part of [`StepPlan::block_ids`] that belongs to one group of layers.
#[derive(Clone, Debug)]
pub(crate) struct GroupBlocks {
    pub(crate) group: u32,
    pub(crate) blocks: Range<u32>,
}

/// Blocks of a running request that no later token of the request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowFree {
    /// The driver's number for the request.
    pub tag: u64,
    /// The group of layers.
    pub group: u32,
    /// A range of [`StepPlan::freed_block_ids`], in token order.
    pub blocks: Range<u32>,
}

/// The reason why a step admitted no more waiting requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdmissionStop {
    /// All requests were admitted or skipped. A request is skipped because of the adapter limit, its grammar, or output
    /// from before a preemption that has not arrived yet.
    #[default]
    Drained,
    /// The token budget was used up.
    Budget,
    /// The maximum number of requests is running (`max_num_seqs`, `max_num_active_seqs`).
    RunningSlots,
    /// The next request's KV did not fit into the free blocks.
    Blocks,
    /// The step preempted a request, so it admits none.
    Preemption,
    /// The next request did not fit into the remaining budget, and chunked
    /// prefill is off.
    Unchunkable,
    /// The next request's drafts did not fit into the remaining budget.
    Drafts,
    /// The encoder's budget or cache did not allow the first item that the next request needs
    /// (vLLM 0.32; 0.33 skips the request).
    Encoder,
    /// The step defers prefills in favor of decodes (vLLM's `prefill_schedule_interval`).
    Interval,
    /// The scheduler is paused ([`crate::PauseState`]).
    Paused,
}

/// One scheduled step (vLLM's `SchedulerOutput`).
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    /// Requests with work, in scheduling order, except members of the steady decode.
    pub scheduled: Vec<ScheduledRequest>,
    /// Requests whose drafts are checked against their grammar before they are verified.
    pub(crate) with_checked_drafts: Vec<RequestId>,
    /// Number of running requests in the steady decode, with one token each.
    pub steady_decode_requests: u32,
    /// Number of requests in the steady decode, by [`crate::DrawnOutputs::group`].
    pub(crate) steady_decode_groups: Vec<u32>,
    /// Block ids that `scheduled` refers to.
    pub block_ids: Vec<BlockId>,
    /// Number of groups of layers in `block_ids`; 0 for one group of full attention.
    pub num_groups: u32,
    /// The group of each part of `block_ids`, in order. Empty without groups.
    pub(crate) group_blocks: Vec<GroupBlocks>,
    /// Blocks that have left windows, in order.
    pub window_frees: Vec<WindowFree>,
    /// Block ids that `window_frees` refers to.
    pub freed_block_ids: Vec<BlockId>,
    /// Items that the encoder computes in this step, in scheduling order (vLLM's
    /// `scheduled_encoder_inputs`).
    pub encoder_inputs: Vec<EncoderInput>,
    /// Identities of items evicted from the encoder cache since the previous step, in order (vLLM's
    /// `free_encoder_mm_hashes`).
    pub freed_encoder_items: Vec<u64>,
    /// Tags of requests preempted while scheduling, in order.
    pub preempted: Vec<u64>,
    /// Tags of requests that have left the queue because they can never run
    /// ([`crate::RequestSpec::is_refused`]), in order.
    pub refused: Vec<u64>,
    /// Transfers to start now. They hold blocks but cost no tokens.
    pub remote_loads: Vec<RemoteLoad>,
    /// Loads from the tiers that have started. They hold blocks but cost no tokens.
    pub tier_loads: Vec<TierLoad>,
    /// Lookups of the KV connector, in order.
    pub external_lookups: Vec<ExternalLookup>,
    /// Whether a request of this step has KV that the connector loads within the step (vLLM's `has_sync_kv_loads`).
    pub has_sync_kv_loads: bool,
    /// The reason why the admission of waiting requests ended.
    pub admission_stop: AdmissionStop,
    /// Maximum number of drafts that a request of this step proposes for its next step.
    pub most_drafts: u32,
    /// Sum of `num_scheduled_tokens`.
    pub total_num_scheduled_tokens: u32,
    /// Time that adapters add to the step, in addition to the latency model's time.
    pub adapter_ns: u64,
    /// The step as a latency model sees it.
    pub shape: StepShape,
}

impl StepPlan {
    pub(crate) fn clear(&mut self) {
        self.scheduled.clear();
        self.with_checked_drafts.clear();
        self.steady_decode_requests = 0;
        self.steady_decode_groups.clear();
        self.block_ids.clear();
        self.num_groups = 0;
        self.group_blocks.clear();
        self.window_frees.clear();
        self.freed_block_ids.clear();
        self.encoder_inputs.clear();
        self.freed_encoder_items.clear();
        self.preempted.clear();
        self.refused.clear();
        self.remote_loads.clear();
        self.tier_loads.clear();
        self.external_lookups.clear();
        self.has_sync_kv_loads = false;
        self.admission_stop = AdmissionStop::Drained;
        self.total_num_scheduled_tokens = 0;
        self.adapter_ns = 0;
        self.shape = StepShape::default();
    }

    /// Counts a member of the steady decode, which is not listed individually.
    pub(crate) fn count_member(&mut self, group: u32) {
        let group = group as usize;
        if self.steady_decode_groups.len() <= group {
            self.steady_decode_groups.resize(group + 1, 0);
        }
        self.steady_decode_groups[group] += 1;
        self.steady_decode_requests += 1;
    }

    /// Whether the step has no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.scheduled.is_empty() && self.steady_decode_requests == 0
    }

    /// The parts of the step's shape that differ between `groups` of layers, without members of the steady decode.
    pub fn kv_group_shapes(&self, groups: &[KvCacheGroup]) -> impl Iterator<Item = KvGroupShape> {
        groups.iter().map(|group| {
            let mut shape = KvGroupShape::default();
            for entry in &self.scheduled {
                let (computed, tokens) = (entry.num_computed_tokens, entry.num_scheduled_tokens);
                if entry.is_prefill {
                    let pairs = |tokens| group.kind.attention_pairs(tokens);
                    shape.prefill_attention_pairs += pairs(computed + tokens) - pairs(computed);
                } else {
                    shape.decode_context_tokens += u64::from(group.kind.read_tokens(computed, tokens));
                }
            }
            shape
        })
    }

    /// Block ids allocated to `scheduled` in this step.
    #[must_use]
    pub fn blocks_of(&self, scheduled: &ScheduledRequest) -> &[BlockId] {
        &self.block_ids[scheduled.blocks.start as usize..scheduled.blocks.end as usize]
    }

    /// Block ids of one group allocated to `scheduled` in this step, if there are several groups of layers. In a whole
    /// table, null blocks have the id 0.
    #[must_use]
    pub fn blocks_of_group(&self, scheduled: &ScheduledRequest, group: u32) -> &[BlockId] {
        let Range { start, end } = scheduled.blocks;
        let first = self.group_blocks.partition_point(|part| part.blocks.start < start);
        let own = self.group_blocks[first..].iter().take_while(|part| part.blocks.start < end);
        let part = own.into_iter().find(|part| part.group == group);
        part.map_or(&[], |part| &self.block_ids[part.blocks.start as usize..part.blocks.end as usize])
    }

    /// Adds blocks of one group of layers.
    pub(crate) fn give_blocks(&mut self, group: usize, blocks: &[BlockId]) {
        let start = self.block_ids.len() as u32;
        self.block_ids.extend_from_slice(blocks);
        if !blocks.is_empty() {
            self.group_blocks.push(GroupBlocks { group: group as u32, blocks: start..self.block_ids.len() as u32 });
        }
    }

    pub(crate) fn note_window_free(&mut self, tag: u64, group: usize, blocks: &[BlockId]) {
        let start = self.freed_block_ids.len() as u32;
        self.freed_block_ids.extend_from_slice(blocks);
        let blocks = start..self.freed_block_ids.len() as u32;
        self.window_frees.push(WindowFree { tag, group: group as u32, blocks });
    }
}

impl StepPlan {
    pub(crate) fn add_encoder_input(&mut self, input: EncoderInput) {
        self.encoder_inputs.push(input);
        self.shape.encoder.items += 1;
        self.shape.encoder.embeds += u64::from(input.num_embeds);
    }

    /// Removes the encoder inputs of a request that its own step preempts. Returns the number of embeddings that are
    /// then not computed.
    pub(crate) fn take_back_encoder_inputs(&mut self, id: RequestId) -> u32 {
        let mut taken_back = EncoderShape::default();
        self.encoder_inputs.retain(|input| {
            if input.request == id {
                taken_back.items += 1;
                taken_back.embeds += u64::from(input.num_embeds);
            }
            input.request != id
        });
        self.shape.encoder.items -= taken_back.items;
        self.shape.encoder.embeds -= taken_back.embeds;
        taken_back.embeds as u32
    }
}

/// Outputs of one request in a step (vLLM's `EngineCoreOutput`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestOutput {
    /// The request. Its slot may be reused once `finish` is set, unless its KV is held.
    pub request: RequestId,
    /// The driver's number for the request.
    pub tag: u64,
    /// Number of output tokens emitted in this step.
    pub num_tokens: u32,
    /// Number of tokens that the model returned. This is more than `num_tokens` if a stop cut off drafts.
    pub num_sampled_tokens: u16,
    /// Number of draft tokens proposed for the request's next step.
    pub num_draft_tokens: u16,
    /// Set if the request ended with this step.
    pub finish: Option<FinishReason>,
}

/// Outputs of one step, in scheduling order.
#[derive(Clone, Debug, Default)]
pub struct StepOutputs {
    /// Requests that emitted tokens or ended.
    pub outputs: Vec<RequestOutput>,
    /// The emitted tokens, `num_tokens` for each entry of `outputs` in turn.
    pub tokens: Vec<u32>,
    /// Number of members of the steady decode by [`crate::DrawnOutputs::group`]. Each got one token and
    /// continues.
    pub steady_decode_groups: Vec<u32>,
    /// Tags of requests that join the steady decode from now on, with one output token so far.
    pub joined: Vec<u64>,
    /// Tags of resumable requests that continue with the next part of their prompt, because the outputs for the
    /// previous part have ended.
    pub continuing: Vec<u64>,
    /// Tags of requests with drafts that do not fit their grammar, with the number of such drafts. The drafts were
    /// proposed for the next step or, under async scheduling, verified in this step.
    pub invalid_drafts: Vec<(u64, u16)>,
}

impl StepOutputs {
    pub(crate) fn clear(&mut self) {
        self.outputs.clear();
        self.tokens.clear();
        self.steady_decode_groups.clear();
        self.joined.clear();
        self.continuing.clear();
        self.invalid_drafts.clear();
    }
}

/// Counts requests in the shape of their step.
pub(crate) trait CountRequests {
    /// Adds a request's part of a step. `emits` is false if the request asks for no output. Tokens
    /// after the first `prompt_tokens` are output.
    fn add(&mut self, entry: &ScheduledRequest, emits: bool, prompt_tokens: u32);

    fn remove(&mut self, entry: &ScheduledRequest, emits: bool, prompt_tokens: u32);
}

impl CountRequests for StepShape {
    #[inline]
    fn add(&mut self, entry: &ScheduledRequest, emits: bool, prompt_tokens: u32) {
        let tokens = u64::from(entry.num_scheduled_tokens);
        let depth = u64::from(entry.num_computed_tokens);
        self.sampled_requests += u64::from(entry.samples && emits);
        if !entry.is_prefill {
            self.decode_requests += 1;
            self.decode_tokens += tokens;
            self.decode_context_tokens += depth + tokens;
            return;
        }
        self.prefill_requests += 1;
        self.prefill_tokens += tokens;
        self.prefill_context_tokens += depth;
        self.prefill_attention_pairs += tokens * depth + tokens * (tokens + 1) / 2;
        if entry.samples {
            self.prefill_completions += 1;
            self.prefill_completion_context_tokens += depth + tokens;
        }
        let outputs = (depth + tokens).saturating_sub(u64::from(prompt_tokens));
        if outputs > 0 {
            add_recomputed(&mut self.recompute, depth, tokens, outputs, entry.samples);
        }
    }

    fn remove(&mut self, entry: &ScheduledRequest, emits: bool, prompt_tokens: u32) {
        let mut part = Self::default();
        part.add(entry, emits, prompt_tokens);
        self.sampled_requests -= part.sampled_requests;
        self.decode_requests -= part.decode_requests;
        self.decode_tokens -= part.decode_tokens;
        self.decode_context_tokens -= part.decode_context_tokens;
        self.prefill_requests -= part.prefill_requests;
        self.prefill_tokens -= part.prefill_tokens;
        self.prefill_context_tokens -= part.prefill_context_tokens;
        self.prefill_attention_pairs -= part.prefill_attention_pairs;
        self.prefill_completions -= part.prefill_completions;
        self.prefill_completion_context_tokens -= part.prefill_completion_context_tokens;
        let (own, part) = (&mut self.recompute, part.recompute);
        own.output_tokens -= part.output_tokens;
        own.promptless_chunks -= part.promptless_chunks;
        own.promptless_context_tokens -= part.promptless_context_tokens;
        own.completions -= part.completions;
        own.completion_context_tokens -= part.completion_context_tokens;
    }
}

/// Counts a chunk of `tokens` tokens after `depth` other tokens. `outputs` of the tokens at its end are outputs.
#[cold]
fn add_recomputed(shape: &mut RecomputeShape, depth: u64, tokens: u64, outputs: u64, completes: bool) {
    shape.output_tokens += outputs.min(tokens);
    if outputs >= tokens {
        shape.promptless_chunks += 1;
        shape.promptless_context_tokens += depth;
    }
    if completes {
        shape.completions += 1;
        shape.completion_context_tokens += depth + tokens;
    }
}
