//! Steps: decided, waited for, and told.

use std::cmp::Reverse;
use std::time::Duration;

use vcr_core::RequestId;
use vcr_core::latency::StepBatch;
use vcr_core::plan::ScheduledKind;
use vcr_wire::{EngineCoreOutput, EngineCoreOutputs, EventType, FinishReason, SchedulerStats};

use crate::answer::{add_extras, embedding, prefill_stats, reason_of_stop, stop_reason};
use crate::error::LiveError;
use crate::faults::Due;
use crate::incoming::finish_reason;
use crate::injector::Happened;
use crate::requests::{LiveRequest, slot_of};
use crate::server::{End, Flight, Server};
use crate::transfer::Finished;

/// What a step brought besides its outputs.
#[derive(Default)]
pub(crate) struct Aftermath {
    ended: Vec<(u64, FinishReason)>,
    /// Requests that a fault ends although the engine goes on with them.
    failed: Vec<(u64, FinishReason)>,
    /// Requests that end with a message of their own, after that of the step.
    pub(crate) apart: Vec<(u64, FinishReason)>,
    /// Requests whose blocks nobody will fetch.
    unheld: Vec<RequestId>,
    pub(crate) due: Vec<Due>,
}

impl Server {
    /// Decides steps as long as the engine may and has work.
    pub(crate) fn decide_steps(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let follows_ns = self.follows_ns.take();
        if self.stalled_until_ns > now_ns {
            return Ok(());
        }
        while self.may_decide && self.engine.may_schedule() {
            if !self.engine.has_schedulable_requests() {
                self.may_decide = false;
                break;
            }
            let after_ns = self.pipeline.back().map(|flight| flight.end_ns);
            self.decide_step(after_ns.or(follows_ns).unwrap_or(now_ns), now_ns)?;
        }
        Ok(())
    }

    fn decide_step(&mut self, start_ns: u64, now_ns: u64) -> Result<(), LiveError> {
        if let Some(policy) = &mut self.policy {
            self.engine.consult(policy.as_mut(), now_ns.saturating_sub(self.origin_ns))?;
        }
        let plan = self.engine.schedule();
        if self.config.stats.log_stats {
            let timestamp = now_ns as f64 / 1e9;
            for &tag in &plan.preempted {
                if let Some(request) = self.requests.get_mut(tag) {
                    request.event(EventType::Preempted, timestamp);
                }
            }
        }
        // Newly admitted requests come after all that were running.
        for entry in plan.scheduled.iter().rev().take_while(|entry| entry.kind != ScheduledKind::Running) {
            let Some(request) = self.requests.get_mut(entry.tag) else { continue };
            if entry.kind == ScheduledKind::New && request.external_tokens == 0 {
                request.local_cached_tokens = entry.num_computed_tokens;
            }
            if self.config.stats.log_stats {
                request.event(EventType::Scheduled, now_ns as f64 / 1e9);
            }
        }
        for load in &plan.remote_loads {
            if let Some(request) = self.requests.get_mut(load.tag) {
                request.local_cached_tokens = load.cached_tokens;
                request.external_tokens = load.missing_tokens;
            }
            let takes_ns = self.transfers.duration_ns(load.missing_tokens) as f64 / self.time_scale;
            self.loads.push(Reverse((now_ns.saturating_add(takes_ns as u64), load.tag)));
        }
        if plan.scheduled.is_empty() {
            // A step that did nothing but preempt has made room for another.
            self.may_decide = !plan.preempted.is_empty();
            return Ok(());
        }
        let since_start_ns = start_ns.saturating_sub(self.origin_ns);
        let shapes = [plan.shape];
        let batch = StepBatch { start_ns: since_start_ns, horizon_ns: since_start_ns, shapes: &shapes };
        let mut durations_ns = Vec::new();
        self.latency.price(&batch, &mut durations_ns)?;
        // A model answers for the first step whatever the horizon.
        let duration_ns = durations_ns.first().map_or(0.0, |duration_ns| *duration_ns as f64 / self.time_scale);
        self.pipeline.push_back(Flight { start_ns, end_ns: start_ns.saturating_add(duration_ns as u64) });
        Ok(())
    }

    /// Applies the oldest step, if it has ended.
    pub(crate) fn apply_due(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let Some(flight) = self.pipeline.front().copied() else { return Ok(()) };
        if flight.end_ns > now_ns || self.stalled_until_ns > now_ns {
            return Ok(());
        }
        self.pipeline.pop_front();
        let plan = self.engine.oldest_plan();
        let requests = &self.requests;
        self.tokens.prepare(plan, |tag| requests.get(tag).map(|request| request.output_tokens))?;
        let settings = self.config.stats;
        let details = settings.iteration_details.then(|| self.stats.iteration(plan, flight.end_ns - flight.start_ns));
        let mut aftermath = Aftermath::default();
        self.tell_outputs(now_ns, &mut aftermath)?;
        self.end_requests(&aftermath);
        for &core in &aftermath.unheld {
            self.engine.release_held_kv(core);
        }
        self.is_shown = false;
        self.counters.steps += 1;
        self.counters.busy_ns += flight.end_ns - flight.start_ns;
        self.send_step(settings.log_stats, details, now_ns)?;
        self.end_apart(&aftermath, now_ns)?;
        self.publish_kv_events(now_ns)?;
        self.ask_injector(now_ns)?;
        let by_step = self.faults.due(self.since_start_ns(now_ns), true);
        for due in aftermath.due.into_iter().chain(by_step) {
            self.suffer(due, now_ns)?;
        }
        self.finish_wave()?;
        self.follow(flight.end_ns, now_ns);
        self.may_decide = true;
        Ok(())
    }

    /// Forgets those that have ended.
    pub(crate) fn end_requests(&mut self, aftermath: &Aftermath) {
        for &(tag, reason) in &aftermath.ended {
            self.forget(tag, reason);
        }
        for &(tag, reason) in &aftermath.failed {
            self.drop_request(tag, reason);
        }
        self.owes_stats = !aftermath.ended.is_empty() || !aftermath.failed.is_empty() || !aftermath.apart.is_empty();
    }

    /// Ends those that end with a message of their own.
    pub(crate) fn end_apart(&mut self, aftermath: &Aftermath, now_ns: u64) -> Result<(), LiveError> {
        for &(tag, reason) in &aftermath.apart {
            if let Some(request) = self.forget(tag, reason) {
                self.outputs.send_finish(request.client, &[&request.id], reason, None, now_ns)?;
            }
        }
        Ok(())
    }

    pub(crate) fn send_step(
        &mut self,
        log_stats: bool,
        details: Option<vcr_wire::IterationDetails>,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        let place = self.waves.as_ref().map(|waves| waves.place()).unwrap_or_default();
        let since_start_ns = self.since_start_ns(now_ns);
        let playing = self.player.counts();
        let stats = log_stats.then(|| self.stats.take(&self.engine, playing, place, details));
        Ok(self.outputs.send_step(stats, now_ns, &mut self.faults, since_start_ns)?)
    }

    /// As vLLM's engine makes one more empty step when its last request is
    /// gone: frontends learn that nothing runs any more.
    pub(crate) fn send_owed_stats(&mut self, now_ns: u64) -> Result<(), LiveError> {
        if !self.owes_stats || self.num_unfinished() > 0 || !self.pipeline.is_empty() {
            return Ok(());
        }
        self.owes_stats = false;
        if self.config.stats.log_stats {
            self.send_step(true, None, now_ns)?;
        }
        self.publish_kv_events(now_ns)?;
        self.finish_wave()
    }

    pub(crate) fn publish_kv_events(&mut self, now_ns: u64) -> Result<(), LiveError> {
        self.gather_cache_events();
        let since_start_ns = self.since_start_ns(now_ns);
        let Some(events) = &mut self.kv_events else { return Ok(()) };
        if events.is_empty() {
            return Ok(());
        }
        let is_lost = self.faults.loses_kv_events(since_start_ns);
        Ok(events.publish(is_lost)?)
    }

    /// Applies the step in the engine, and gathers what each request got.
    fn tell_outputs(&mut self, now_ns: u64, aftermath: &mut Aftermath) -> Result<(), LiveError> {
        self.engine.update(&mut self.tokens);
        let outputs = self.engine.outputs();
        let mut tokens = outputs.tokens.as_slice();
        for output in &outputs.outputs {
            let (own, later) = tokens.split_at(output.num_tokens as usize);
            tokens = later;
            let Some(request) = self.requests.get_mut(output.tag) else { continue };
            request.output_tokens += output.num_tokens;
            self.counters.generation_tokens += u64::from(output.num_tokens);
            if output.num_sampled_tokens > 1 {
                self.stats.drafts_verified(u32::from(output.num_sampled_tokens) - 1);
            }
            if self.injector.is_some() {
                let slot = slot_of(output.tag) as u32;
                self.happened.push(Happened::Emitted { slot, output_tokens: request.output_tokens });
            }
            let finish = output.finish.map(finish_reason);
            if request.is_plain() {
                let stop = finish.and_then(|finish| stop_reason(finish, own, request.eos_token));
                let finish = finish.map(|finish| (finish, stop.as_ref()));
                self.outputs.encoder(request.client).tokens(&request.id, own, finish);
                if let Some((reason, _)) = finish {
                    aftermath.ended.push((output.tag, reason));
                    if self.outputs.has_coordinator() {
                        self.outputs.encoder(request.client).finished(&request.id);
                    }
                }
                continue;
            }
            let reason = planned_end(request, output.tag, finish, aftermath);
            let mut message = EngineCoreOutput {
                request_id: String::from(&*request.id),
                new_token_ids: own.to_vec(),
                finish_reason: reason,
                stop_reason: reason.and_then(|reason| reason_of_stop(request, reason, own)),
                events: (!request.events.is_empty()).then(|| std::mem::take(&mut request.events)),
                ..EngineCoreOutput::default()
            };
            if std::mem::take(&mut request.is_silent) && self.config.stats.log_stats {
                message.prefill_stats = Some(prefill_stats(request, self.engine.config()));
            }
            add_extras(request, own, self.tokens.vocab_size(), &mut message);
            if let Some(extras) = request.extras.as_deref() {
                if extras.is_pooling && reason == Some(FinishReason::Length) {
                    let dimensions = self.config.tokens.embedding_dimensions.unwrap_or(0);
                    message.pooling_output = Some(embedding(extras.seed, dimensions));
                    message.finish_reason = Some(FinishReason::Stop);
                }
                let is_whole = matches!(reason, Some(FinishReason::Length | FinishReason::Stop));
                if extras.is_prefill_only && is_whole {
                    let finished = Finished {
                        id: &request.id,
                        core: output.request,
                        blocks: self.engine.block_table(output.request),
                        num_tokens: request.prompt_tokens + request.output_tokens,
                        cached_tokens: request.local_cached_tokens + request.external_tokens,
                        tensor_parallel_size: self.config.identity.tensor_parallel_size,
                        line: self.line,
                    };
                    match self.transfers.hold(&self.transport, &finished, now_ns) {
                        Ok(params) => message.kv_transfer_params = Some(params),
                        Err(error) => {
                            tracing::error!(
                                rank = self.rank,
                                request = &*request.id,
                                "no decode engine can be told of this prompt (see --side-channel-port): {error}"
                            );
                            aftermath.unheld.push(output.request);
                        }
                    }
                }
            }
            if self.outputs.has_coordinator() && reason.is_some() {
                self.outputs.encoder(request.client).finished(&request.id);
            }
            self.outputs.encoder(request.client).output(&message);
        }
        Ok(())
    }

    /// Does to the engine what a fault wants.
    pub(crate) fn suffer(&mut self, due: Due, now_ns: u64) -> Result<(), LiveError> {
        match due {
            Due::Stall { for_ns } => {
                tracing::warn!(rank = self.rank, duration = ?Duration::from_nanos(for_ns), "a fault stalls the engine");
                let until_ns = now_ns.saturating_add(for_ns);
                self.stalled_until_ns = self.stalled_until_ns.max(until_ns);
                // What was computing goes on where it stood.
                for flight in &mut self.pipeline {
                    flight.end_ns = flight.end_ns.saturating_add(for_ns);
                }
            }
            Due::Crash { restart_ns, says_so } => {
                tracing::warn!(rank = self.rank, restart_after = ?restart_ns.map(Duration::from_nanos), "a fault ends the engine");
                if says_so {
                    self.outputs.send_dead()?;
                }
                self.end = Some(End::Crashed { restart_ns });
            }
        }
        self.show_soon();
        Ok(())
    }

    /// A transfer is complete.
    pub(crate) fn finish_load(&mut self, tag: u64) {
        self.is_shown = false;
        // Aborted in the meantime, and its blocks with it.
        let Some(request) = self.requests.get_mut(tag) else { return };
        let remote = request.extras.as_mut().and_then(|extras| extras.remote.take());
        if let Some(core) = request.core {
            self.engine.remote_kv_arrived(core);
        }
        self.may_decide = true;
        if let Some(remote) = remote {
            self.release_remote(&remote);
        }
    }

    /// Frees blocks that decode engines have fetched, or never will.
    pub(crate) fn release_fetched(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let mut released = std::mem::take(&mut self.released);
        self.transfers.released(now_ns, &mut released)?;
        self.is_shown &= released.is_empty();
        for (core, is_expired) in released.drain(..) {
            self.engine.release_held_kv(core);
            self.counters.leases_expired += u64::from(is_expired);
            if is_expired {
                tracing::warn!(
                    rank = self.rank,
                    "no decode engine fetched a prompt's KV in time; its blocks are freed"
                );
            }
            self.may_decide = true;
        }
        self.released = released;
        Ok(())
    }

    /// Tells the coordinator if the wave is over.
    fn finish_wave(&mut self) -> Result<(), LiveError> {
        let Some(waves) = &self.waves else { return Ok(()) };
        if let Some(wave) = waves.stepped(self.index, self.num_unfinished() > 0) {
            let message = EngineCoreOutputs { wave_complete: Some(wave), ..EngineCoreOutputs::default() };
            self.outputs.tell_coordinator(message)?;
        }
        Ok(())
    }

    /// Tells the coordinator how many requests there are, if that has changed.
    pub(crate) fn tell_coordinator_counts(&mut self) -> Result<(), LiveError> {
        let (silent, playing) = self.player.counts();
        let counts = (self.engine.num_waiting() + silent, self.engine.num_running() + playing);
        if !self.outputs.has_coordinator() || counts == self.told_counts {
            return Ok(());
        }
        self.told_counts = counts;
        let place = self.waves.as_ref().map(|waves| waves.place()).unwrap_or_default();
        let stats = SchedulerStats {
            num_waiting_reqs: counts.0 as u64,
            num_running_reqs: counts.1 as u64,
            kv_cache_usage: crate::stats::usage(&self.engine),
            current_wave: place.wave,
            step_counter: place.step,
            ..SchedulerStats::of_line(self.line.rules())
        };
        let message = EngineCoreOutputs { scheduler_stats: Some(stats), ..EngineCoreOutputs::default() };
        Ok(self.outputs.tell_coordinator(message)?)
    }
}

/// How the request ends with this output: by itself, as recorded, or by a
/// fault.
pub(crate) fn planned_end(
    request: &mut LiveRequest,
    tag: u64,
    finish: Option<FinishReason>,
    aftermath: &mut Aftermath,
) -> Option<FinishReason> {
    let output_tokens = request.output_tokens;
    if let Some(extras) = &mut request.extras
        && let Some((_, due)) = extras.engine_fault.take_if(|(after, _)| *after <= output_tokens)
    {
        aftermath.due.push(due);
    }
    let extras = request.extras.as_ref();
    if let Some(finish) = finish {
        let recorded = extras.and_then(|extras| extras.recorded_end.as_ref());
        let finish = match recorded.filter(|end| end.after_tokens == output_tokens) {
            Some(end) if !end.comes_with_tokens() => {
                aftermath.apart.push((tag, end.reason));
                return None;
            }
            Some(end) => end.reason,
            None => finish,
        };
        aftermath.ended.push((tag, finish));
        return Some(finish);
    }
    let failure = extras.and_then(|extras| extras.failure)?;
    if output_tokens < failure.after_tokens {
        return None;
    }
    aftermath.failed.push((tag, failure.finish));
    Some(failure.finish)
}
