//! Captures of a live engine.
//!
//! The same requests are added before each step, and then every step must be the same. Times are not compared, but
//! their order determines which steps were in flight together.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;

use vcr_core::{Engine, Prompt, PromptItem, RequestId, RequestSpec, StopRules};

use super::answers::RecordedTokens;
use super::block_names::Salts;
use super::capture::Capture;
use super::live_events::EventCheck;
use super::report::{CaseReport, Difference};
use super::scope::ADDED_TWICE;
use crate::engine_log::{encoder_rows, reason_word, scheduled_rows, stop_word};
use crate::error::LogError;
use crate::line::{Id, hide_resumed, with_group};
use crate::live::{LiveAdded, LiveItem, LiveStep, sorted};

pub(super) fn replay(folder: &Path) -> Result<CaseReport, LogError> {
    let mut report = CaseReport::new(folder);
    let capture = Capture::read(folder, &mut report)?;
    let events = EventCheck::read(folder, &capture, &mut report)?;
    let steps: Vec<&LiveStep> = capture.log.steps.iter().map(|(_, step)| step).collect();
    if steps.is_empty() {
        return Err(LogError::file(&capture.log.path, "expected at least one step"));
    }
    let mut replay = Replay::new(&capture, events);
    for act in acts(&steps) {
        let (index, outcome) = match act {
            Act::Schedule(index) => (index, replay.schedule(&steps, index, &mut report)),
            Act::Update(index) => (index, replay.update(&steps, index, &mut report)),
            Act::Abort(index, place) => {
                replay.abort(&steps[index].aborted[place]);
                continue;
            }
        };
        if let Err(failure) = outcome {
            let line = capture.log.steps[index].0;
            return failure.reported(&capture, line, steps[index].step, &replay.engine, report);
        }
    }
    if let Err(difference) = replay.events.finish(&mut report) {
        let (line, step) = capture.log.steps.last().map_or((1, 0), |(line, step)| (*line, step.step));
        report.mismatch = Some(difference.at(line, Some(step), None));
    }
    Ok(report)
}

/// A recorded action of the scheduler.
#[derive(Clone, Copy)]
enum Act {
    Schedule(usize),
    Update(usize),
    /// A request was aborted at a known time: index of the step whose line lists the request, and index in that
    /// line.
    Abort(usize, usize),
}

/// Orders schedules and updates by their times. Without times, schedules and updates alternate.
fn acts(steps: &[&LiveStep]) -> Vec<Act> {
    let mut acts: Vec<(f64, Act)> = Vec::new();
    let mut latest = f64::NEG_INFINITY;
    for (index, step) in steps.iter().enumerate() {
        let begin = step.t.first().copied().unwrap_or(latest).max(latest);
        latest = step.t.get(2).copied().unwrap_or(begin).max(begin);
        if step.aborted_at.len() == step.aborted.len() {
            acts.extend((0..).zip(&step.aborted_at).map(|(place, at)| (*at, Act::Abort(index, place))));
        }
        acts.push((step.t.first().copied().unwrap_or(begin), Act::Schedule(index)));
        acts.push((step.t.get(2).copied().unwrap_or(latest), Act::Update(index)));
    }
    // The sort is stable, so that acts at the same time keep the order of the log.
    acts.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    acts.into_iter().map(|(_, act)| act).collect()
}

enum Failure {
    Differs(Difference),
    Input(String),
}

impl Failure {
    fn reported(
        self,
        capture: &Capture,
        line: u64,
        step: u64,
        engine: &Engine,
        mut report: CaseReport,
    ) -> Result<CaseReport, LogError> {
        match self {
            Self::Input(problem) => Err(LogError::line(&capture.log.path, line, problem)),
            Self::Differs(difference) => {
                let why = (engine.num_waiting() > 0).then(|| stop_word(engine.plan().admission_stop).to_owned());
                report.mismatch = Some(difference.at(line, Some(step), why));
                Ok(report)
            }
        }
    }
}

impl From<Difference> for Failure {
    fn from(difference: Difference) -> Self {
        Self::Differs(difference)
    }
}

impl From<String> for Failure {
    fn from(problem: String) -> Self {
        Self::Input(problem)
    }
}

struct Replay<'a> {
    capture: &'a Capture,
    engine: Engine,
    tags: HashMap<String, u64>,
    names: Vec<String>,
    live: HashMap<u64, RequestId>,
    /// Requests that ended after the latest schedule.
    ended: Vec<u64>,
    /// Indices of the steps that were scheduled but not applied yet, oldest first.
    in_flight: VecDeque<usize>,
    answers: RecordedTokens,
    events: EventCheck,
    /// Identifiers of multimodal items. The core identifies an item by its index in this list.
    identities: Vec<String>,
    salts: Salts,
}

impl<'a> Replay<'a> {
    fn new(capture: &'a Capture, events: EventCheck) -> Self {
        let mut engine = Engine::new(capture.config.clone());
        if events.has_places() {
            let lookahead_tokens = capture.config.drafting().hash_lookahead_tokens;
            engine.pool_mut().record_events_with_places(lookahead_tokens);
        } else {
            engine.pool_mut().record_events(true);
        }
        Self {
            capture,
            engine,
            tags: HashMap::new(),
            names: Vec::new(),
            live: HashMap::new(),
            ended: Vec::new(),
            in_flight: VecDeque::new(),
            answers: RecordedTokens::of(capture),
            events,
            identities: Vec::new(),
            salts: Salts::default(),
        }
    }

    fn schedule(&mut self, steps: &[&LiveStep], index: usize, report: &mut CaseReport) -> Result<(), Failure> {
        if report.steps != index as u64 {
            return Err("`t`: the schedule is made before that of an earlier step".to_owned().into());
        }
        let step = steps[index];
        for added in &step.added {
            self.add(added)?;
        }
        // Requests aborted at a known time have already left, except requests that this step adds.
        for name in &step.aborted {
            self.abort(name);
        }
        if !self.engine.may_schedule() {
            return Err("scheduled while as many steps were in flight as may be".to_owned().into());
        }
        self.engine.schedule();
        self.in_flight.push_back(index);
        let plan = self.engine.plan();
        report.steps += 1;
        let mut rows = scheduled_rows(plan, |tag| Id::Name(self.names[tag as usize].clone()));
        if self.capture.log.engine.use_v2_model_runner {
            hide_resumed(&mut rows);
        }
        if !self.capture.log.engine.groups.is_empty() && !self.capture.config.has_kv_cache_groups() {
            with_group(&mut rows);
        }
        report.compare("sched", &rows, &step.sched)?;
        let encoded = encoder_rows(plan, |tag| Id::Name(self.names[tag as usize].clone()));
        if !(encoded.is_empty() && step.enc.is_empty()) {
            report.compare("enc", &encoded, &step.enc)?;
        }
        let freed: Vec<&String> =
            plan.freed_encoder_items.iter().map(|&identity| &self.identities[identity as usize]).collect();
        if !(freed.is_empty() && step.encf.is_empty()) {
            report.compare("encf", &freed, &step.encf.iter().collect())?;
        }
        report.compare("total", &plan.total_num_scheduled_tokens, &step.total)?;
        report.compare("preempted", &self.sorted_names(&plan.preempted), &sorted(&step.preempted))?;
        let ended = std::mem::take(&mut self.ended);
        report.compare("finished", &self.sorted_names(&ended), &sorted(&step.finished))?;
        report.compare("running", &(self.engine.num_running() as u64), &step.running)?;
        report.compare("waiting", &(self.engine.num_waiting() as u64), &step.waiting)?;
        let pool = self.engine.pool();
        report.compare("free_blocks", &pool.num_free(), &step.free_blocks)?;
        let usage = f64::from(pool.num_active()) / f64::from(pool.num_usable());
        // The capture rounds to six decimals.
        let usage = if (usage - step.usage).abs() <= 1e-6 { step.usage } else { usage };
        Ok(report.compare("usage", &usage, &step.usage)?)
    }

    fn update(&mut self, steps: &[&LiveStep], index: usize, report: &mut CaseReport) -> Result<(), Failure> {
        if self.in_flight.pop_front() != Some(index) {
            return Err("`t`: the result is applied before that of an earlier step, or before the schedule is made"
                .to_owned()
                .into());
        }
        let step = steps[index];
        self.abort_before_outputs(steps, index);
        self.answers.emitted = self.by_tag(&step.emitted);
        self.answers.drafts = self.next_drafts(steps, index);
        let mut emitted = Vec::new();
        let mut stopped = Vec::new();
        // An empty step has no result.
        if !step.sched.is_empty() {
            let outputs = self.engine.update(&mut self.answers);
            for output in &outputs.outputs {
                let name = &self.names[output.tag as usize];
                emitted.push((name.clone(), output.num_tokens));
                if let Some(reason) = output.finish {
                    stopped.push((name.clone(), reason_word(reason).to_owned()));
                    self.live.remove(&output.tag);
                    self.ended.push(output.tag);
                }
            }
        }
        report.compare("emitted", &emitted, &step.emitted)?;
        report.compare("stopped", &stopped, &step.stopped)?;
        report.compare("free_blocks_after", &self.engine.pool().num_free(), &step.free_blocks_after)?;
        let log = self.engine.pool().events().expect("events are recorded");
        let outcome = self.events.batch(log, report);
        self.engine.pool_mut().clear_events();
        Ok(outcome?)
    }

    /// Aborts requests before the outputs of a step. The log lists an abort that arrives during a step with the
    /// next step. If the time of the abort is unknown, the request is recognised by its missing output in this
    /// step.
    fn abort_before_outputs(&mut self, steps: &[&LiveStep], index: usize) {
        let step = steps[index];
        let next = steps.get(index + 1).filter(|next| next.aborted_at.is_empty());
        for name in next.into_iter().flat_map(|next| &next.aborted) {
            let is = |other: &String| other == name;
            let scheduled = step.sched.iter().any(|entry| matches!(&entry.request, Id::Name(other) if is(other)));
            if scheduled && !step.emitted.iter().any(|(other, _)| is(other)) {
                self.abort(name);
            }
        }
    }

    fn add(&mut self, added: &LiveAdded) -> Result<(), String> {
        let LiveAdded { id: name, prompt: len, max_tokens, .. } = added;
        if self.tags.get(name).is_some_and(|tag| self.live.contains_key(tag)) {
            return Err(format!("`added`: request {name} {ADDED_TWICE}"));
        }
        let cannot_run = |reason| format!("`added`: request {name} cannot run here: {reason}");
        // Checks the length before the prompt is made, because a wrong length may be billions of tokens.
        self.engine.check_prompt(*len, 1).map_err(cannot_run)?;
        let tag = self.names.len() as u64;
        let prompt = self.prompt(added, tag)?;
        let stop_token = self.answers.add(self.capture, name);
        let spec = RequestSpec {
            stops: stop_token.map(|token| Box::new(StopRules::of_token(token))),
            priority: added.prio,
            // The bits of positive floating-point numbers have the same order as the numbers.
            arrival_ns: added.arrival.to_bits(),
            lora: added.lora,
            skip_reading_prefix_cache: added.skip_reading_prefix_cache,
            ..RequestSpec::new(tag, prompt, *max_tokens)
        };
        let id = self.engine.submit(spec).map_err(cannot_run)?;
        self.tags.insert(name.clone(), tag);
        self.names.push(name.clone());
        self.live.insert(tag, id);
        self.events.added(tag, added);
        Ok(())
    }

    fn prompt(&mut self, added: &LiveAdded, tag: u64) -> Result<Prompt, String> {
        let LiveAdded { id: name, prompt: len, .. } = added;
        let blocks = self.engine.config().hashed_blocks();
        let salt = self.salts.of(added.lora, added.cache_salt.as_deref());
        let has_places = !self.engine.config().is_encoder_decoder();
        let item_of = |item: PromptItem| if has_places { item } else { item.without_place() };
        let items: Vec<PromptItem> = added.media.iter().map(|item| item_of(self.item(item))).collect();
        let is_within = |item: &PromptItem| item.end_tokens() <= *len;
        if !items.iter().all(is_within) {
            return Err(format!("`added`: an item of request {name} ends behind its prompt of {len} tokens"));
        }
        match self.capture.prompts.get(self.capture.caller_id(name)) {
            Some(tokens) if tokens.len() == *len as usize => {
                Ok(Prompt::of_tokens_with_items(tokens.clone(), blocks, salt, items))
            }
            Some(tokens) => Err(format!(
                "`added`: request {name} reached the scheduler with {len} prompt tokens, but `requests.jsonl` has {}",
                tokens.len()
            )),
            None if !items.is_empty() => {
                Err(format!("`added`: request {name} has multimodal items, and `requests.jsonl` has no prompt of it"))
            }
            None => {
                let mut prompt = Prompt::new(blocks, salt);
                prompt.push_run(tag, 0, *len);
                Ok(prompt)
            }
        }
    }

    fn item(&mut self, item: &LiveItem) -> PromptItem {
        let (identifier, offset, len) = item.place();
        let known = self.identities.iter().position(|known| known == identifier);
        let identity = known.unwrap_or_else(|| {
            self.identities.push(identifier.to_owned());
            self.identities.len() - 1
        });
        let placed = PromptItem::new(identity as u64, offset, len);
        match item.runs() {
            Some(runs) => placed.with_embed_runs(runs.iter().map(|&(start, end)| start..end)),
            None => placed,
        }
    }

    fn abort(&mut self, name: &str) {
        let Some(&tag) = self.tags.get(name) else { return };
        if let Some(id) = self.live.remove(&tag) {
            self.engine.abort(id);
            self.ended.push(tag);
        }
    }

    fn by_tag(&self, named: &[(String, u32)]) -> HashMap<u64, u32> {
        named.iter().filter_map(|(name, tokens)| Some((*self.tags.get(name)?, *tokens))).collect()
    }

    fn next_drafts(&self, steps: &[&LiveStep], index: usize) -> HashMap<u64, u32> {
        if self.engine.config().num_speculative_tokens() == 0 || self.engine.config().async_scheduling() {
            return HashMap::new();
        }
        if let Some(drafts) = steps.get(index + 1).and_then(|next| next.drafts.as_ref()) {
            return drafts.iter().filter_map(|(name, drafts)| Some((*self.tags.get(name)?, *drafts))).collect();
        }
        let mut drafts = BTreeMap::new();
        for step in &steps[index + 1..] {
            for entry in step.sched.iter().filter(|entry| entry.kind == 'r') {
                if let Id::Name(name) = &entry.request
                    && let Some(&tag) = self.tags.get(name)
                {
                    drafts.entry(tag).or_insert(entry.drafts);
                }
            }
            if drafts.len() >= self.live.len() {
                break;
            }
        }
        drafts.into_iter().collect()
    }

    fn sorted_names(&self, tags: &[u64]) -> Vec<String> {
        let names: Vec<String> = tags.iter().map(|&tag| self.names[tag as usize].clone()).collect();
        sorted(&names)
    }
}
