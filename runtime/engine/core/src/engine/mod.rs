//! The engine: its state, and submission of requests.
//!
//! A sans-I/O state machine. The driver owns the clock. It calls [`Engine::schedule`] when a step may
//! start, computes the step's duration from its shape, and calls [`Engine::update`] when the step ends. Requests
//! may be submitted and aborted in between, as in a real engine while a step runs on the GPU.

mod adapters;
mod admit;
mod encoder_inputs;
pub mod fast_forward;
mod finish;
mod grammar;
mod kv_cache;
mod kv_loads;
mod lookahead;
mod policy_hook;
mod prefills;
mod queues;
mod reject;
mod schedule;
mod session;
mod turns;
mod update;

use std::ops::Deref;

pub use grammar::Compilation;
pub use kv_loads::KvTransferReport;
pub use reject::RejectReason;
pub use session::SessionInput;

use self::adapters::Adapters;
use self::encoder_inputs::EncoderInputs;
use self::fast_forward::FastForward;
use self::fast_forward::steady_decode::SteadyDecode;
use self::grammar::Grammars;
use self::kv_cache::KvCacheManager;
use self::kv_loads::KvLoads;
use self::policy_hook::PolicyBook;
use self::prefills::Prefills;
use self::queues::WaitingQueues;
use self::session::Sessions;
use self::turns::Turns;
use crate::config::{Drafting, EngineConfig};
use crate::plan::in_flight::StepsInFlight;
use crate::plan::{StepOutputs, StepPlan};
use crate::request::table::RequestTable;
use crate::request::{Flags, KvRole, Request, RequestId, RequestSpec};
use crate::stats::EngineStats;

/// One simulated vLLM engine.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    kv_cache: KvCacheManager,
    kv_loads: KvLoads,
    encoder_inputs: EncoderInputs,
    requests: RequestTable,
    running: RunningRequests,
    queues: WaitingQueues,
    pause_state: PauseState,
    prefills: Prefills,
    steps: StepsInFlight,
    outputs: StepOutputs,
    fast_forward: FastForward,
    stats: EngineStats,
    /// State for a policy that ranks requests, if there is one.
    policy_book: Option<Box<PolicyBook>>,
    /// Requests that decode without work per request.
    steady_decode: SteadyDecode,
    turns: Turns,
    /// Resumable requests; None until one arrives.
    sessions: Option<Box<Sessions>>,
    /// Adapters, if they cost time.
    adapters: Option<Box<Adapters>>,
    /// Requests that wait for their grammar; None until a request with structured outputs arrives.
    grammars: Option<Box<Grammars>>,
}

impl Engine {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        let adapters = config.adapter_costs().map(|costs| Box::new(Adapters::new(costs, config.max_loras())));
        Self {
            kv_loads: KvLoads::new(&config),
            kv_cache: KvCacheManager::new(&config),
            encoder_inputs: EncoderInputs::default(),
            queues: WaitingQueues::new(&config),
            policy_book: PolicyBook::of(config.policy()),
            steady_decode: SteadyDecode::new(&config),
            turns: Turns::new(&config),
            steps: StepsInFlight::new(config.max_steps_in_flight()),
            config,
            requests: RequestTable::default(),
            running: RunningRequests::default(),
            pause_state: PauseState::Unpaused,
            prefills: Prefills::default(),
            outputs: StepOutputs::default(),
            fast_forward: FastForward::default(),
            stats: EngineStats::default(),
            sessions: None,
            adapters,
            grammars: None,
        }
    }

    /// The settings.
    #[must_use]
    #[inline]
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Totals since the start.
    #[must_use]
    pub fn stats(&self) -> &EngineStats {
        &self.stats
    }

    /// Number of running requests.
    #[must_use]
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Number of requests that wait for admission or for a KV transfer.
    #[must_use]
    pub fn num_waiting(&self) -> usize {
        self.queues.len()
    }

    /// Number of waiting requests whose KV is being loaded. [`Engine::num_waiting`] counts them, too.
    #[must_use]
    pub fn num_loading(&self) -> usize {
        self.queues.num_loading()
    }

    /// Number of waiting requests that were skipped because of a load of KV, a grammar, an adapter, or output from
    /// before a preemption, and that were not admitted since (`deferred_waiting` of vLLM 0.31 to 0.33).
    /// [`Engine::num_waiting`] counts them, too. In vLLM 0.27 to 0.30 this is the length of the separate queue of
    /// skipped requests.
    #[must_use]
    pub fn num_skipped_waiting(&self) -> usize {
        self.queues.num_deferred()
    }

    /// Number of requests that the engine knows, including ended requests whose KV is held.
    #[must_use]
    pub fn num_requests(&self) -> usize {
        self.requests.len()
    }

    /// Prefill tokens not yet computed, over waiting and running requests.
    #[must_use]
    pub fn outstanding_prefill_tokens(&self) -> u64 {
        self.prefills.outstanding_tokens()
    }

    /// Tags of the running requests, in the order of the running list.
    pub fn running_tags(&self) -> impl Iterator<Item = u64> + '_ {
        self.running.iter().map(|&id| self.requests[id].tag)
    }

    /// Tags of all requests that have not ended or still hold KV, by slot.
    pub fn live_tags(&self) -> impl Iterator<Item = u64> + '_ {
        self.requests.live_ids().map(|id| self.requests[id].tag)
    }

    /// The live request tagged `tag`, if it exists. Clients may name requests that have ended or that the engine has
    /// never seen; such names have no effect, as in vLLM.
    #[must_use]
    pub fn find(&self, tag: u64) -> Option<RequestId> {
        self.requests.find(tag)
    }

    /// Whether a step has been scheduled and not yet applied.
    #[must_use]
    pub fn step_in_flight(&self) -> bool {
        self.steps.count() > 0
    }

    /// Number of steps scheduled and not yet applied: at most two under async scheduling, and one more for
    /// each pipeline stage after the first.
    #[must_use]
    pub fn steps_in_flight(&self) -> usize {
        self.steps.count()
    }

    /// Whether another step may be scheduled before one is applied.
    #[must_use]
    pub fn may_schedule(&self) -> bool {
        self.steps.count() < self.config.max_steps_in_flight()
    }

    /// The latest plan.
    #[must_use]
    pub fn plan(&self) -> &StepPlan {
        self.steps.newest()
    }

    /// The oldest plan in flight, whose result is applied next; the latest plan if none is in flight.
    #[must_use]
    pub fn oldest_plan(&self) -> &StepPlan {
        self.steps.oldest()
    }

    /// Outputs of the latest applied step.
    #[must_use]
    pub fn outputs(&self) -> &StepOutputs {
        &self.outputs
    }

    /// Record of the latest call of [`Engine::decode_ahead`].
    #[must_use]
    pub fn fast_forward(&self) -> &FastForward {
        &self.fast_forward
    }

    /// Whether vLLM would accept a prompt of this length with this maximum number of output tokens. A pooling prompt,
    /// which has no output, may be as long as `max_model_len`.
    pub fn check_prompt(&self, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason> {
        if prompt_tokens == 0 {
            return Err(RejectReason::EmptyPrompt);
        }
        if prompt_tokens > self.config.max_model_len() - max_tokens.min(1) {
            return Err(RejectReason::PromptTooLong);
        }
        Ok(())
    }

    /// Whether a request of these lengths could run here to its end. Otherwise it would wait forever, so drivers
    /// that cannot wait call this first. Such requests may still be submitted, as to vLLM's scheduler, because a
    /// stop or an abort may end them earlier.
    pub fn check(&self, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason> {
        self.check_prompt(prompt_tokens, max_tokens)?;
        let model_len = self.config.max_model_len();
        // Whether the prompt is split depends on the load. Even without chunked prefill, the threshold can split it,
        // and so can drafts, which vLLM uses for every request with output.
        let may_split = self.config.enable_chunked_prefill()
            || self.config.long_prefill_token_threshold() > 0
            || self.config.num_speculative_tokens() > 0;
        if may_split && max_tokens == 0 && prompt_tokens == model_len {
            return Err(RejectReason::LastTokenNeverComputed);
        }
        // The last output token is never computed, so it needs no slot, but a
        // reservation includes it.
        let unused = if self.config.quirks().reserves_whole_output() { 0 } else { max_tokens.min(1) };
        let computed = u64::from(prompt_tokens) + u64::from(max_tokens - unused);
        // Drafts need slots, and so do the drafts after them. If `max_model_len` is set,
        // vLLM's start-up check has already reserved these slots.
        let Drafting { lookahead_tokens, .. } = self.config.drafting();
        let drafts = self.config.num_speculative_tokens() + lookahead_tokens;
        let drafts = if self.config.max_model_len() == u32::MAX { drafts } else { 0 };
        let beyond = self.config.quirks().burst_tokens().max(drafts);
        let longest = (computed + u64::from(beyond)).min(u64::from(model_len));
        // After a preemption, the request's tokens are recomputed; without chunking, in one step.
        if !self.config.enable_chunked_prefill() && longest > u64::from(self.config.longest_chunk()) {
            return Err(RejectReason::ExceedsTokenBudget);
        }
        if self.config.most_blocks(longest as u32) > u64::from(self.pool().num_usable()) {
            return Err(RejectReason::ExceedsKvPool);
        }
        Ok(())
    }

    /// Queues a request.
    ///
    /// # Errors
    /// If vLLM would not accept the request. The engine is unchanged.
    pub fn submit(&mut self, mut spec: RequestSpec) -> Result<RequestId, RejectReason> {
        self.check_prompt(spec.prompt.len_tokens, spec.max_tokens)?;
        self.check_items(&spec.prompt)?;
        if spec.resumable {
            self.check_session(&spec)?;
        }
        if spec.structured {
            self.check_structured(&spec)?;
        }
        if self.find(spec.tag).is_some() {
            return Err(RejectReason::DuplicateRequest);
        }
        if spec.lora.is_some() && self.config.max_loras() == 0 {
            return Err(RejectReason::AdaptersOff);
        }
        debug_assert_eq!(spec.prompt.blocks, self.config.hashed_blocks(), "a prompt for another engine");
        let sequence = self.requests.next_sequence();
        let (priority, tenant, slo, drawn) = (spec.priority, spec.tenant, spec.slo, spec.drawn);
        let (resumable, structured) = (spec.resumable, spec.structured);
        let items = std::mem::take(&mut spec.prompt.items);
        let mut request = Request::new(spec, sequence, self.config.block_size(), self.config.max_model_len());
        let left_tokens = self.config.tokens_left_to_decode();
        // A prompt that does not read the cache is computed completely also by the engine that continues it.
        let is_left = request.kv_role == KvRole::Source && !request.flags.has(Flags::SKIPS_LOOKUP);
        if left_tokens > 0 && is_left && request.prompt_tokens > left_tokens {
            request.leave_last(left_tokens, self.config.block_size());
        }
        self.prefills.add(request.prefill_target_tokens);
        request.flags.set(Flags::NEEDS_ENCODER, !items.is_empty());
        if self.config.rules().hashes_last_item_alone() {
            request.omit_items(&items, self.config.block_size());
        }
        let id = self.requests.insert(request);
        if self.kv_loads.offloads() {
            self.kv_loads.begin_offloading(&self.requests[id]);
        }
        if !items.is_empty() {
            self.encoder_inputs.enter(id, items, &self.config);
        }
        if resumable {
            self.open_session(id);
        }
        if structured {
            self.await_grammar(id);
        }
        self.steady_decode.register(id, drawn.filter(|_| !resumable), self.config.block_size());
        if !self.kv_cache.caching() {
            self.requests[id].next_store_tokens = u32::MAX;
        }
        self.note_arrived(id, priority, tenant, slo);
        self.queues.enter(id, &mut self.requests);
        Ok(id)
    }
}

/// The part of the scheduler that is paused. The names are vLLM's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PauseState {
    /// Nothing is paused.
    #[default]
    Unpaused,
    /// Running requests continue, and so do waiting requests whose KV has been transferred. Other
    /// requests, including preempted ones, are accepted and wait. Under the rules of vLLM up to 0.31,
    /// requests with KV also wait, and [`Engine::num_unfinished`] does not count them.
    PausedNew,
    /// No request continues. Steps in flight may still be applied.
    PausedAll,
}

impl Engine {
    /// The pause state.
    #[must_use]
    pub fn pause_state(&self) -> PauseState {
        self.pause_state
    }

    /// Sets which requests are scheduled from the next step on.
    pub fn set_pause_state(&mut self, state: PauseState) {
        self.pause_state = state;
    }

    /// Number of requests that the engine continues to serve (vLLM's `get_num_unfinished_requests`). Without
    /// a pause, these are all running and waiting requests except those that wait for the next part
    /// of their prompt. Under [`PauseState::PausedNew`] these are the requests that run, load KV or have loaded it.
    /// Under [`PauseState::PausedAll`] there are none.
    #[must_use]
    pub fn num_unfinished(&self) -> usize {
        match self.pause_state {
            PauseState::Unpaused => self.num_running() + self.num_waiting() - self.num_waiting_sessions(),
            PauseState::PausedNew if self.config.rules().admits_loaded_under_pause() => {
                let holding = self.queues.num_kv_ready() + self.queues.num_loading();
                self.num_running() + holding.saturating_sub(self.num_waiting_sessions())
            }
            PauseState::PausedNew => self.num_running(),
            PauseState::PausedAll => 0,
        }
    }

    /// Whether [`Engine::schedule`] could find work.
    #[must_use]
    pub fn has_schedulable_requests(&self) -> bool {
        let runs = !self.running.is_empty() && self.pause_state != PauseState::PausedAll;
        let num_blocked = self.num_waiting_sessions() + self.num_compiling();
        runs || (self.queues.num_queued() > num_blocked && self.queues.next(self.pause_state).is_some())
    }

    /// Whether a request could be admitted if there were room and no pause.
    fn has_waiting_requests(&self) -> bool {
        self.queues.num_queued() > 0
    }
}

#[derive(Debug, Default)]
struct RunningRequests {
    ids: Vec<RequestId>,
    /// Tags of requests preempted since the last plan was made.
    preempted: Vec<u64>,
    /// Scratch buffer for the adapters that count against `max_loras`.
    loras: Vec<u32>,
}

impl Deref for RunningRequests {
    type Target = [RequestId];

    #[inline]
    fn deref(&self) -> &[RequestId] {
        &self.ids
    }
}

impl RunningRequests {
    #[inline]
    fn push(&mut self, id: RequestId) {
        self.ids.push(id);
    }

    fn pop(&mut self) -> Option<RequestId> {
        self.ids.pop()
    }

    /// Removes a request from the list and returns its index.
    ///
    /// # Panics
    /// If the request is not running.
    fn remove(&mut self, id: RequestId) -> usize {
        let position = self.ids.iter().position(|&other| other == id).expect("a victim is running");
        self.ids.remove(position);
        position
    }

    #[inline]
    fn retain(&mut self, is_kept: impl FnMut(&RequestId) -> bool) {
        self.ids.retain(is_kept);
    }

    fn note_preempted(&mut self, tag: u64) {
        self.preempted.push(tag);
    }

    #[inline]
    fn take_preempted(&mut self, into: &mut Vec<u64>) {
        into.append(&mut self.preempted);
    }

    /// Takes the scratch buffer for adapters, which must be put back.
    #[inline]
    fn take_loras(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.loras)
    }

    #[inline]
    fn put_loras(&mut self, mut loras: Vec<u32>) {
        loras.clear();
        self.loras = loras;
    }
}
