//! The engine core of one engine and the clock of its steps.
//!
//! A step starts when the step before it ended, not when this thread noticed the end. So delays of the thread never
//! accumulate.

use std::collections::VecDeque;

use vcr_core::host::{Launches, Overheads, Pipeline};
use vcr_core::kv_event::KvEventLog;
use vcr_core::latency::{LatencyModel, StepBatch, StepShape};
use vcr_core::plan::ScheduledKind;
use vcr_core::policy::SchedulingPolicy;
use vcr_core::{
    AnyEngine, Compilation, Engine, KvTiers, PauseState, RejectReason, RequestId, RequestSpec, ServingEngine as _,
    SessionInput,
};
use vcr_wire::{EventType, IterationDetails};

use crate::config::Placement;
use crate::context::Context;
use crate::counters::Counters;
use crate::egress::Egress;
use crate::error::LiveError;
use crate::kv_transfer::transfers::Transfers;
use crate::requests::{LiveRequest, Requests};
use crate::stepping::output::{OutputParts, finish_reason};
use crate::stepping::results::StepResults;
use crate::stepping::watch::{StepWatch, Submitted};
use crate::tokens::Tokens;

/// If the loop is later than this, it does not catch up but restarts its clock: the process was suspended, and the
/// missed steps are useless.
const CATCH_UP_NS: u64 = 1_000_000_000;
/// Delay beyond which an applied step counts as late.
const LATE_NS: u64 = 1_000_000;

pub(crate) struct Stepper {
    engine: AnyEngine,
    pause: PauseState,
    policy: Option<Box<dyn SchedulingPolicy>>,
    latency: Box<dyn LatencyModel>,
    latency_name: String,
    time_scale: f64,
    /// Delays outside of steps, on the clock of the latency model.
    overheads: Overheads,
    /// The host's kernel launches, if they take time.
    launches: Option<Launches>,
    /// Steps in flight, oldest first.
    pipeline: VecDeque<Flight>,
    /// Pipeline stages of the steps, if there are several.
    stages: Option<Pipeline>,
    /// The end of the last applied step, if the next one follows it at once.
    follows_ns: Option<u64>,
    /// Duration of the last applied step.
    last_step_ns: u64,
    /// Whether anything has changed since the last time that no step could be decided.
    may_decide: bool,
    stalled_until_ns: u64,
    /// When the grammars of requests are compiled, with the requests' tags, in the order of arrival.
    compilations: VecDeque<(u64, u64)>,
    /// Requests whose KV has arrived from a tier; kept to reuse the allocation.
    loaded: Vec<u64>,
    watch: StepWatch,
}

impl Stepper {
    pub(crate) fn new(
        engine: AnyEngine,
        policy: Option<Box<dyn SchedulingPolicy>>,
        latency: Box<dyn LatencyModel>,
        latency_name: String,
        (overheads, time_scale): (Overheads, f64),
        watch: StepWatch,
    ) -> Self {
        let stages = engine.as_vllm().and_then(|engine| Pipeline::new(engine.config()));
        let mut stepper = Self {
            engine,
            pause: PauseState::default(),
            stages,
            policy,
            latency,
            latency_name,
            time_scale,
            overheads,
            launches: None,
            pipeline: VecDeque::new(),
            follows_ns: None,
            last_step_ns: 0,
            may_decide: true,
            stalled_until_ns: 0,
            compilations: VecDeque::new(),
            loaded: Vec::new(),
            watch,
        };
        stepper.apply_request_times();
        stepper.begin_launches();
        stepper
    }

    /// Makes the core use the times of requests, if the latency model has such times.
    fn apply_request_times(&mut self) {
        let times = self.latency.request_times();
        let Some(engine) = self.engine.as_vllm_mut() else { return };
        if times.is_some() || engine.has_request_times() {
            engine.set_request_times(times);
            engine.set_request_time_factor(1.0 / self.time_scale);
            self.may_decide = true;
        }
    }

    /// Starts with a host that has launched nothing, at the current time scale.
    fn begin_launches(&mut self) {
        let overheads = self.overheads.scaled(1.0 / self.time_scale);
        // Launches are modelled only for one stage.
        self.launches = match self.stages {
            None => {
                let is_async = self.engine.as_vllm().is_some_and(|engine| engine.config().async_scheduling());
                Launches::new(&overheads, is_async)
            }
            Some(_) => None,
        };
    }

    #[inline]
    pub(crate) fn engine(&self) -> &AnyEngine {
        &self.engine
    }

    fn has_request_times(&self) -> bool {
        self.engine.as_vllm().is_some_and(Engine::has_request_times)
    }

    pub(crate) fn has_policy(&self) -> bool {
        self.policy.is_some()
    }

    /// Submits a request to the core; `name` is the frontend's ID for it.
    ///
    /// # Errors
    /// vLLM would reject the request.
    pub(crate) fn submit(&mut self, spec: RequestSpec, name: &str) -> Result<RequestId, RejectReason> {
        let (tag, prompt_tokens, max_tokens) = (spec.tag, spec.prompt.len_tokens(), spec.max_tokens);
        let submitted = self.engine.submit(spec)?;
        self.watch.show(|observer, rank| {
            observer.submitted(rank, &Submitted { tag, name, prompt_tokens, max_tokens });
        });
        self.may_decide = true;
        Ok(submitted)
    }

    /// Adds the next part of a resumable request's prompt, or the end of its input, unless vLLM would refuse it.
    pub(crate) fn extend(&mut self, request: RequestId, input: Option<SessionInput>) -> Result<(), RejectReason> {
        self.engine.as_vllm_mut().ok_or(RejectReason::SessionNotSimulated)?.extend(request, input)?;
        self.may_decide = true;
        Ok(())
    }

    pub(crate) fn abort(&mut self, request: RequestId, tag: u64) {
        self.engine.abort(request);
        self.watch.show(|observer, rank| observer.aborted(rank, tag));
        self.may_decide = true;
    }

    /// Aborts all requests and reports the tag of each.
    pub(crate) fn abort_all(&mut self, mut aborted: impl FnMut(u64)) {
        let watch = &self.watch;
        let report = |tag| {
            watch.show(|observer, rank| observer.aborted(rank, tag));
            aborted(tag);
        };
        match &mut self.engine {
            AnyEngine::Vllm(engine) => engine.abort_all(report),
            AnyEngine::Sglang(engine) => engine.abort_all(report),
            AnyEngine::Ticks(_) => {}
        }
        self.may_decide = true;
    }

    /// Tells the observer that the engine stops serving.
    pub(crate) fn close(&self) {
        self.watch.show(|observer, rank| observer.closed(rank));
    }

    /// Handles KV that has arrived from another engine.
    pub(crate) fn finish_load(&mut self, request: Option<RequestId>) {
        if let Some(request) = request {
            self.engine.remote_kv_arrived(request);
        }
        self.may_decide = true;
    }

    /// Handles KV that will not arrive. Under vLLM's rules, the prompt is computed here.
    pub(crate) fn fail_load(&mut self, request: RequestId) {
        match self.engine.as_vllm_mut() {
            Some(engine) => engine.remote_kv_failed(request),
            // SGLang ends a request whose KV does not arrive.
            None => self.engine.abort(request),
        }
        self.may_decide = true;
    }

    pub(crate) fn release_held_kv(&mut self, request: RequestId) {
        self.engine.release_held_kv(request);
        self.may_decide = true;
    }

    /// The recorded prefix cache changes, if there are any.
    pub(crate) fn cache_events(&self) -> Option<&KvEventLog> {
        self.engine.kv_events().filter(|log| !log.is_empty())
    }

    /// Shows these changes to the step observer, unless it has seen them with the result of a step.
    pub(crate) fn show_cache_events(&self) {
        if self.cache_events().is_some() {
            self.watch.show(|observer, rank| observer.cache_changed(rank, &self.engine));
        }
    }

    /// Drops the recorded changes, after they have been taken.
    pub(crate) fn clear_cache_events(&mut self) {
        self.engine.clear_kv_events();
    }

    /// Forgets the places of a request's blocks, which are no longer needed.
    pub(crate) fn forget_events_of(&mut self, tag: u64) {
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.pool_mut().forget_events_of(tag);
        }
    }

    pub(crate) fn reset_encoder_cache(&mut self) {
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.reset_encoder_cache();
        }
    }

    /// Drops the prefix cache; with `preempt_running`, running requests are recomputed. Returns `false` if blocks
    /// are in use.
    pub(crate) fn reset_prefix_cache(&mut self, preempt_running: bool) -> bool {
        self.may_decide = true;
        match &mut self.engine {
            AnyEngine::Vllm(engine) => engine.reset_prefix_cache(preempt_running),
            AnyEngine::Sglang(engine) => engine.flush_cache(),
            AnyEngine::Ticks(_) => false,
        }
    }

    pub(crate) fn pause(&mut self, state: PauseState) {
        self.pause = state;
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.set_pause_state(state);
        }
    }

    pub(crate) fn resume(&mut self) {
        self.pause(PauseState::Unpaused);
        self.may_decide = true;
    }

    /// Whether scheduling is paused, by a frontend or from outside.
    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.pause != PauseState::Unpaused
    }

    pub(crate) fn latency_name(&self) -> &str {
        &self.latency_name
    }

    pub(crate) fn set_latency(&mut self, model: Box<dyn LatencyModel>, name: String) {
        (self.latency, self.latency_name) = (model, name);
        self.apply_request_times();
    }

    /// The divisor of all durations.
    pub(crate) fn time_scale(&self) -> f64 {
        self.time_scale
    }

    pub(crate) fn set_time_scale(&mut self, time_scale: f64) {
        self.time_scale = time_scale;
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.set_request_time_factor(1.0 / time_scale);
        }
        self.begin_launches();
    }

    /// Duration of the last applied step; 0 before the first.
    pub(crate) fn last_step_ns(&self) -> u64 {
        self.last_step_ns
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pipeline.is_empty()
    }

    /// The end of the last stall.
    #[inline]
    pub(crate) fn stalled_until_ns(&self) -> u64 {
        self.stalled_until_ns
    }

    /// Stalls the engine. The steps in flight continue after the stall.
    pub(crate) fn stall(&mut self, for_ns: u64, now_ns: u64) {
        self.stalled_until_ns = self.stalled_until_ns.max(now_ns.saturating_add(for_ns));
        for (index, flight) in self.pipeline.iter_mut().enumerate() {
            flight.end_ns = flight.end_ns.saturating_add(for_ns);
            if index > 0 {
                flight.start_ns = flight.start_ns.saturating_add(for_ns);
            }
        }
        if let Some(stages) = &mut self.stages {
            stages.delay(for_ns);
        }
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.delay_tokens(for_ns);
        }
        self.watch.show_always(|observer, rank| observer.stalled(rank, now_ns, for_ns));
    }

    /// When the oldest step in flight can be applied.
    pub(crate) fn next_step_ns(&self) -> Option<u64> {
        self.pipeline.front().map(|flight| flight.end_ns.max(self.stalled_until_ns))
    }

    /// When the next token of a request with its own times is due.
    pub(crate) fn next_token_ns(&self) -> Option<u64> {
        self.engine.as_vllm()?.next_token_ns().map(|due_ns| due_ns.max(self.stalled_until_ns))
    }

    /// Decides steps as long as the core may decide and has work.
    pub(crate) fn decide(
        &mut self,
        requests: &mut Requests,
        transfers: &mut Transfers,
        context: &Context,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        let follows_ns = self.follows_ns.take();
        self.advance_grammars(now_ns);
        if self.stalled_until_ns > now_ns {
            return Ok(());
        }
        match self.engine.as_vllm_mut() {
            Some(engine) => {
                self.may_decide |= engine.next_token_ns().is_some_and(|due_ns| due_ns <= now_ns);
                engine.advance_clock(now_ns);
            }
            None if self.pause == PauseState::PausedAll => return Ok(()),
            None => {}
        }
        self.advance_tiers(now_ns);
        while self.may_decide && self.engine.may_schedule() {
            if self.stages.as_ref().is_some_and(Pipeline::is_waiting) {
                break;
            }
            let has_finished = self.engine.as_vllm().is_some_and(Engine::has_finished_requests);
            if !self.engine.has_schedulable_requests() && !has_finished {
                self.may_decide = false;
                break;
            }
            // With several stages, the first one may be free.
            let after_ns = self.pipeline.back().filter(|_| self.stages.is_none()).map(|flight| flight.end_ns);
            let start_ns = after_ns.or(follows_ns).unwrap_or(now_ns);
            self.decide_one(start_ns, requests, transfers, context, now_ns)?;
        }
        if let Some(stages) = &mut self.stages {
            stages.drop_empty_batches();
        }
        self.pace_oldest();
        Ok(())
    }

    /// Corrects the end of the executing step for the host's launches: its own launch, and the launch of the step
    /// decided after it. Later steps are shifted by the same time.
    fn pace_oldest(&mut self) {
        if self.has_request_times() {
            return;
        }
        let Some(launches) = self.launches.as_mut() else { return };
        let next = self.pipeline.get(1).map(|flight| flight.shape);
        let Some(flight) = self.pipeline.front_mut().filter(|flight| !flight.is_paced) else { return };
        let price_ns = flight.end_ns - flight.start_ns;
        let mut durations_ns = [price_ns];
        launches.pace(&flight.shape, next.as_ref(), flight.start_ns, &mut durations_ns);
        let later_ns = durations_ns[0] as i64 - price_ns as i64;
        flight.end_ns = flight.start_ns.saturating_add(durations_ns[0]);
        flight.is_paced = true;
        self.pipeline.iter_mut().skip(1).for_each(|flight| flight.shift(later_ns));
    }

    fn decide_one(
        &mut self,
        start_ns: u64,
        requests: &mut Requests,
        transfers: &mut Transfers,
        context: &Context,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        if let (Some(policy), Some(engine)) = (&mut self.policy, self.engine.as_vllm_mut()) {
            engine.apply_policy(policy.as_mut(), context.since_start_ns(now_ns))?;
        }
        let plan = self.engine.schedule();
        let (sends_stats, timestamp) = (context.config.stats.log_stats, now_ns as f64 / 1e9);
        let placed = |request: &LiveRequest, place| {
            if let Some(placed) = &context.config.placements {
                placed(&request.id, place);
            }
        };
        for &tag in &plan.preempted {
            let Some(request) = requests.get_mut(tag) else { continue };
            placed(request, Placement::Preempted);
            if sends_stats {
                request.event(EventType::Preempted, timestamp);
            }
        }
        // Newly admitted requests come after all that were running.
        for entry in plan.scheduled.iter().rev().take_while(|entry| entry.kind != ScheduledKind::Running) {
            let Some(request) = requests.get_mut(entry.tag) else { continue };
            if entry.kind == ScheduledKind::New && request.external_tokens == 0 {
                request.local_cached_tokens = entry.num_computed_tokens;
            }
            if entry.kind == ScheduledKind::New {
                let cached_tokens = request.local_cached_tokens + request.external_tokens;
                placed(request, Placement::Scheduled { at_ns: now_ns, cached_tokens });
            }
            if sends_stats {
                request.event(EventType::Scheduled, timestamp);
            }
        }
        transfers.note_scheduled(plan);
        for load in &plan.remote_loads {
            if let Some(request) = requests.get_mut(load.tag) {
                request.local_cached_tokens = load.cached_tokens;
                request.external_tokens = load.missing_tokens;
            }
            transfers.announce(*load);
        }
        let (is_empty, has_preempted, shape) = (plan.scheduled.is_empty(), !plan.preempted.is_empty(), plan.shape);
        let adapter_ns = plan.adapter_ns;
        if !is_empty || has_preempted || self.stages.is_some() {
            self.watch.show(|observer, rank| observer.scheduled(rank, &self.engine));
        }
        let goes_on = self.stages.as_mut().is_some_and(|stages| stages.push(!is_empty, start_ns));
        if is_empty {
            // A step that only preempted has made room for another one.
            self.may_decide = has_preempted || goes_on;
            return Ok(());
        }
        if self.has_request_times() {
            self.push_in_flight(start_ns, 0, shape);
            return Ok(());
        }
        let since_start_ns = context.since_start_ns(start_ns);
        if let (Some(shapes), Some(engine)) = (self.latency.kv_group_shapes(), self.engine.as_vllm()) {
            shapes.clear();
            shapes.extend(engine.plan().kv_group_shapes(engine.config().kv_cache_groups()));
        }
        let batch = StepBatch { start_ns: since_start_ns, horizon_ns: since_start_ns, shapes: &[shape] };
        let mut durations_ns = Vec::new();
        self.latency.price(&batch, &mut durations_ns)?;
        // A model always prices the first step, whatever the horizon is.
        let duration_ns = durations_ns.first().map_or(0, |duration_ns| duration_ns.saturating_add(adapter_ns));
        let duration_ns = duration_ns as f64 / self.time_scale;
        let wait_ns = self.engine.as_vllm_mut().map_or(0, |engine| engine.flush_for_newest(start_ns));
        self.push_in_flight(start_ns, (duration_ns as u64).saturating_add(wait_ns), shape);
        Ok(())
    }

    /// Adds a step in flight. With several stages, it starts at the end of the step before.
    fn push_in_flight(&mut self, start_ns: u64, duration_ns: u64, shape: StepShape) {
        let flight = match &mut self.stages {
            None => Flight::new(start_ns, duration_ns, shape),
            Some(stages) => {
                let after_ns = self.pipeline.back().map_or(start_ns, |flight| flight.end_ns.max(start_ns));
                let end_ns = stages.end_ns(duration_ns).max(after_ns);
                Flight::new(after_ns, end_ns - after_ns, shape)
            }
        };
        self.pipeline.push_back(flight);
    }

    /// Takes the oldest step from the pipeline if it has ended, and has its tokens chosen. [`Stepper::apply`] must
    /// follow.
    pub(crate) fn take_due(
        &mut self,
        requests: &Requests,
        tokens: &mut Tokens,
        egress: &mut Egress,
        now_ns: u64,
    ) -> Result<Option<DueStep>, LiveError> {
        let Some(flight) = self.pipeline.front().copied() else { return Ok(None) };
        if flight.end_ns > now_ns || self.stalled_until_ns > now_ns {
            return Ok(None);
        }
        self.pipeline.pop_front();
        let plan = self.engine.oldest_plan();
        tokens.prepare(plan, |tag| requests.get(tag).map(|request| request.output_tokens))?;
        let details = egress.iteration_details(plan, flight.end_ns - flight.start_ns);
        Ok(Some(DueStep { flight, details }))
    }

    pub(crate) fn apply(&mut self, step: DueStep, parts: &mut OutputParts<'_>, now_ns: u64) -> AppliedStep {
        let DueStep { flight, details } = step;
        let mut results = StepResults::default();
        let (start_ns, end_ns) = (flight.start_ns, flight.end_ns);
        self.watch.show_always(|observer, rank| observer.ended(rank, start_ns, end_ns, &self.engine));
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.offload_prompts(now_ns);
        }
        self.engine.update(parts.tokens);
        self.watch.show(|observer, rank| observer.applied(rank, start_ns, end_ns, &self.engine));
        let outputs = self.engine.outputs();
        let mut tokens = outputs.tokens.as_slice();
        for output in &outputs.outputs {
            let (own, later) = tokens.split_at(output.num_tokens as usize);
            tokens = later;
            if output.num_sampled_tokens > 1 && parts.requests.get(output.tag).is_some() {
                parts.egress.stats().drafts_verified(u32::from(output.num_sampled_tokens) - 1);
            }
            let finish = output.finish.map(finish_reason);
            parts.emit(&self.engine, output.tag, own, finish, now_ns, &mut results);
        }
        AppliedStep { flight, details, results }
    }

    /// Counts a step, which must be the last one applied, and lets the next step follow it.
    pub(crate) fn finish(&mut self, step: &AppliedStep, counters: &mut Counters, now_ns: u64) {
        let late_ns = now_ns.saturating_sub(step.flight.end_ns);
        counters.late_steps += u64::from(late_ns > LATE_NS);
        counters.max_late_ns = counters.max_late_ns.max(late_ns);
        self.last_step_ns = step.duration_ns();
        self.follows_ns = (late_ns <= CATCH_UP_NS).then_some(step.flight.end_ns);
        self.may_decide = true;
        if let Some(stages) = &mut self.stages {
            stages.pop();
        }
    }
}

impl Stepper {
    /// Records when the grammar of a submitted request is compiled; not before the grammars of earlier requests.
    pub(crate) fn expect_grammar(&mut self, tag: u64, due_ns: u64) {
        self.compilations.push_back((due_ns, tag));
    }

    /// When KV next arrives from a tier below the device.
    pub(crate) fn next_tier_load_ns(&self) -> Option<u64> {
        self.engine.as_vllm()?.kv_tiers().and_then(KvTiers::next_load_ns)
    }

    /// When the next compilation of a grammar ends.
    pub(crate) fn next_grammar_ns(&self) -> Option<u64> {
        self.compilations.front().map(|(due_ns, _)| *due_ns)
    }

    /// Handles compiled grammars, whose requests can be admitted now.
    pub(super) fn advance_grammars(&mut self, now_ns: u64) {
        while let Some((_, tag)) = self.compilations.pop_front_if(|(due_ns, _)| *due_ns <= now_ns) {
            let engine = self.engine.as_vllm_mut();
            self.may_decide |= engine.is_some_and(|engine| engine.end_compilation(tag, Compilation::Succeeded));
        }
    }

    /// Handles KV that has arrived from tiers; its requests can be admitted now.
    pub(super) fn advance_tiers(&mut self, now_ns: u64) {
        if let Some(engine) = self.engine.as_vllm_mut()
            && engine.kv_tiers().is_some()
        {
            self.loaded.clear();
            engine.advance_tiers(now_ns, &mut self.loaded);
            self.may_decide |= !self.loaded.is_empty() || engine.has_deferred_lookups();
        }
    }
}

/// A step on the simulated GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    pub(super) shape: StepShape,
    /// Whether the end includes the host's launches, if they take time.
    pub(super) is_paced: bool,
}

impl Flight {
    pub(super) fn new(start_ns: u64, duration_ns: u64, shape: StepShape) -> Self {
        Self { start_ns, end_ns: start_ns.saturating_add(duration_ns), shape, is_paced: false }
    }

    /// Moves the step, because the step before it ends later or earlier by this time.
    pub(super) fn shift(&mut self, by_ns: i64) {
        self.start_ns = self.start_ns.saturating_add_signed(by_ns);
        self.end_ns = self.end_ns.saturating_add_signed(by_ns);
    }
}

pub(crate) struct DueStep {
    pub(super) flight: Flight,
    pub(super) details: Option<IterationDetails>,
}

pub(crate) struct AppliedStep {
    pub(super) flight: Flight,
    pub(crate) details: Option<IterationDetails>,
    pub(crate) results: StepResults,
}

impl AppliedStep {
    pub(crate) fn duration_ns(&self) -> u64 {
        self.flight.end_ns - self.flight.start_ns
    }
}
