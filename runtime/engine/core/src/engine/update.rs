//! Applying a step: vLLM's `Scheduler.update_from_output()`.

use crate::engine::Engine;
use crate::plan::{RequestOutput, ScheduledRequest, StepOutputs, StepPlan};
use crate::plugins::TokenSource;
use crate::request::{FinishReason, Flags, Request, RequestId, RequestStatus};
use crate::stats::SpecDecodeStats;

/// Tokens that a step sampled for one request.
struct Sampled {
    num_tokens: u32,
    num_kept_tokens: u32,
    finish: Option<FinishReason>,
}

impl Engine {
    /// Applies the oldest step in flight. Samples for every request whose chunk reached its last
    /// known token, checks for stops, and frees ended requests.
    ///
    /// # Panics
    /// If no step is in flight: a driver bug.
    pub fn update<S: TokenSource + ?Sized>(&mut self, source: &mut S) -> &StepOutputs {
        self.kv_cache.free_deferred(self.steps.applied() + 1);
        self.end_last_steady_decode_step();
        let plan = self.steps.take_oldest();
        let (report, failed) = self.begin_report(Some(&plan));
        let mut out = std::mem::take(&mut self.outputs);
        out.clear();
        out.steady_decode_groups.extend_from_slice(&plan.steady_decode_groups);
        let mut any_finished = false;
        let plain = self.config.decodes_plainly();
        for entry in &plan.scheduled {
            if !failed.is_empty() && failed.contains(&entry.request) {
                self.drop_outputs(entry);
                continue;
            }
            if plain && self.apply_plain(entry, source, &mut out) {
                continue;
            }
            let Some(output) = self.apply(entry, &plan, source, &mut out) else { continue };
            any_finished |= output.finish.is_some();
            out.outputs.push(output);
        }
        if any_finished {
            let requests = &self.requests;
            self.running.retain(|&id| requests[id].status == RequestStatus::Running);
        }
        self.take_continuing_sessions(&mut out.continuing);
        self.steps.put_applied(plan);
        self.requests.recycle(self.steps.applied());
        self.end_report(&report, &failed, &mut out);
        self.outputs = out;
        self.close_steady_decode_step();
        self.join_steady_decode();
        if self.kv_loads.offloads() {
            self.settle_offloading();
        }
        &self.outputs
    }

    /// Fast path of [`Engine::apply`] for a request that is certain to continue after this step. Returns false if the
    /// request may end.
    #[inline(always)]
    fn apply_plain<S: TokenSource + ?Sized>(
        &mut self,
        entry: &ScheduledRequest,
        source: &mut S,
        out: &mut StepOutputs,
    ) -> bool {
        let request = &mut self.requests[entry.request];
        let goes_on = request.status == RequestStatus::Running
            && request.num_stale_tokens == 0
            && request.num_tokens + 1 < request.end_tokens
            && !request.flags.has(Flags::IS_NOT_PLAIN);
        if !goes_on {
            return false;
        }
        request.num_in_flight_tokens -= entry.num_scheduled_tokens;
        if entry.samples {
            let token = source.token(entry.tag, request.num_output_tokens());
            request.push_output(token, self.kv_cache.hashes_blocks(), self.config.block_size());
            out.tokens.push(token);
            out.outputs.push(RequestOutput {
                request: entry.request,
                tag: entry.tag,
                num_tokens: 1,
                num_sampled_tokens: 1,
                num_draft_tokens: 0,
                finish: None,
            });
        }
        true
    }

    /// Applies one request's part of a step.
    fn apply<S: TokenSource + ?Sized>(
        &mut self,
        entry: &ScheduledRequest,
        plan: &StepPlan,
        source: &mut S,
        out: &mut StepOutputs,
    ) -> Option<RequestOutput> {
        let id = entry.request;
        let request = &mut self.requests[id];
        // The request was aborted while the step was in flight.
        if request.status == RequestStatus::Finished {
            return None;
        }
        request.num_in_flight_tokens -= entry.num_scheduled_tokens;
        if request.status == RequestStatus::HoldingKv {
            return None;
        }
        let stale = request.num_stale_tokens > 0;
        if stale {
            request.num_stale_tokens -= entry.num_scheduled_tokens;
            if request.flags.has(Flags::DROPS_STALE) {
                return None;
            }
        }
        if !entry.samples {
            self.pass_items(id);
            return None;
        }
        let are_checked = !plan.with_checked_drafts.is_empty() && plan.with_checked_drafts.contains(&id);
        let num_invalid = if are_checked { Self::count_invalid(entry, source, out) } else { 0 };
        let sampled = self.sample(entry, num_invalid, stale, source, &mut out.tokens);
        self.pass_items(id);
        let num_draft_tokens = self.propose_drafts(entry, plan.most_drafts, source);
        if num_draft_tokens > 0 && self.grammars.is_some() && sampled.finish.is_none() {
            self.drop_invalid_drafts(entry, num_draft_tokens, source, out);
        }
        if !stale {
            self.finish_turn(id, &sampled);
        }
        if sampled.finish.is_some() {
            if stale {
                self.prefills.subtract(self.requests[id].outstanding_prefill_tokens());
                self.queues.leave(id, &mut self.requests);
            }
            let is_resumable = self.requests[id].flags.has(Flags::RESUMABLE);
            if !(is_resumable && self.goes_on(id)) {
                self.finish(id);
            }
        }
        Some(RequestOutput {
            request: id,
            tag: entry.tag,
            num_tokens: sampled.num_kept_tokens,
            num_sampled_tokens: sampled.num_tokens as u16,
            num_draft_tokens: num_draft_tokens as u16,
            finish: sampled.finish,
        })
    }

    /// Drops the outputs of a step that read KV that had not arrived.
    #[cold]
    fn drop_outputs(&mut self, entry: &ScheduledRequest) {
        let request = &mut self.requests[entry.request];
        request.num_in_flight_tokens -= entry.num_scheduled_tokens;
        request.num_stale_tokens = request.num_stale_tokens.saturating_sub(entry.num_scheduled_tokens);
    }

    /// Appends this step's tokens of one request, up to the first stop.
    fn sample<S: TokenSource + ?Sized>(
        &mut self,
        entry: &ScheduledRequest,
        num_invalid: u32,
        stale: bool,
        source: &mut S,
        tokens: &mut Vec<u32>,
    ) -> Sampled {
        let caching = self.kv_cache.hashes_blocks();
        let block_size = self.config.block_size();
        let most_extra = self.config.quirks().burst_tokens();
        let request = &mut self.requests[entry.request];
        let already = request.num_output_tokens();
        if request.max_tokens == 0 {
            return Sampled { num_tokens: 0, num_kept_tokens: 0, finish: Some(FinishReason::Length) };
        }
        let mut num_tokens = 1;
        if entry.num_draft_tokens > 0 {
            let stats = &mut self.stats.spec_decode;
            num_tokens += Self::verify_drafts(request, entry, num_invalid, stale, source, stats);
        } else if most_extra > 0 {
            let most = most_extra.min(request.max_tokens - already - 1);
            let extra = if most == 0 { 0 } else { source.extra_tokens(request.tag, most).min(most) };
            num_tokens += extra;
            // The KV of all tokens of a burst except the last is already computed.
            request.num_computed_tokens += extra;
        }
        let mut finish = None;
        let mut num_kept_tokens = 0;
        while num_kept_tokens < num_tokens && finish.is_none() {
            let token = source.token(request.tag, already + num_kept_tokens);
            num_kept_tokens += 1;
            tokens.push(token);
            request.push_output(token, caching, block_size);
            finish = request.finish_after(token);
        }
        if stale {
            // The token must be recomputed with the rest.
            request.prefill_target_tokens += num_kept_tokens;
            self.prefills.add(num_kept_tokens);
        }
        Sampled { num_tokens, num_kept_tokens, finish }
    }

    /// Asks the source for the number of accepted drafts, and takes back the rejected drafts.
    fn verify_drafts<S: TokenSource + ?Sized>(
        request: &mut Request,
        entry: &ScheduledRequest,
        num_invalid: u32,
        stale: bool,
        source: &mut S,
        stats: &mut SpecDecodeStats,
    ) -> u32 {
        let drafts = u32::from(entry.num_draft_tokens);
        let valid = drafts - num_invalid;
        let accepted = if valid == 0 { 0 } else { source.accepted_drafts(entry.tag, valid).min(valid) };
        let rejected = drafts - accepted;
        if !stale {
            request.num_computed_tokens = request.num_computed_tokens.saturating_sub(rejected);
            request.num_output_placeholders = request.num_output_placeholders.saturating_sub(rejected as u16);
        }
        stats.num_drafts += 1;
        stats.num_draft_tokens += u64::from(valid);
        stats.num_accepted_tokens += u64::from(accepted);
        accepted
    }

    /// Proposes drafts for the next step. The drafter does not know which requests have ended.
    #[inline]
    fn propose_drafts<S: TokenSource + ?Sized>(&mut self, entry: &ScheduledRequest, most: u32, source: &mut S) -> u32 {
        if most == 0 || self.config.async_scheduling() {
            return 0;
        }
        let proposed = source.proposed_drafts(entry.tag, most).min(most);
        self.requests[entry.request].num_draft_tokens = proposed as u16;
        proposed
    }

    /// Resolves placeholders and commits the blocks that the new tokens complete.
    #[inline]
    fn finish_turn(&mut self, id: RequestId, sampled: &Sampled) {
        if !self.config.async_scheduling() && self.config.num_speculative_tokens() == 0 {
            return;
        }
        let rules = self.config.rules();
        let request = &mut self.requests[id];
        let had_placeholders = request.num_output_placeholders > 0;
        // For tokens cut off by a stop, the rules either keep the placeholders or subtract the tokens.
        // The request ends in both cases.
        let mut resolved = sampled.num_kept_tokens as u16;
        if rules.takes_back_after_stops() {
            let cut_off = sampled.num_tokens - sampled.num_kept_tokens;
            request.num_computed_tokens = request.num_computed_tokens.saturating_sub(cut_off);
            resolved = sampled.num_tokens as u16;
        }
        request.num_output_placeholders = request.num_output_placeholders.saturating_sub(resolved);
        let committed = if rules.commits_outputs_with_drafts() {
            if !had_placeholders && self.config.num_speculative_tokens() == 0 {
                return;
            }
            request.num_computed_tokens.saturating_sub(request.num_in_flight_tokens)
        } else if self.config.async_scheduling() {
            request.num_computed_tokens.saturating_sub(request.num_output_placeholders.into())
        } else {
            return;
        };
        self.store_full_blocks(id, committed);
    }
}
