//! Writes what an engine does as the lines of its log.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use hashbrown::HashTable;
use vcr_base::finish_reason::FinishReason;
use vcr_core::hash::BlockHash;
use vcr_core::kv_event::KvEvent;
use vcr_core::plan::{AdmissionStop, EncoderInput, ScheduledKind, ScheduledRequest, StepPlan, WindowFree};
use vcr_core::{Compilation, EngineStats, FinishReason as EngineFinish, PrefixCacheStats, ServingEngine};

use crate::line::{Blocks, Encoded, Id, Lookup, Scheduled, StepEvent, StepLine, WindowFreed};

/// Writes the log of one engine. Requests are named by their tags unless they get [other names](Self::name).
///
/// The driver reports, in order, everything that it does to the engine, and takes a line after each iteration of
/// its loop. Lines contain KV events only if the engine's pool has recorded them from the start.
///
/// ```
/// use vcr_core::{Engine, EngineConfig, EngineConfigInput, Prompt, RequestSpec, TokenSource};
/// use vcr_steplog::EngineLog;
///
/// struct Sevens;
/// impl TokenSource for Sevens {
///     fn token(&mut self, _tag: u64, _output_index: u32) -> u32 {
///         7
///     }
/// }
///
/// let mut engine = Engine::new(EngineConfig::new(EngineConfigInput::default()).unwrap());
/// engine.pool_mut().record_events(true);
/// let mut log = EngineLog::new();
///
/// let prompt = Prompt::of_tokens((0..20).collect(), 16, 0);
/// engine.submit(RequestSpec::new(3, prompt, 1)).unwrap();
/// log.added(3);
/// engine.schedule();
/// log.scheduled(&engine);
/// engine.update(&mut Sevens);
/// log.applied(&engine);
/// engine.pool_mut().clear_events();
///
/// let line = serde_json::to_string(&log.take_line().unwrap()).unwrap();
/// assert_eq!(
///     line,
///     r#"{"i":0,"add":[3],"s":0,"sched":[[3,20,0,"n",[1,2]]],"tot":20,"run":[3],"wait":0,"free":16382,"#.to_owned()
///         + r#""pc":[1,20,0,0,0,0],"u":0,"out":[[3,1]],"fin":[[3,"length"]],"ev":[["S",null,[0]]]}"#
/// );
/// ```
#[derive(Debug, Default)]
pub struct EngineLog {
    /// The number of each block hash. Hashes are random enough to be used directly as table keys.
    numbers: HashTable<(BlockHash, u64)>,
    /// Names of the requests that are not named by their tags.
    names: HashMap<u64, Id>,
    /// Requests that ended after the latest schedule.
    ended: Vec<u64>,
    /// The steps in flight, oldest first: (number, whether the step is empty).
    in_flight: VecDeque<(u64, bool)>,
    schedules: u64,
    lines: u64,
    stats: EngineStats,
    line: StepLine,
    any: bool,
}

impl EngineLog {
    /// Starts the log of an engine that has not done anything yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the name of the request with this tag. The tag must be unique in the engine.
    pub fn name(&mut self, tag: u64, name: Id) {
        self.names.insert(tag, name);
    }

    fn id(&self, tag: u64) -> Id {
        self.names.get(&tag).cloned().unwrap_or(Id::Number(tag))
    }

    /// Records that a request was submitted.
    pub fn added(&mut self, tag: u64) {
        let id = self.id(tag);
        self.line.add.push(id);
        self.any = true;
    }

    /// Records that a request ended without output because its input ended.
    pub fn ended(&mut self, tag: u64) {
        self.ended.push(tag);
        self.any = true;
    }

    /// Records that a live request was aborted.
    pub fn aborted(&mut self, tag: u64) {
        let id = self.id(tag);
        self.line.abort.push(id);
        self.ended.push(tag);
        self.any = true;
    }

    /// Records that the compilation of a live request's grammar has ended.
    pub fn compiled(&mut self, tag: u64, compilation: Compilation) {
        let id = self.id(tag);
        self.line.gram.push((id, compilation == Compilation::Succeeded));
        self.any = true;
    }

    /// Records that a request failed because of its grammar while no step was in flight.
    pub fn failed(&mut self, tag: u64) {
        let id = self.id(tag);
        self.line.fin.push((id, reason_word(EngineFinish::Error).to_owned()));
        self.ended.push(tag);
        self.any = true;
    }

    /// Records the step that the engine has scheduled. The step may be empty.
    pub fn scheduled(&mut self, engine: &dyn ServingEngine) {
        let plan = engine.plan();
        let number = self.schedules;
        self.schedules += 1;
        self.in_flight.push_back((number, plan.scheduled.is_empty()));
        let ended = std::mem::take(&mut self.ended);
        let load = engine.load();
        let line = StepLine {
            s: Some(number),
            sched: Some(scheduled_rows(plan, |tag| self.id(tag))),
            tot: Some(plan.total_num_scheduled_tokens),
            pre: self.in_order(&plan.preempted),
            flush: self.in_order(&ended),
            run: Some(engine.running_tags().into_iter().map(|tag| self.id(tag)).collect()),
            wait: Some(load.num_waiting as u64),
            free: Some(load.num_usable_blocks - load.num_active_blocks),
            win: self.window_rows(plan),
            enc: encoder_rows(plan, |tag| self.id(tag)),
            encf: plan.freed_encoder_items.clone(),
            look: self.lookup_rows(plan),
            sync: plan.has_sync_kv_loads,
            why: (load.num_waiting > 0).then(|| stop_word(plan.admission_stop).to_owned()),
            ..std::mem::take(&mut self.line)
        };
        self.line = line;
        self.any = true;
    }

    /// Whether the next result to apply belongs to a non-empty step. False if no step is in flight.
    #[must_use]
    pub fn next_needs_update(&self) -> bool {
        self.in_flight.front().is_some_and(|&(_, empty)| !empty)
    }

    /// Whether the next step to apply is empty. False if no step is in flight.
    #[must_use]
    pub fn next_is_empty(&self) -> bool {
        self.in_flight.front().is_some_and(|&(_, empty)| empty)
    }

    /// Records that the result of the oldest step in flight was applied. This is also called for an empty step,
    /// which has no result. Also takes the pool's events; the driver must clear them.
    pub fn applied(&mut self, engine: &dyn ServingEngine) {
        let Some((number, empty)) = self.in_flight.pop_front() else { return };
        self.any = true;
        let line = &mut self.line;
        line.u = Some(number);
        line.out = Some(Vec::new());
        if !empty {
            self.outputs(engine);
        }
        let before = std::mem::replace(&mut self.stats, *engine.stats());
        let after = &self.stats;
        self.line.pc = prefix_delta([before.prefix, before.preempted_prefix], [after.prefix, after.preempted_prefix]);
        let external = |stats: &EngineStats| [stats.external, stats.preempted_external];
        self.line.xc = prefix_delta(external(&before), external(after));
        self.cache_changed(engine);
    }

    /// Records the requests that ended with an empty step, which was [applied](Self::applied). They ended because
    /// of reported transfers or because of a failed grammar.
    pub fn transferred(&mut self, engine: &dyn ServingEngine) {
        self.outputs(engine);
    }

    /// Takes the pool's events; the driver must clear them. Needed only if the driver also clears them at other
    /// times than after a step's result.
    pub fn cache_changed(&mut self, engine: &dyn ServingEngine) {
        let Some(log) = engine.kv_events() else { return };
        let by_group = engine.plan().num_groups > 0;
        for (group, event) in log.iter_by_group() {
            let event = self.event(event, by_group.then_some(group));
            self.line.ev.push(event);
        }
    }

    fn outputs(&mut self, engine: &dyn ServingEngine) {
        let drafting = engine.proposes_drafts();
        for output in &engine.outputs().outputs {
            let id = self.id(output.tag);
            let line = &mut self.line;
            if let Id::Number(number) = id
                && output.num_sampled_tokens != 1
            {
                line.sampled.insert(number, u32::from(output.num_sampled_tokens));
            }
            if drafting && output.num_tokens > 0 {
                line.drafts.push((id.clone(), u32::from(output.num_draft_tokens)));
            }
            if let Some(reason) = output.finish {
                if !engine.outputs().continuing.contains(&output.tag) {
                    self.ended.push(output.tag);
                }
                line.fin.push((id.clone(), reason_word(reason).to_owned()));
            }
            line.out.get_or_insert_default().push((id, output.num_tokens));
        }
        for &(tag, drafts) in &engine.outputs().invalid_drafts {
            let id = self.id(tag);
            self.line.inv.push((id, u32::from(drafts)));
        }
    }

    fn in_order(&self, tags: &[u64]) -> Vec<Id> {
        let mut ids: Vec<Id> = tags.iter().map(|tag| self.id(*tag)).collect();
        ids.sort_unstable();
        ids
    }

    fn window_rows(&self, plan: &StepPlan) -> Vec<WindowFreed> {
        let freed = |blocks: &Range<u32>| plan.freed_block_ids[blocks.start as usize..blocks.end as usize].to_vec();
        let row = |free: &WindowFree| WindowFreed(self.id(free.tag), free.group, freed(&free.blocks));
        plan.window_frees.iter().map(row).collect()
    }

    fn lookup_rows(&self, plan: &StepPlan) -> Vec<Lookup> {
        let lookups = plan.external_lookups.iter();
        lookups.map(|one| Lookup(self.id(one.tag), one.local_tokens, one.hit.tokens, one.hit.is_async)).collect()
    }

    fn event(&mut self, event: KvEvent<'_>, group: Option<u32>) -> StepEvent {
        match event {
            KvEvent::Stored { parent, blocks, .. } => StepEvent::Stored(
                parent.map(|hash| self.number(hash)),
                blocks.iter().map(|&hash| self.number(hash)).collect(),
                group,
            ),
            KvEvent::Removed(hash) => StepEvent::Removed(vec![self.number(hash)], group),
            KvEvent::Cleared => StepEvent::Cleared,
        }
    }

    fn number(&mut self, hash: BlockHash) -> u64 {
        let next = self.numbers.len() as u64;
        let entry = self.numbers.entry(hash, |(known, _)| *known == hash, |(known, _)| *known);
        entry.or_insert((hash, next)).get().1
    }

    /// Records that nothing happened before this iteration. Returns false if the log has already passed the
    /// iteration.
    pub fn idle_until(&mut self, iteration: u64) -> bool {
        let is_ahead = self.lines <= iteration;
        self.lines = self.lines.max(iteration);
        is_ahead
    }

    /// Ends an iteration and returns its line; None if nothing happened.
    pub fn take_line(&mut self) -> Option<StepLine> {
        let iteration = self.lines;
        self.lines += 1;
        let line = std::mem::take(&mut self.line);
        std::mem::take(&mut self.any).then_some(StepLine { i: Some(iteration), ..line })
    }
}

/// The rows of a plan. `id_of` converts a tag to the request's id.
pub(crate) fn scheduled_rows(plan: &StepPlan, id_of: impl Fn(u64) -> Id) -> Vec<Scheduled> {
    let rows = plan.scheduled.iter().map(|entry| Scheduled {
        request: id_of(entry.tag),
        tokens: entry.num_scheduled_tokens,
        computed: entry.num_computed_tokens,
        kind: match entry.kind {
            ScheduledKind::New => 'n',
            ScheduledKind::Resumed => 'p',
            ScheduledKind::Running => 'r',
        },
        blocks: blocks_of(plan, entry),
        drafts: u32::from(entry.num_draft_tokens),
    });
    rows.collect()
}

/// The multimodal items that the encoder computes. `id_of` converts a tag to the request's id.
pub(crate) fn encoder_rows(plan: &StepPlan, id_of: impl Fn(u64) -> Id) -> Vec<Encoded> {
    let of_request = plan.encoder_inputs.chunk_by(|one, other| one.tag == other.tag);
    let row = |inputs: &[EncoderInput]| Encoded(id_of(inputs[0].tag), inputs.iter().map(|one| one.input).collect());
    of_request.map(row).collect()
}

fn blocks_of(plan: &StepPlan, entry: &ScheduledRequest) -> Blocks {
    let all = plan.blocks_of(entry);
    if plan.num_groups == 0 || all.is_empty() {
        return Blocks::One(all.to_vec());
    }
    Blocks::ByGroup((0..plan.num_groups).map(|group| plan.blocks_of_group(entry, group).to_vec()).collect())
}

/// The word that `why` has for this reason.
#[must_use]
pub fn stop_word(stop: AdmissionStop) -> &'static str {
    match stop {
        AdmissionStop::Drained => "stepped over",
        AdmissionStop::Budget => "budget",
        AdmissionStop::RunningSlots => "cap",
        AdmissionStop::Blocks => "blocks",
        AdmissionStop::Preemption => "preemption",
        AdmissionStop::Unchunkable => "no chunking",
        AdmissionStop::Drafts => "drafts",
        AdmissionStop::Encoder => "encoder",
        AdmissionStop::Interval => "interval",
        AdmissionStop::Paused => "paused",
    }
}

pub(crate) fn reason_word(reason: EngineFinish) -> &'static str {
    let reason = match reason {
        EngineFinish::Stop => FinishReason::Stop,
        EngineFinish::Length => FinishReason::Length,
        EngineFinish::Repetition => FinishReason::Repetition,
        EngineFinish::Abort => FinishReason::Abort,
        EngineFinish::Error => FinishReason::Error,
    };
    reason.name()
}

/// The changes of the prefix-cache counters of first admissions, then of admissions after a preemption.
fn prefix_delta(before: [PrefixCacheStats; 2], after: [PrefixCacheStats; 2]) -> Option<[u64; 6]> {
    let words = |stats: PrefixCacheStats| [stats.requests, stats.queried_tokens, stats.hit_tokens];
    let mut delta = [0; 6];
    for (half, (before, after)) in delta.chunks_exact_mut(3).zip(before.into_iter().zip(after)) {
        for ((into, before), after) in half.iter_mut().zip(words(before)).zip(words(after)) {
            *into = after - before;
        }
    }
    (delta != [0; 6]).then_some(delta)
}
