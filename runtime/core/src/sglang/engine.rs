//! The engine: its state, and a pass.

use crate::compat::Reservations;
use crate::config::Policy;
use crate::engine::RejectReason;
use crate::kv::hash::BlockHash;
use crate::plan::{ScheduledKind, ScheduledRequest, StepOutputs, StepPlan};
use crate::request::queue::WaitingQueue;
use crate::request::table::RequestTable;
use crate::request::{Flags, KvRole, RequestId, RequestStatus};
use crate::serving::ServingEngine;
use crate::sglang::candidate::Candidate;
use crate::sglang::config::SglangConfig;
use crate::sglang::new_token_ratio::NewTokenRatio;
use crate::sglang::radix::{self, NodeId, RadixCache};
use crate::stats::EngineStats;

/// The pages of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    /// End of its pages in the tree; it locks the path to there.
    pub(super) node: NodeId,
    /// Pages on that path.
    pub(super) tree_pages: u32,
    /// Pages behind them that are its own.
    pub(super) own_pages: u32,
    /// When a decode filled one last, by the clock of the tree; 0 before.
    pub(super) filled_at: u64,
    /// Whether its prompt is computed, but no page was left for the token that comes of it.
    pub(super) is_stalled: bool,
    /// How many of its tokens are offered to the cache once another engine has them.
    pub(super) late_tokens: u32,
}

impl Hold {
    pub(super) const NONE: Self =
        Self { node: radix::ROOT, tree_pages: 0, own_pages: 0, filled_at: 0, is_stalled: false, late_tokens: 0 };

    pub(super) fn pages(self) -> u32 {
        self.tree_pages + self.own_pages
    }
}

/// One simulated SGLang engine.
#[derive(Debug)]
pub struct SglangEngine {
    pub(super) config: SglangConfig,
    pub(super) requests: RequestTable,
    /// By slot of the request.
    pub(super) holds: Vec<Hold>,
    pub(super) radix: RadixCache,
    /// Pages that hold nothing.
    pub(super) num_free_pages: u32,
    /// Requests past their prompt, in order of admission.
    pub(super) running: Vec<RequestId>,
    pub(super) waiting: WaitingQueue,
    /// Requests whose prompts are computed in part. They are among those that wait, and
    /// before all others unless the policy reorders them.
    pub(super) begun: Vec<RequestId>,
    /// Requests that wait for pages for KV from elsewhere, where these are taken between
    /// passes.
    pub(super) destinations: WaitingQueue,
    /// Whether there was no page for the first of these when it was tried.
    pub(super) destination_blocked: bool,
    /// Requests whose KV has arrived.
    pub(super) kv_ready: WaitingQueue,
    /// Requests whose pages a transfer is filling.
    pub(super) num_loading: usize,
    /// Output tokens to come of all that run, each request's clipped.
    pub(super) reserve_tokens: u64,
    /// Of those tokens, how much is reserved.
    pub(super) reserved_share: NewTokenRatio,
    /// Passes to come that decode before one prefills.
    pub(super) decodes_due: u32,
    /// Whether that is counted by the driver, for several ranks.
    pub(super) counts_together: bool,
    pub(super) plan: StepPlan,
    pub(super) step_in_flight: bool,
    pub(super) applied_steps: u64,
    pub(super) outputs: StepOutputs,
    pub(super) stats: EngineStats,
    pub(super) outstanding_prefill_tokens: u64,
    /// Scratch of a pass: prompts begun in it.
    pub(super) prefills: Vec<ScheduledRequest>,
    /// Scratch of a pass: requests whose prompt it completes.
    pub(super) joining: Vec<RequestId>,
    /// Scratch of a pass: requests that are retracted in it.
    pub(super) retracted: Vec<RequestId>,
    /// Scratch of a pass: requests that it ends, and how many of their tokens may be
    /// reused.
    pub(super) ended: Vec<(RequestId, u32)>,
    /// Requests whose KV another engine has got since the pass in flight began.
    pub(super) released: Vec<RequestId>,
    /// Scratch for ordering those that wait.
    pub(super) candidates: Vec<Candidate>,
    /// Scratch for ordering: how prompts begin.
    pub(super) beginnings: Vec<BlockHash>,
}

impl SglangEngine {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(config: SglangConfig) -> Self {
        Self {
            num_free_pages: config.num_pages,
            reserved_share: NewTokenRatio::new(&config),
            config,
            requests: RequestTable::default(),
            holds: Vec::new(),
            radix: RadixCache::new(),
            running: Vec::new(),
            waiting: WaitingQueue::new(Policy::Fcfs),
            begun: Vec::new(),
            destinations: WaitingQueue::new(Policy::Fcfs),
            destination_blocked: false,
            kv_ready: WaitingQueue::new(Policy::Fcfs),
            num_loading: 0,
            reserve_tokens: 0,
            decodes_due: 0,
            counts_together: false,
            plan: StepPlan::default(),
            step_in_flight: false,
            applied_steps: 0,
            outputs: StepOutputs::default(),
            stats: EngineStats::default(),
            outstanding_prefill_tokens: 0,
            prefills: Vec::new(),
            joining: Vec::new(),
            retracted: Vec::new(),
            ended: Vec::new(),
            released: Vec::new(),
            candidates: Vec::new(),
            beginnings: Vec::new(),
        }
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &SglangConfig {
        &self.config
    }

    pub(super) fn pages_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.config.page_size)
    }

    /// Pages that can be had, by eviction if need be.
    pub(super) fn num_available_pages(&self) -> u32 {
        self.num_free_pages + self.radix.num_evictable_pages()
    }

    /// Gives a request more pages of its own. The caller has looked that there
    /// are as many.
    pub(super) fn grow(&mut self, id: RequestId, pages: u32) {
        if pages > self.num_free_pages {
            let missing = pages - self.num_free_pages;
            self.radix.evict(missing);
            self.num_free_pages = pages;
        }
        self.num_free_pages -= pages;
        self.holds[id.index()].own_pages += pages;
    }

    /// Moves the full pages among a request's first `tokens` tokens into the tree, as
    /// used at that time. Those that are there already are given back.
    pub(super) fn store(&mut self, id: RequestId, tokens: u32, used_at: u64) {
        if !self.config.enable_prefix_caching {
            return;
        }
        let page_size = self.config.page_size;
        let request = &self.requests[id];
        let hold = &mut self.holds[id.index()];
        let full = tokens / page_size;
        if full <= hold.tree_pages {
            return;
        }
        let (from, to) = (hold.tree_pages as usize, full as usize);
        let tokens = if request.flags.has(Flags::KEEPS_TOKENS) {
            &request.tokens[from * page_size as usize..to * page_size as usize]
        } else {
            &[]
        };
        let (node, known) = self.radix.extend(hold.node, request.tag, &request.block_hashes[from..to], tokens, used_at);
        hold.own_pages -= full - hold.tree_pages;
        hold.tree_pages = full;
        hold.node = node;
        self.num_free_pages += known;
    }

    /// Says up to where a request is computed, or will be by the step in flight.
    pub(super) fn set_computed(&mut self, id: RequestId, computed: u32) {
        let request = &mut self.requests[id];
        let before = request.outstanding_prefill_tokens();
        request.num_computed_tokens = computed;
        self.outstanding_prefill_tokens -= u64::from(before - request.outstanding_prefill_tokens());
    }

    /// Output tokens of a request that are reserved, or a share of them.
    pub(super) fn reserve_of(&self, id: RequestId) -> u32 {
        let request = &self.requests[id];
        (request.end_tokens - request.num_tokens).min(self.config.clip_max_new_tokens)
    }

    /// Counts the output of a request that will run from now on.
    pub(super) fn begin_reserve(&mut self, id: RequestId) {
        debug_assert!(!self.requests[id].flags.has(Flags::RESERVES));
        self.requests[id].flags.set(Flags::RESERVES, true);
        self.reserve_tokens += u64::from(self.reserve_of(id));
    }

    /// Counts it no more.
    pub(super) fn end_reserve(&mut self, id: RequestId) {
        if self.requests[id].flags.has(Flags::RESERVES) {
            self.requests[id].flags.set(Flags::RESERVES, false);
            self.reserve_tokens -= u64::from(self.reserve_of(id));
        }
    }

    /// Requests that have a running slot, or have reserved one.
    pub(super) fn num_slots_taken(&self) -> usize {
        let reserved = match self.config.reservations {
            Reservations::InSteps => self.num_loading + self.kv_ready.len(),
            Reservations::BetweenSteps => 0,
        };
        self.running.len() + self.joining.len() + reserved
    }

    /// Whether a request that waits without KV does so in [`SglangEngine::destinations`].
    pub(super) fn waits_apart(&self, id: RequestId) -> bool {
        let request = &self.requests[id];
        self.config.reservations == Reservations::BetweenSteps
            && request.kv_role == KvRole::Destination
            && request.status == RequestStatus::Waiting
    }

    pub(super) fn enter(plan: &mut StepPlan, entry: ScheduledRequest, emits: bool) {
        // A retracted request begins again, with its outputs as part of its prompt.
        plan.shape.add(&entry, emits, u32::MAX);
        plan.total_num_scheduled_tokens += entry.num_scheduled_tokens;
        plan.scheduled.push(entry);
    }

    pub(super) fn emits(&self, id: RequestId) -> bool {
        self.requests[id].max_tokens > 0
    }

    pub(super) fn run_loaded(&mut self) {
        while self.running.len() < self.config.max_num_seqs as usize
            && let Some(id) = self.kv_ready.pop(&mut self.requests)
        {
            self.requests[id].status = RequestStatus::Running;
            self.running.push(id);
            if !self.requests[id].flags.has(Flags::RESERVES) {
                self.begin_reserve(id);
            }
        }
    }

    /// Enters the first prompts of the pass.
    pub(super) fn enter_prefills(&mut self, plan: &mut StepPlan, count: usize) {
        let mut prefills = std::mem::take(&mut self.prefills);
        for entry in prefills.drain(..count) {
            let emits = entry.samples && self.emits(entry.request);
            Self::enter(plan, entry, emits);
        }
        self.prefills = prefills;
    }

    /// The plan in the order that all drivers know: requests that continue a prompt, those that
    /// decode, and new ones at the end.
    pub(super) fn end_pass(&mut self, plan: &mut StepPlan) {
        self.enter_prefills(plan, self.prefills.len());
        for index in 0..self.joining.len() {
            self.begin_reserve(self.joining[index]);
        }
        self.running.append(&mut self.joining);
        plan.shape.kv_active_blocks = u64::from(self.load().num_active_blocks);
        plan.shape.kv_total_blocks = u64::from(self.config.num_pages);
        plan.shape.block_size_tokens = u64::from(self.config.page_size);
        plan.shape.waiting_requests = self.load().num_waiting as u64;
    }

    pub(super) fn check_prompt(&self, prompt_tokens: u32) -> Result<(), RejectReason> {
        if prompt_tokens == 0 {
            return Err(RejectReason::EmptyPrompt);
        }
        if prompt_tokens >= self.config.max_model_len() {
            return Err(RejectReason::PromptTooLong);
        }
        Ok(())
    }

    /// A chunk of a prompt as the plan has it.
    pub(super) fn chunk(&self, id: RequestId, kind: ScheduledKind, from: u32, tokens: u32) -> ScheduledRequest {
        let request = &self.requests[id];
        ScheduledRequest {
            request: id,
            tag: request.tag,
            num_scheduled_tokens: tokens,
            num_computed_tokens: from,
            kind,
            is_prefill: true,
            samples: from + tokens == request.num_tokens,
            num_draft_tokens: 0,
            blocks: 0..0,
        }
    }

    /// Whether it is the source of another engine's KV.
    pub(super) fn is_source(&self, id: RequestId) -> bool {
        self.requests[id].kv_role == KvRole::Source
    }
}
