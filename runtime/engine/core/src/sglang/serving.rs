//! [`ServingEngine`](crate::ServingEngine) for the SGLang engine.

use super::config::{PassOrder, Retraction};
use super::engine::SglangEngine;
use crate::engine::RejectReason;
use crate::kv::event::KvEventLog;
use crate::kv::hash::BlockHash;
use crate::plan::{AdmissionStop, RemoteLoad, ScheduledKind, ScheduledRequest, StepOutputs, StepPlan};
use crate::plugins::TokenSource;
use crate::plugins::latency::DecodeSteps;
use crate::request::{Request, RequestId, RequestSpec, RequestStatus};
use crate::serving::{EngineLoad, ServingEngine};
use crate::stats::EngineStats;

impl ServingEngine for SglangEngine {
    fn check(&self, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason> {
        self.check_prompt(prompt_tokens)?;
        let end = prompt_tokens.saturating_add(max_tokens).min(self.config.max_model_len());
        let output = end - prompt_tokens;
        let page_size = u64::from(self.config.page_size());
        let total_tokens = u64::from(self.config.total_tokens());
        let prompt_pages = u64::from(self.pages.for_tokens(prompt_tokens));
        if prompt_pages * page_size + u64::from(output.min(self.config.clip_max_new_tokens())) >= total_tokens {
            return Err(RejectReason::ExceedsKvReserve);
        }
        let first_has_slot = self.config.pass_order() == PassOrder::Mixed;
        let longest = if output > 1 || first_has_slot { end } else { prompt_tokens };
        if u64::from(longest) > total_tokens {
            return Err(RejectReason::ExceedsKvPool);
        }
        Ok(())
    }

    fn submit(&mut self, spec: RequestSpec) -> Result<RequestId, RejectReason> {
        self.check_prompt(spec.prompt.len_tokens)?;
        if self.requests.find(spec.tag).is_some() {
            return Err(RejectReason::DuplicateRequest);
        }
        if spec.lora.is_some() {
            return Err(RejectReason::AdaptersOff);
        }
        if spec.structured {
            return Err(RejectReason::StructuredNotSimulated);
        }
        let sequence = self.requests.next_sequence();
        let request = Request::new(spec, sequence, self.config.page_size(), self.config.max_model_len());
        self.outstanding_prefill_tokens += u64::from(request.prefill_target_tokens);
        let id = self.requests.insert(request);
        self.pages.enter(id);
        self.queues.enter(id, &mut self.requests);
        Ok(id)
    }

    fn abort(&mut self, id: RequestId) {
        self.abort_request(id);
    }

    fn live_tags(&self) -> Vec<u64> {
        self.requests.live_ids().map(|id| self.requests[id].tag).collect()
    }

    fn running_tags(&self) -> Vec<u64> {
        self.queues.begun().iter().chain(&self.running).map(|&id| self.requests[id].tag).collect()
    }

    fn reserve_remote(&mut self) -> Option<RemoteLoad> {
        self.reserve_for_destination()
    }

    fn may_reserve(&self) -> bool {
        self.waits_for_pages()
    }

    fn remote_kv_arrived(&mut self, id: RequestId) {
        self.end_load(id);
    }

    fn release_held_kv(&mut self, id: RequestId) {
        assert_eq!(self.requests[id].status, RequestStatus::HoldingKv, "no KV was held");
        self.release_source(id);
    }

    fn has_schedulable_requests(&self) -> bool {
        !self.running.is_empty() || self.queues.num_waiting() + self.queues.num_kv_ready() > 0
    }

    fn schedule(&mut self) -> &StepPlan {
        assert!(!self.step_in_flight, "scheduled a pass while one is in flight");
        let mut plan = std::mem::take(&mut self.plan);
        plan.clear();
        self.run_loaded();
        if !self.interval.counts_together() && self.running.is_empty() {
            self.skip_decodes_due();
        }
        plan.admission_stop = match self.interval.decodes_due() {
            0 => self.admit(&mut plan),
            _ if self.queues.num_waiting() == 0 => AdmissionStop::Drained,
            _ => AdmissionStop::Budget,
        };
        let prefills = !self.prefills.is_empty();
        if !self.interval.counts_together() {
            self.end_passes_of_ranks(1, prefills);
        }
        self.take_first_slots();
        let is_new = |entry: &ScheduledRequest| entry.kind != ScheduledKind::Running;
        self.prefills.sort_by_key(is_new);
        let num_going_on = self.prefills.partition_point(|entry| !is_new(entry));
        self.enter_prefills(&mut plan, num_going_on);
        if self.config.pass_order() == PassOrder::Mixed || !prefills {
            self.decode(&mut plan);
        }
        self.end_pass(&mut plan);
        let falls = self.config.retraction() == Retraction::BeforeAll || (!prefills && self.retracted.is_empty());
        self.step_in_flight = !plan.scheduled.is_empty();
        // An idle rank keeps its share while another rank is busy.
        let idles = self.interval.counts_together() && !self.step_in_flight;
        self.reserve.fall(u32::from(falls && !idles));
        self.requeue_retracted();
        self.stats.steps += u64::from(self.step_in_flight);
        self.plan = plan;
        &self.plan
    }

    fn steps_in_flight(&self) -> usize {
        usize::from(self.step_in_flight)
    }

    fn plan(&self) -> &StepPlan {
        &self.plan
    }

    fn update<S: TokenSource + ?Sized>(&mut self, source: &mut S) -> &StepOutputs {
        self.apply(source);
        &self.outputs
    }

    fn outputs(&self) -> &StepOutputs {
        &self.outputs
    }

    fn predict_decode_steps(&self, most: usize, steps: &mut DecodeSteps) {
        self.predict(most, steps);
    }

    fn decode_ahead<S: TokenSource + ?Sized>(&mut self, steps: u32, source: &mut S) {
        self.skip(steps, source);
    }

    fn load(&self) -> EngineLoad {
        EngineLoad {
            num_running: self.running.len() + self.queues.begun().len(),
            num_waiting: self.queues.num_not_begun(),
            num_loading: self.queues.num_loading(),
            outstanding_prefill_tokens: self.outstanding_prefill_tokens,
            num_active_blocks: self.config.num_pages() - self.pages.num_available(),
            num_usable_blocks: self.config.num_pages(),
        }
    }

    fn stats(&self) -> &EngineStats {
        &self.stats
    }

    fn cached_prefix_blocks(&self, hashes: &[BlockHash]) -> u32 {
        self.pages.cached_prefix(hashes)
    }

    fn record_kv_events(&mut self, on: bool) {
        self.pages.record_events(on);
    }

    fn kv_events(&self) -> Option<&KvEventLog> {
        self.pages.events()
    }

    fn clear_kv_events(&mut self) {
        self.pages.clear_events();
    }
}
