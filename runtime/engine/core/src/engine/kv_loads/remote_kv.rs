//! KV that is transferred from or to another engine.
//!
//! If another engine has computed a request's prompt, the request gets blocks and waits without a running slot until
//! the driver reports the result of the transfer.

use crate::engine::kv_cache::Claim;
use crate::engine::{Engine, RejectReason};
use crate::kv::groups::Chunk;
use crate::plan::{RemoteLoad, StepPlan};
use crate::request::{Flags, KvRole, RequestId, RequestStatus};

impl Engine {
    /// Allocates blocks for the oldest request whose prompt another engine computes, if there is room for its
    /// whole prompt and a running slot. Call it between steps, and only with
    /// [`crate::Reservations::BetweenSteps`]. The result may change when a step is applied, a transfer
    /// completes or a request arrives.
    pub fn reserve_remote(&mut self) -> Option<RemoteLoad> {
        self.queues.set_destination_blocked(true);
        if self.running.len() >= self.config.max_running() {
            return None;
        }
        let id = self.queues.pop_destination(&mut self.requests)?;
        self.kv_cache.clear_hit();
        let request = &mut self.requests[id];
        let num_tokens = request.num_tokens;
        let computed = self.kv_cache.lookup_prefix(request, &self.config);
        let claim = Claim { computed_tokens: num_tokens, slots_tokens: num_tokens, ..Claim::default() };
        if !self.allocate_admission(id, claim, None) {
            self.queues.return_destination(id, &mut self.requests);
            return None;
        }
        self.count_lookup(id, computed);
        self.set_computed(id, computed);
        self.queues.set_deferred(id, true, &mut self.requests);
        self.queues.set_destination_blocked(false);
        Some(self.start_remote_load(id))
    }

    /// Blocks that a load must leave free so that requests that already hold KV can continue: the blocks that
    /// unfinished prefills and loads still need, plus the blocks of a step with drafts (vLLM's
    /// `_inflight_prefill_reserved_blocks` and `_spec_decode_step_blocks`). The prefills of this step are counted as
    /// they were before the step.
    pub(in crate::engine) fn blocks_reserved_from_loads(&self, plan: &StepPlan) -> u32 {
        let step_tokens = self.draft_step_tokens();
        let missing = |id: RequestId| {
            let request = &self.requests[id];
            let known = request.num_tokens.min(self.config.max_model_len());
            let tokens = known.saturating_add(step_tokens);
            match self.kv_cache.groups() {
                Some(groups) => {
                    let scheduled = plan.scheduled.iter().find(|scheduled| scheduled.request == id);
                    let computed =
                        scheduled.map_or(request.num_computed_tokens, |scheduled| scheduled.num_computed_tokens);
                    let prefill_end = request.prefill_end();
                    let chunk = Chunk { computed, tokens: known, slots: tokens, encoder_tokens: 0, prefill_end };
                    groups.missing_blocks(id, chunk, true)
                }
                None => tokens.div_ceil(self.config.block_size()).saturating_sub(request.block_table.len() as u32),
            }
        };
        self.prefills.in_flight(&self.requests).map(missing).sum::<u32>() + self.draft_step_blocks()
    }

    /// Checks that the KV of a prompt of this length can be loaded: in an otherwise empty engine, enough
    /// blocks must remain for the request's first step with drafts.
    pub fn check_load(&self, prompt_tokens: u32) -> Result<(), RejectReason> {
        if self.config.num_speculative_tokens() == 0 {
            return Ok(());
        }
        let needed = self.config.most_blocks(prompt_tokens) + u64::from(self.draft_step_blocks());
        if needed > u64::from(self.pool().num_usable()) { Err(RejectReason::LoadNeverFits) } else { Ok(()) }
    }

    /// Slots of a step with drafts, including the drafter's lookahead; 0 without drafts.
    fn draft_step_tokens(&self) -> u32 {
        if self.config.num_speculative_tokens() == 0 {
            return 0;
        }
        1 + self.config.num_speculative_tokens() + self.config.drafting().lookahead_tokens
    }

    /// Number of blocks that a step with drafts newly allocates.
    fn draft_step_blocks(&self) -> u32 {
        let step_tokens = self.draft_step_tokens();
        match self.kv_cache.groups() {
            Some(groups) => groups.new_blocks(step_tokens),
            None => step_tokens.div_ceil(self.config.block_size()),
        }
    }

    /// Whether a request waits for blocks, and [`Engine::reserve_remote`] may find them at
    /// the end of the step in flight.
    #[must_use]
    pub fn may_reserve(&self) -> bool {
        self.queues.may_reserve()
    }

    /// Starts the transfer of the prompt's KV that is not in the cache.
    pub(in crate::engine) fn start_remote_load(&mut self, id: RequestId) -> RemoteLoad {
        self.begin_load(id, false);
        let request = &self.requests[id];
        let cached_tokens = request.num_computed_tokens;
        let missing_tokens = request.prompt_tokens - cached_tokens;
        let of_groups = self.kv_cache.groups().map(|groups| groups.moved_tokens(cached_tokens, request.prompt_tokens));
        RemoteLoad {
            request: id,
            tag: request.tag,
            cached_tokens,
            missing_tokens,
            moved_tokens: of_groups.unwrap_or(missing_tokens),
        }
    }

    /// Completes the transfer announced by a [`RemoteLoad`]. The request may now be admitted. Other requests may hit
    /// its blocks once the scheduler reaches it.
    ///
    /// # Panics
    /// If the request does not wait for a transfer, or was aborted: a driver bug.
    pub fn remote_kv_arrived(&mut self, id: RequestId) {
        self.end_load(id);
        let request = &mut self.requests[id];
        request.num_computed_tokens = request.prompt_tokens;
        if self.config.quirks().takes_over_on_arrival() {
            self.take_over_load(id);
        }
    }

    /// Handles the failure of a transfer that a [`RemoteLoad`] announced. The request's blocks are freed
    /// and not offered to the cache. Its prompt is computed here, as in vLLM with
    /// `kv_load_failure_policy` `recompute`, except for the part that is in the cache by then.
    ///
    /// The request waits at the head of the requests without KV. (vLLM leaves it among the requests with KV,
    /// so these may have to wait for it, and admits it even under [`crate::PauseState::PausedNew`].)
    ///
    /// # Panics
    /// If the request does not wait for a transfer, or was aborted: a driver bug.
    pub fn remote_kv_failed(&mut self, id: RequestId) {
        self.end_remote_load(id, RequestStatus::Waiting);
        self.requests[id].flags.set(Flags::IN_FLIGHT_PREFILL, false);
        self.forget_kv(id);
        self.requests[id].kv_role = KvRole::Local;
        self.queues.enter_first(id, &mut self.requests);
    }

    /// Frees the KV of a request that ended with [`KvRole::Source`].
    ///
    /// # Panics
    /// If no KV is held: a driver bug.
    pub fn release_held_kv(&mut self, id: RequestId) {
        assert_eq!(self.requests[id].status, RequestStatus::HoldingKv, "no KV was held");
        self.drop_request(id);
    }

    /// Drops the KV of a request, whose prompt is then computed here from the start.
    pub(in crate::engine) fn forget_kv(&mut self, id: RequestId) {
        self.end_reservation(id);
        self.release_blocks(id);
        let request = &mut self.requests[id];
        self.kv_cache.forget_table(request, self.config.block_size());
        self.prefills.recount(request, |request| {
            request.num_computed_tokens = 0;
            request.prefill_target_tokens = request.num_tokens;
        });
    }

    pub(in crate::engine) fn end_remote_load(&mut self, id: RequestId, status: RequestStatus) {
        let request = &mut self.requests[id];
        assert_eq!(request.status, RequestStatus::WaitingForRemoteKv, "no transfer was pending");
        request.status = status;
        self.queues.end_load();
    }
}
