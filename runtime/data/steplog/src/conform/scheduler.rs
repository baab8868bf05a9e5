//! Replays recordings of the scheduler alone.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use vcr_core::{
    Compilation, Engine, ExternalHit, KvTransferReport, OffloadingJob, OffloadingMoves, PauseState, Prompt, PromptItem,
    RequestId, RequestSpec, SchedulerRules, SessionInput, SpecDecodeStats, StopRules,
};

use super::answers::{RecordedAnswers, SEGMENT_TOKENS, STOP_TOKEN};
use super::block_names::Salts;
use super::case::{Case, CaseItem, CaseRequest};
use super::report::{CaseReport, Difference};
use super::scope::ADDED_TWICE;
use crate::engine_log::EngineLog;
use crate::error::LogError;
use crate::jsonl::{JsonLines, unknown_key};
use crate::line::{Id, KvReport, Lookup, Move, Moves, RECORDED_KEYS, Scheduled, StepLine, hide_resumed};
use crate::read::step_line;

/// The token at the positions of multimodal items.
const PLACEHOLDER_TOKEN: u32 = 5;

/// A recorded line and the core's line.
#[derive(Clone, Debug)]
pub struct ReplayedLine {
    /// Line of `steps.jsonl`, from 1.
    pub line: u64,
    /// The recorded line.
    pub recorded: StepLine,
    /// The core's line. It also has `why`, which vLLM's line lacks.
    pub ours: StepLine,
}

/// Replays a scheduler recording through the core, line by line. The iterator ends after the first line that cannot
/// be replayed.
pub struct ReplayedLines {
    lines: JsonLines<'static>,
    replay: Replay,
    /// Number of schedules that the recorder counted, if known.
    schedules: Option<u64>,
    has_plain_group: bool,
    has_failed: bool,
}

impl ReplayedLines {
    pub(super) fn new(folder: &Path) -> Result<Self, LogError> {
        Self::by(folder, |rules| rules)
    }

    /// Opens a recording. `change` maps the rules of the recorded release to the rules for the replay.
    pub(super) fn by(folder: &Path, change: impl FnOnce(SchedulerRules) -> SchedulerRules) -> Result<Self, LogError> {
        let case = Case::read(folder, change)?;
        let lines = JsonLines::open(&folder.join("steps.jsonl"))?;
        let Case { schedules, has_plain_group, .. } = case;
        Ok(Self { schedules, has_plain_group, replay: Replay::new(case), lines, has_failed: false })
    }

    fn replayed(&mut self, line: u64, text: &str) -> Result<ReplayedLine, LogError> {
        let path = self.lines.path();
        let wrong = |problem| LogError::line(path, line, problem);
        let recorded = step_line(text).map_err(wrong)?;
        if let Some(key) = unknown_key(text, RECORDED_KEYS).map_err(wrong)? {
            return Err(LogError::out_of_scope(path, Some(line), format!("`{key}` of a step is not known here")));
        }
        if self.replay.engine.config().rules().keeps_cut_drafts() {
            check_drafts(&recorded).map_err(|what| LogError::out_of_scope(path, Some(line), what))?;
        }
        let ours = self.replay.play(&recorded).map_err(wrong)?;
        let ours = if self.has_plain_group { ours.with_group() } else { ours };
        Ok(ReplayedLine { line, recorded, ours })
    }
}

impl Iterator for ReplayedLines {
    type Item = Result<ReplayedLine, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let line = self.lines.next()?;
        let replayed = line.and_then(|(line, text)| self.replayed(line, &text));
        self.has_failed = replayed.is_err();
        Some(replayed)
    }
}

/// Refuses a request that has as many drafts as scheduled tokens, or more.
fn check_drafts(line: &StepLine) -> Result<(), String> {
    let is_cut = |row: &&Scheduled| row.drafts > 0 && row.drafts >= row.tokens;
    match line.sched.iter().flatten().find(is_cut) {
        Some(Scheduled { request, tokens, drafts, .. }) => Err(format!(
            "`sched` has {drafts} drafts among {tokens} tokens of request {request}: up to 0.28 vLLM keeps all drafts of \
             a padded admission that `long_prefill_token_threshold` cuts"
        )),
        None => Ok(()),
    }
}

pub(super) fn replay(mut lines: ReplayedLines, folder: &Path) -> Result<CaseReport, LogError> {
    let mut report = CaseReport::new(folder);
    for replayed in &mut lines {
        let ReplayedLine { line, recorded, ours } = replayed?;
        report.steps += u64::from(recorded.s.is_some());
        report.events += recorded.ev.len() as u64;
        if let Err(difference) = compare(&mut report, &ours, &recorded) {
            report.mismatch = Some(difference.at(line, recorded.s.or(recorded.u), ours.why));
            return Ok(report);
        }
    }
    if report.steps == 0 {
        return Err(LogError::file(lines.lines.path(), "expected at least one schedule"));
    }
    if let Some(all) = lines.schedules.filter(|all| *all != report.steps) {
        let note = format!("{} schedules are in `steps.jsonl`, but the recorder made {all}", report.steps);
        report.notes.push(note);
    }
    Ok(report)
}

fn compare(report: &mut CaseReport, ours: &StepLine, theirs: &StepLine) -> Result<(), Difference> {
    report.compare("s", &ours.s, &theirs.s)?;
    if !(ours.look.is_empty() && theirs.look.is_empty()) {
        report.compare("look", &ours.look, &theirs.look)?;
    }
    if ours.moves.is_some() || theirs.moves.is_some() {
        report.compare("moves", &ours.moves, &theirs.moves)?;
    }
    report.compare("sched", &ours.sched, &theirs.sched)?;
    if ours.sync || theirs.sync {
        report.compare("sync", &ours.sync, &theirs.sync)?;
    }
    report.compare("tot", &ours.tot, &theirs.tot)?;
    report.compare("pre", &ours.pre, &theirs.pre)?;
    report.compare("flush", &ours.flush, &theirs.flush)?;
    report.compare("run", &ours.run, &theirs.run)?;
    report.compare("wait", &ours.wait, &theirs.wait)?;
    if ours.skip.is_some() || theirs.skip.is_some() {
        report.compare("skip", &ours.skip, &theirs.skip)?;
    }
    report.compare("free", &ours.free, &theirs.free)?;
    if !(ours.win.is_empty() && theirs.win.is_empty()) {
        report.compare("win", &ours.win, &theirs.win)?;
    }
    if !(ours.enc.is_empty() && theirs.enc.is_empty()) {
        report.compare("enc", &ours.enc, &theirs.enc)?;
    }
    if !(ours.encf.is_empty() && theirs.encf.is_empty()) {
        report.compare("encf", &ours.encf, &theirs.encf)?;
    }
    if ours.kv.is_some() || theirs.kv.is_some() {
        report.compare("kv", &ours.kv, &theirs.kv)?;
    }
    report.compare("u", &ours.u, &theirs.u)?;
    report.compare("out", &ours.out, &theirs.out)?;
    report.compare("sampled", &ours.sampled, &theirs.sampled)?;
    if !(ours.inv.is_empty() && theirs.inv.is_empty()) {
        report.compare("inv", &ours.inv, &theirs.inv)?;
    }
    report.compare("fin", &ours.fin, &theirs.fin)?;
    report.compare("drafts", &ours.drafts, &theirs.drafts)?;
    report.compare("pc", &ours.pc, &theirs.pc)?;
    if ours.xc.is_some() || theirs.xc.is_some() {
        report.compare("xc", &ours.xc, &theirs.xc)?;
    }
    if ours.sd.is_some() || theirs.sd.is_some() {
        report.compare("sd", &ours.sd, &theirs.sd)?;
    }
    report.compare("ev", &ours.ev, &theirs.ev)
}

struct Replay {
    engine: Engine,
    hides_resumed: bool,
    log: EngineLog,
    requests: HashMap<u64, CaseRequest>,
    live: HashMap<u64, RequestId>,
    answers: RecordedAnswers,
    num_added: u64,
    salts: Salts,
    /// Whether any request has structured outputs. Recordings with structured outputs have more counts.
    has_grammars: bool,
    /// Number of skipped requests after the latest schedule.
    skipped: u64,
    /// Counters of drafts at the latest result.
    drafted: SpecDecodeStats,
    /// For each resumable request: number of its parts that were given, and number of parts whose outputs have
    /// ended.
    parts: HashMap<u64, [usize; 2]>,
}

impl Replay {
    fn new(case: Case) -> Self {
        let stop_at = case.requests.values().filter_map(|request| Some((request.id, request.stop_at?))).collect();
        let has_grammars = case.requests.values().any(|request| request.grammar.is_some());
        let mut engine = Engine::new(case.config);
        engine.pool_mut().record_events(true);
        Self {
            engine,
            hides_resumed: case.hides_resumed,
            log: EngineLog::new(),
            requests: case.requests,
            live: HashMap::new(),
            answers: RecordedAnswers { stop_at, ..RecordedAnswers::default() },
            num_added: 0,
            salts: Salts::default(),
            has_grammars,
            skipped: 0,
            drafted: SpecDecodeStats::default(),
            parts: HashMap::new(),
        }
    }

    /// Applies the recorded line to the engine and returns the core's line.
    fn play(&mut self, theirs: &StepLine) -> Result<StepLine, String> {
        if let Some(iteration) = theirs.i
            && !self.log.idle_until(iteration)
        {
            return Err(format!("`i`: iteration {iteration} does not come after that of the line before"));
        }
        if let Some(state) = &theirs.pause {
            self.engine.set_pause_state(pause_state(state)?);
        }
        let mut moves = None;
        for id in &theirs.add {
            self.add(number("add", id)?)?;
        }
        for id in &theirs.more {
            self.extend(number("more", id)?)?;
        }
        for id in &theirs.abort {
            self.abort(number("abort", id)?);
        }
        for (id, has_grammar) in &theirs.gram {
            self.end_compilation(number("gram", id)?, *has_grammar)?;
        }
        if theirs.s.is_some() {
            if !self.engine.may_schedule() {
                return Err("`s`: a schedule was made while as many steps were in flight as may be".to_owned());
            }
            self.answer_lookups(&theirs.look)?;
            self.engine.schedule();
            self.log.scheduled(&self.engine);
            self.skipped = self.engine.num_skipped_waiting() as u64;
            moves = self.engine.offloading_moves().filter(|moves| !moves.is_empty()).map(moves_of);
        }
        let mut dropped: BTreeMap<u64, u32> = BTreeMap::new();
        let mut kv = theirs.kv.clone();
        // The loads among the finished jobs determine which requests received KV.
        if let Some(report) = kv.as_mut().filter(|_| self.engine.offloading_moves().is_some()) {
            report.recv = self.engine.loads_of_jobs(&report.jobs).into_iter().map(Id::Number).collect();
        }
        if theirs.u.is_some() {
            // The model also answers for requests that were aborted in the meantime. These answers are ignored.
            let was_live = |tag: &u64| self.live.contains_key(tag);
            dropped.extend(theirs.sampled.iter().filter(|(tag, _)| !was_live(tag)));
            self.update(theirs)?;
            if self.engine.config().kv_connector().is_some() || !self.parts.is_empty() {
                // Answers are also ignored if KV has not arrived, or must belong to delivered tokens.
                let outputs = &self.engine.outputs().outputs;
                let is_read = |tag: &u64| outputs.iter().any(|output| output.tag == *tag && output.num_tokens > 0);
                dropped.extend(theirs.sampled.iter().filter(|(tag, _)| !is_read(tag)));
            }
        }
        // If the only event is a part for a running request, the log has no line for it.
        let mut ours = self.log.take_line().unwrap_or_else(|| StepLine { i: theirs.i, ..StepLine::default() });
        if self.has_grammars {
            self.add_counts(&mut ours);
        }
        ours.sampled.extend(dropped);
        ours.moves = moves;
        ours.kv = kv;
        ours.pause.clone_from(&theirs.pause);
        ours.more.clone_from(&theirs.more);
        if self.hides_resumed {
            hide_resumed(ours.sched.as_deref_mut().unwrap_or_default());
        }
        Ok(ours)
    }

    fn update(&mut self, theirs: &StepLine) -> Result<(), String> {
        self.answers.sampled.clone_from(&theirs.sampled);
        self.answers.drafts.clear();
        for (id, drafts) in &theirs.drafts {
            self.answers.drafts.insert(number("drafts", id)?, *drafts);
        }
        self.answers.invalid.clear();
        for (id, drafts) in &theirs.inv {
            self.answers.invalid.insert(number("inv", id)?, *drafts);
        }
        let is_empty = !self.log.next_needs_update();
        let has_report = self.report_transfers(theirs.kv.as_ref())? || self.engine.has_failed_grammars();
        if !is_empty {
            self.engine.update(&mut self.answers);
        } else if has_report {
            self.engine.apply_transfers();
        }
        self.log.applied(&self.engine);
        if is_empty && has_report {
            self.log.transferred(&self.engine);
        }
        self.engine.pool_mut().clear_events();
        if !is_empty || has_report {
            let outputs = self.engine.outputs();
            for output in outputs.outputs.iter().filter(|output| output.finish.is_some()) {
                if !outputs.continuing.contains(&output.tag) {
                    self.live.remove(&output.tag);
                    continue;
                }
                // The outputs for the next part are counted from 0 again.
                let [_, ended] = self.parts.entry(output.tag).or_default();
                let part = self.requests.get(&output.tag).and_then(|request| request.parts.get(*ended));
                *ended += 1;
                self.answers.stop_at.remove(&output.tag);
                self.answers.stop_at.extend(part.and_then(|part| Some((output.tag, part.stop_at?))));
            }
        }
        Ok(())
    }

    fn end_compilation(&mut self, tag: u64, has_grammar: bool) -> Result<(), String> {
        if !self.live.contains_key(&tag) {
            return Err(format!("`gram`: request {tag} is not in the engine"));
        }
        let compilation = if has_grammar { Compilation::Succeeded } else { Compilation::Failed };
        self.engine.end_compilation(tag, compilation);
        self.log.compiled(tag, compilation);
        Ok(())
    }

    /// Adds the counts that only recordings with structured outputs have.
    fn add_counts(&mut self, ours: &mut StepLine) {
        ours.skip = ours.s.map(|_| self.skipped);
        if ours.u.is_some() {
            let now = self.engine.stats().spec_decode;
            let before = std::mem::replace(&mut self.drafted, now);
            let counts = [
                now.num_drafts - before.num_drafts,
                now.num_draft_tokens - before.num_draft_tokens,
                now.num_accepted_tokens - before.num_accepted_tokens,
            ];
            ours.sd = (counts[0] > 0).then_some(counts);
        }
    }

    /// Gives a resumable request the next part of its prompt, or ends the prompt.
    fn extend(&mut self, tag: u64) -> Result<(), String> {
        let id = *self.live.get(&tag).ok_or_else(|| format!("`more`: request {tag} is not in the engine"))?;
        let [given, _] = self.parts.entry(tag).or_default();
        let part = self.requests.get(&tag).and_then(|request| request.parts.get(*given));
        let part = part.ok_or_else(|| format!("`more`: request {tag} has no part more in `requests.jsonl`"))?;
        *given += 1;
        let input = (!part.prompt.is_empty()).then(|| SessionInput {
            tokens: segment_tokens(&part.prompt),
            max_tokens: part.max_tokens,
            stops: Some(Box::new(StopRules::of_token(STOP_TOKEN))),
            arrival_ns: self.num_added,
        });
        self.num_added += 1;
        let cannot = |reason| format!("`more`: request {tag} cannot go on here: {reason}");
        self.engine.extend(id, input).map_err(cannot)?;
        if self.engine.find(tag).is_none() {
            self.live.remove(&tag);
            self.log.ended(tag);
        }
        Ok(())
    }

    fn answer_lookups(&mut self, look: &[Lookup]) -> Result<(), String> {
        if self.engine.config().kv_connector().is_none() {
            return if look.is_empty() {
                Ok(())
            } else {
                Err("`look`: there is no connector in `config.json`".to_owned())
            };
        }
        if self.engine.offloading_moves().is_some() {
            return Ok(());
        }
        let mut answers = Vec::with_capacity(look.len());
        for Lookup(id, _, tokens, is_async) in look {
            answers.push((number("look", id)?, ExternalHit { tokens: *tokens, is_async: *is_async }));
        }
        self.engine.answer_lookups(answers);
        Ok(())
    }

    /// Passes the report of the connector's workers to the engine. Returns false if the report is empty.
    fn report_transfers(&mut self, report: Option<&KvReport>) -> Result<bool, String> {
        let Some(KvReport { recv, send, bad, failed, jobs }) = report else { return Ok(false) };
        if self.engine.config().kv_connector().is_none() {
            return Err("`kv`: there is no connector in `config.json`".to_owned());
        }
        let numbers = |ids: &[Id]| ids.iter().map(|id| number("kv", id)).collect::<Result<Vec<u64>, String>>();
        let offloads = self.engine.offloading_moves().is_some();
        if !bad.is_empty() && self.engine.config().kv_cache_groups().len() > 1 {
            return Err("`kv`: blocks are bad where there are several groups; vLLM's scheduler fails there".to_owned());
        }
        self.engine.report_transfers(KvTransferReport {
            finished_recving: if offloads { Vec::new() } else { numbers(recv)? },
            completed_jobs: if offloads { jobs.clone() } else { Vec::new() },
            finished_sending: numbers(send)?,
            invalid_blocks: bad.clone(),
            failed_recving: numbers(failed)?,
        });
        Ok(true)
    }

    fn add(&mut self, tag: u64) -> Result<(), String> {
        if self.live.contains_key(&tag) {
            return Err(format!("`add`: request {tag} {ADDED_TWICE}"));
        }
        let request =
            self.requests.get(&tag).ok_or_else(|| format!("`add`: request {tag} is not in `requests.jsonl`"))?;
        let cannot_run = |reason| format!("`add`: request {tag} cannot run here: {reason}");
        let len = request.prompt.iter().map(|&(_, len)| u64::from(len)).sum::<u64>();
        // Checks the length before the tokens are made, because a wrong length may be billions.
        self.engine.check_prompt(u32::try_from(len).unwrap_or(u32::MAX), 1).map_err(cannot_run)?;
        let salt = self.salts.of(request.lora, request.cache_salt.as_deref());
        let has_places = !self.engine.config().is_encoder_decoder();
        let item_of = |item: PromptItem| if has_places { item } else { item.without_place() };
        let items: Vec<PromptItem> = request.media.iter().map(CaseItem::item).map(item_of).collect();
        let blocks = self.engine.config().hashed_blocks();
        let resumable = !request.parts.is_empty();
        let prompt = if resumable && items.is_empty() {
            Prompt::of_tokens(segment_tokens(&request.prompt), blocks, salt)
        } else {
            let mut prompt = Prompt::new(blocks, salt);
            prompt.push_tokens_with_items(&tokens_of(request, &items), items);
            prompt
        };
        let spec = RequestSpec {
            stops: Some(Box::new(StopRules::of_token(STOP_TOKEN))),
            priority: request.prio,
            // The order in which requests are added replaces their time of arrival.
            arrival_ns: self.num_added,
            lora: request.lora,
            kv_role: request.kv_role(),
            resumable,
            structured: request.grammar.is_some(),
            skip_reading_prefix_cache: request.skip_reading_prefix_cache,
            ..RequestSpec::new(tag, prompt, request.max_tokens)
        };
        self.num_added += 1;
        let id = self.engine.submit(spec).map_err(cannot_run)?;
        self.live.insert(tag, id);
        self.log.added(tag);
        Ok(())
    }

    /// Aborts a request. As in vLLM, nothing happens if the request has ended or never existed.
    fn abort(&mut self, tag: u64) {
        if let Some(id) = self.live.remove(&tag) {
            self.engine.abort(id);
            self.log.aborted(tag);
        }
    }
}

fn moves_of(moves: &OffloadingMoves) -> Moves {
    let copy = |job: &OffloadingJob| Move(job.job, Id::Number(job.tag), job.places.clone());
    Moves {
        load: moves.loads.iter().map(copy).collect(),
        store: moves.stores.iter().map(copy).collect(),
        flush: moves.flushed.iter().copied().collect(),
    }
}

/// The tokens of a prompt: the tokens of its segments, with one fixed token at the positions of multimodal items.
fn tokens_of(request: &CaseRequest, items: &[PromptItem]) -> Vec<u32> {
    let mut tokens = segment_tokens(&request.prompt);
    for item in items {
        let places = item.offset_tokens() as usize..item.end_tokens() as usize;
        tokens.get_mut(places).unwrap_or_default().fill(PLACEHOLDER_TOKEN);
    }
    tokens
}

fn segment_tokens(segments: &[(u32, u32)]) -> Vec<u32> {
    let tokens = |&(segment, len): &(u32, u32)| {
        (0..len).map(move |index| segment.wrapping_mul(SEGMENT_TOKENS).wrapping_add(index))
    };
    segments.iter().flat_map(tokens).collect()
}

/// The pause state that vLLM calls `name`.
fn pause_state(name: &str) -> Result<PauseState, String> {
    match name {
        "UNPAUSED" => Ok(PauseState::Unpaused),
        "PAUSED_NEW" => Ok(PauseState::PausedNew),
        "PAUSED_ALL" => Ok(PauseState::PausedAll),
        other => Err(format!("`pause`: expected UNPAUSED, PAUSED_NEW or PAUSED_ALL, got \"{other}\"")),
    }
}

fn number(field: &str, id: &Id) -> Result<u64, String> {
    match id {
        Id::Number(number) => Ok(*number),
        Id::Name(name) => {
            Err(format!("`{field}`: request \"{name}\" has a name; recordings of the scheduler number them"))
        }
    }
}
