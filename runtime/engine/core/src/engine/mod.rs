//! The engine: its state, and submission of requests.
//!
//! A sans-I/O state machine. The driver owns the clock: it calls
//! [`Engine::schedule`] when a step may start, prices the plan's shape, and
//! calls [`Engine::update`] when that step ends. Requests may be submitted and
//! aborted in between, as with a real engine whose step is on the GPU.

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
    /// State for a policy that ranks, if there is one.
    policy_book: Option<Box<PolicyBook>>,
    /// Requests that decode without individual work.
    steady_decode: SteadyDecode,
    turns: Turns,
    /// Resumable requests, once one has arrived.
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

    /// Requests in the running list.
    #[must_use]
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Requests waiting for admission or for a KV transfer.
    #[must_use]
    pub fn num_waiting(&self) -> usize {
        self.queues.len()
    }

    /// The number of waiting requests whose KV is being loaded; [`Engine::num_waiting`] counts
    /// them, too.
    #[must_use]
    pub fn num_loading(&self) -> usize {
        self.queues.num_loading()
    }

    /// The number of waiting requests that were skipped and not admitted since, because of a load of KV, a
    /// grammar, an adapter, or output from before a preemption (vLLM 0.31 to 0.33, `deferred_waiting`).
    /// [`Engine::num_waiting`] counts them, too. vLLM 0.27 to 0.30 have a separate queue for them, whose
    /// length this is.
    #[must_use]
    pub fn num_skipped_waiting(&self) -> usize {
        self.queues.num_deferred()
    }

    /// Requests the engine knows, held KV included.
    #[must_use]
    pub fn num_requests(&self) -> usize {
        self.requests.len()
    }

    /// Prefill tokens not yet computed, over waiting and running requests.
    #[must_use]
    pub fn outstanding_prefill_tokens(&self) -> u64 {
        self.prefills.outstanding_tokens()
    }

    /// Tags of the running list, in its order.
    pub fn running_tags(&self) -> impl Iterator<Item = u64> + '_ {
        self.running.iter().map(|&id| self.requests[id].tag)
    }

    /// Tags of every request that has not ended or still holds KV, by slot.
    pub fn live_tags(&self) -> impl Iterator<Item = u64> + '_ {
        self.requests.live_ids().map(|id| self.requests[id].tag)
    }

    /// The live request tagged `tag`, if it exists. Clients may name requests that the engine has never seen
    /// or that have ended; such names have no effect, as in vLLM.
    #[must_use]
    pub fn find(&self, tag: u64) -> Option<RequestId> {
        self.requests.find(tag)
    }

    /// Whether a step has been scheduled and not yet applied.
    #[must_use]
    pub fn step_in_flight(&self) -> bool {
        self.steps.count() > 0
    }

    /// Steps scheduled and not yet applied: up to two under async scheduling; with pipeline stages, one more
    /// for each stage.
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

    /// Outputs of the latest step applied.
    #[must_use]
    pub fn outputs(&self) -> &StepOutputs {
        &self.outputs
    }

    /// Record of the latest call of [`Engine::decode_ahead`], step by step.
    #[must_use]
    pub fn fast_forward(&self) -> &FastForward {
        &self.fast_forward
    }

    /// Whether vLLM would take a prompt of this length and this maximum of output
    /// tokens: one for pooling, which has none, may fill the model's length.
    pub fn check_prompt(&self, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason> {
        if prompt_tokens == 0 {
            return Err(RejectReason::EmptyPrompt);
        }
        if prompt_tokens > self.config.max_model_len() - max_tokens.min(1) {
            return Err(RejectReason::PromptTooLong);
        }
        Ok(())
    }

    /// Whether a request of these lengths could run here to its end. Others may still be submitted,
    /// as to vLLM's scheduler, because a stop or an abort may end them earlier. Otherwise they
    /// would wait forever, so drivers that cannot wait call this first.
    pub fn check(&self, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason> {
        self.check_prompt(prompt_tokens, max_tokens)?;
        let model_len = self.config.max_model_len();
        // Whether it is split depends on the load; the threshold splits where chunked prefill is off, too, and so may
        // drafts, which vLLM has for no request without output.
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
        // Drafts need slots, too, and so do the drafts after them. If the model length is known,
        // vLLM's start-up check has reserved these.
        let Drafting { lookahead_tokens, .. } = self.config.drafting();
        let drafts = self.config.num_speculative_tokens() + lookahead_tokens;
        let drafts = if self.config.max_model_len() == u32::MAX { drafts } else { 0 };
        let beyond = self.config.quirks().burst_tokens().max(drafts);
        let longest = (computed + u64::from(beyond)).min(u64::from(model_len));
        // After a preemption all of it is recomputed, and without chunking in one step.
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
    /// When vLLM would not take it; the engine is unchanged.
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
        // A prompt that reads no cache is also computed completely by the engine that continues it.
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

/// Extent of a pause of the scheduler. Names are vLLM's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PauseState {
    /// Everything.
    #[default]
    Unpaused,
    /// Running requests continue, and so do waiting requests whose KV has been transferred. Other
    /// requests are accepted and wait, preempted ones included. With the rules of vLLM up to 0.31,
    /// requests with KV wait, too, and [`Engine::num_unfinished`] does not count them.
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

    /// Sets how much is scheduled from the next step on.
    pub fn set_pause_state(&mut self, state: PauseState) {
        self.pause_state = state;
    }

    /// Requests that the engine continues to serve (vLLM's `get_num_unfinished_requests`). Without
    /// a pause these are all running and waiting requests except those that wait for the next part
    /// of their prompt; under [`PauseState::PausedNew`] those that run, load KV or have loaded it;
    /// under [`PauseState::PausedAll`] none.
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

/// The requests that run, in order of admission.
#[derive(Debug, Default)]
struct RunningRequests {
    ids: Vec<RequestId>,
    /// Tags of requests preempted since the last plan took them over.
    preempted: Vec<u64>,
    /// Scratch for the adapters that count against the cap.
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
    /// A request is admitted.
    #[inline]
    fn push(&mut self, id: RequestId) {
        self.ids.push(id);
    }

    /// Takes the newest out of the list.
    fn pop(&mut self) -> Option<RequestId> {
        self.ids.pop()
    }

    /// Removes a request from the list, and returns its place.
    ///
    /// # Panics
    /// When it does not run.
    fn remove(&mut self, id: RequestId) -> usize {
        let position = self.ids.iter().position(|&other| other == id).expect("a victim is running");
        self.ids.remove(position);
        position
    }

    /// Keeps the entries for which the predicate holds.
    #[inline]
    fn retain(&mut self, is_kept: impl FnMut(&RequestId) -> bool) {
        self.ids.retain(is_kept);
    }

    /// Notes that a request has left the list, so that the next plan names it as preempted.
    fn note_preempted(&mut self, tag: u64) {
        self.preempted.push(tag);
    }

    /// Moves the tags of preempted requests into a plan.
    #[inline]
    fn take_preempted(&mut self, into: &mut Vec<u64>) {
        into.append(&mut self.preempted);
    }

    /// Takes the scratch for adapters, to be put back.
    #[inline]
    fn take_loras(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.loras)
    }

    /// Puts the scratch for adapters back.
    #[inline]
    fn put_loras(&mut self, mut loras: Vec<u32>) {
        loras.clear();
        self.loras = loras;
    }
}
