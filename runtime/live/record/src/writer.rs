//! Converts the traffic to lines of a capture.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use serde_json::Value;
use vcr_trace::capture::{Arrival, Break, CaptureLine, EngineRecord, HttpEnd, KvRecord, RequestRecord, StepRecord};
use vcr_wire::{
    AsJson, EngineCoreOutputs, EngineCoreRequest, EngineMessage, FinishReason, RelayNotice, RelayPath, Request,
};

use crate::counts::Counts;
use crate::engines::{Engine, engine_record};
use crate::error::RecordError;
use crate::http::{Exchange, HttpLines, HttpRules};
use crate::kv::kv_events;
use crate::parts::Parts;
use crate::queue::{Item, ItemKind};
use crate::request::{Detail, Load, OpenRequest, Stamp, saturated};
use crate::requests::Requests;

/// The error of requests whose messages are partly missing.
const LOST: &str = "its outputs were not recorded";

/// Writes the capture of one deployment.
pub(crate) struct Writer {
    parts: Parts,
    detail: Detail,
    http: HttpRules,
    /// When the capture started, on the system's monotonic clock.
    start_ns: u64,
    requests: Requests,
    engines: BTreeMap<u32, Engine>,
    counts: Arc<Counts>,
    /// The number of problems so far. It limits how many are logged.
    complaints: u64,
    /// For each path of the redaction rules for JSON, whether an exchange had a value there.
    found_paths: Vec<bool>,
}

impl Writer {
    pub(crate) fn new(parts: Parts, detail: Detail, start_ns: u64, counts: Arc<Counts>) -> Self {
        let (requests, engines) = (Requests::default(), BTreeMap::new());
        let http = HttpRules::default();
        Self { parts, detail, http, start_ns, requests, engines, counts, complaints: 0, found_paths: Vec::new() }
    }

    pub(crate) fn with_http(self, http: HttpRules) -> Self {
        Self { http, ..self }
    }

    fn since_start_ns(&self, at_ns: u64) -> u64 {
        at_ns.saturating_sub(self.start_ns)
    }

    fn engine(&mut self, rank: u32) -> &mut Engine {
        self.engines.entry(rank).or_default()
    }

    pub(crate) fn note(&mut self, item: &Item, frames: [&[u8]; 2]) -> Result<(), RecordError> {
        match &item.what {
            ItemKind::Passed { path: RelayPath::Request { client }, .. } => self.request(item, *client, &frames)?,
            ItemKind::Passed { path: RelayPath::Outputs { client }, .. } => self.outputs(item, *client, frames[0])?,
            ItemKind::Passed { path: RelayPath::Registration { .. }, .. } => self.registration(item, frames[0])?,
            ItemKind::Noticed(notice) => self.notice(item, notice)?,
            ItemKind::Http(exchange) => self.exchange(exchange)?,
            ItemKind::Kv { sequence, .. } => self.kv(item, *sequence, frames[0])?,
            ItemKind::Lost { messages, bytes } => self.lost(item.at_ns, *messages, *bytes)?,
        }
        if self.parts.is_full() {
            let (at_ns, open) = (self.since_start_ns(item.at_ns), self.requests.open().into());
            let rotated = self.parts.rotate(at_ns, open, registered(&self.engines));
            self.begin_again_if_removed(rotated)?;
        }
        self.counts.open.set(self.requests.open().into());
        self.counts.parts.set(self.parts.begun().into());
        Ok(())
    }

    /// Flushes the written data, unless it was flushed a moment ago.
    pub(crate) fn flush(&mut self) -> Result<(), RecordError> {
        let flushed = self.parts.flush();
        self.begin_again_if_removed(flushed)
    }

    /// If the current file was removed, counts its records as lost and starts it again.
    fn begin_again_if_removed(&mut self, written: Result<(), RecordError>) -> Result<(), RecordError> {
        let (removed, requests) = match written {
            Err(RecordError::Removed { path, requests }) => (RecordError::Removed { path, requests }, requests),
            other => return other,
        };
        let text = removed.to_string();
        self.parts.begin_again(removed, registered(&self.engines))?;
        tracing::error!("{text}; recording continues in a new file of this name");
        self.counts.removed_files.add(1);
        self.counts.removed_requests.add(requests);
        Ok(())
    }

    /// Ends the capture. Open requests are recorded as unfinished.
    pub(crate) fn end(&mut self, at_ns: u64) -> Result<(), RecordError> {
        let unfinished = self.requests.give_up(None, |_, _| true);
        let count = unfinished.len() as u64;
        for record in unfinished {
            self.parts.write(&CaptureLine::Request(Box::new(record)))?;
        }
        self.parts.end(self.since_start_ns(at_ns), count, false)?;
        self.counts.parts.set(self.parts.begun().into());
        let paths = self.http.redact.json.iter().zip(&self.found_paths);
        for (path, _) in paths.filter(|(_, is_found)| !**is_found) {
            tracing::warn!("redacted nothing at `{path}`: no body had a value there; is the path right?");
        }
        Ok(())
    }

    fn request(&mut self, item: &Item, client: usize, frames: &[&[u8]]) -> Result<(), RecordError> {
        match Request::decode(frames) {
            Ok(Request::Add(request)) => self.add(item, client, *request),
            Ok(Request::Abort(ids)) => {
                for id in &ids {
                    // Aborts of finished requests are ignored.
                    if let Some(request) = self.requests.remove(item.rank, id) {
                        self.counts.aborted.add(1);
                        self.over(request.ended(item.at_ns, FinishReason::Abort))?;
                    }
                }
                Ok(())
            }
            Ok(Request::StartDpWave(_) | Request::Utility(_)) => Ok(()),
            Err(error) => self.undecodable(item, frames.iter().map(|frame| frame.len()).sum(), "a frontend", &error),
        }
    }

    fn add(&mut self, item: &Item, client: usize, request: EngineCoreRequest) -> Result<(), RecordError> {
        let arrival_ns = self.since_start_ns(item.at_ns);
        if !self.requests.has_room() {
            self.counts.lost_messages.add(1);
            return self.break_off(item.at_ns, Some(item.rank), "a request is not followed: too many are under way");
        }
        let id = request.request_id.clone();
        let open = OpenRequest::new(request, item.rank, client, item.at_ns, arrival_ns, &self.detail);
        let arrival = Arrival { id: id.clone(), arrival_ns, prompt_tokens: open.prompt_tokens() };
        if let Some(before) = self.requests.insert(item.rank, &id, open) {
            self.counts.broken.add(1);
            let record = before.unfinished(Some("another request of this name came"));
            self.parts.write(&CaptureLine::Request(Box::new(record)))?;
        }
        self.counts.arrivals.add(1);
        self.parts.write(&CaptureLine::Arrival(arrival))
    }

    /// Writes the HTTP line of an exchange, then its request line. A reader of the request line then has the
    /// exchange already.
    fn exchange(&mut self, exchange: &Exchange) -> Result<(), RecordError> {
        let number = self.counts.http.get();
        let arrival_ns = self.since_start_ns(exchange.arrived_ns);
        let HttpLines { http, request, is_generation, keys, found_paths } =
            self.http.lines(exchange, number, arrival_ns);
        self.found_paths.resize(found_paths.len(), false);
        self.found_paths.iter_mut().zip(found_paths).for_each(|(found, is_here)| *found |= is_here);
        self.counts.http.add(1);
        self.counts.keys.add(keys);
        self.counts.left_out.add(u64::from(http.left_out_bytes + http.request_left_out_bytes > 0));
        let is_abort = |request: &RequestRecord| request.finish_reason.as_deref() == Some(FinishReason::Abort.name());
        let is_aborted = http.end == HttpEnd::ClientGone || request.as_ref().is_some_and(is_abort);
        self.counts.aborted.add(u64::from(is_aborted));
        self.counts.without_lengths.add(u64::from(is_generation && request.is_none()));
        if keys > 0 {
            self.complain(0, &format!("`{}` has strings that look like keys: {} {}", http.id, http.method, http.path));
        }
        let line = CaptureLine::Http(Box::new(http));
        self.parts.write(&line)?;
        if let (CaptureLine::Http(http), Some(observer)) = (&line, &self.http.observer) {
            observer(http);
        }
        let Some(request) = request else { return Ok(()) };
        self.counts.arrivals.add(1);
        self.counts.tokens.add(request.output_tokens.into());
        self.over(request)
    }

    fn over(&mut self, record: RequestRecord) -> Result<(), RecordError> {
        self.counts.requests.add(1);
        self.parts.write(&CaptureLine::Request(Box::new(record)))
    }

    fn outputs(&mut self, item: &Item, client: usize, frame: &[u8]) -> Result<(), RecordError> {
        let outputs = match EngineMessage::decode(&[frame]) {
            Ok(EngineMessage::Outputs(outputs)) => outputs,
            Ok(EngineMessage::Dead) => return self.dead(item),
            Err(error) => {
                self.undecodable(item, frame.len(), "an engine", &error)?;
                return self.give_up(LOST, |rank, request| rank == item.rank && request.client() == client);
            }
        };
        let engine_ns = (outputs.timestamp > 0.0).then(|| (outputs.timestamp * 1e9).round() as u64);
        let stamp = Stamp { at_ns: item.at_ns, engine_ns };
        let load = match &outputs.scheduler_stats {
            None => self.engine(item.rank).load,
            Some(stats) => {
                let prefill_tokens = stats.iteration_details.as_ref().map(|details| saturated(details.num_ctx_tokens));
                let (running, waiting) = (saturated(stats.num_running_reqs), saturated(stats.num_waiting_reqs));
                *self.engine(item.rank).load.insert(Load { running, waiting, prefill_tokens })
            }
            .into(),
        };
        let mut step = StepRecord { rank: item.rank, engine_ns, ..StepRecord::default() };
        for output in &outputs.outputs {
            step.outputs += 1;
            step.tokens += saturated(output.new_token_ids.len() as u64);
            let Some(request) = self.requests.get_mut(item.rank, &output.request_id) else {
                self.counts.unmatched_outputs.add(1);
                continue;
            };
            request.output(output, stamp, load.as_ref());
            if let Some(reason) = output.finish_reason {
                step.finished += 1;
                self.finish(item, &output.request_id, reason)?;
            }
        }
        // Most of these ended with their last output. The others ended without an output.
        for id in outputs.finished_requests.iter().flatten() {
            self.finish(item, id, FinishReason::Abort)?;
        }
        self.counts.tokens.add(step.tokens.into());
        self.step(item, frame, &outputs, step)
    }

    fn finish(&mut self, item: &Item, id: &str, reason: FinishReason) -> Result<(), RecordError> {
        let Some(request) = self.requests.remove(item.rank, id) else { return Ok(()) };
        self.counts.aborted.add(u64::from(reason == FinishReason::Abort));
        self.over(request.ended(item.at_ns, reason))
    }

    fn step(
        &mut self,
        item: &Item,
        frame: &[u8],
        outputs: &EngineCoreOutputs,
        step: StepRecord,
    ) -> Result<(), RecordError> {
        if outputs.outputs.is_empty() && outputs.scheduler_stats.is_none() {
            return Ok(());
        }
        let at_ns = self.since_start_ns(item.at_ns);
        let engine = self.engine(item.rank);
        let number = engine.steps;
        engine.steps += 1;
        self.counts.steps.add(1);
        // An engine can send a hundred thousand steps per second, so the statistics are copied without building a
        // JSON tree. The decoder has already checked them.
        let scheduler = EngineCoreOutputs::raw_scheduler_stats(frame).ok().flatten().map(AsJson::new);
        let StepRecord { rank, engine_ns, outputs, tokens, finished, .. } = step;
        self.parts.write_step(&StepRecord {
            rank,
            step: number,
            at_ns,
            engine_ns,
            outputs,
            tokens,
            finished,
            scheduler,
        })
    }

    /// An engine registers once with each API server.
    fn registration(&mut self, item: &Item, frame: &[u8]) -> Result<(), RecordError> {
        let settings = match serde_json::to_value(AsJson::new(frame)) {
            Ok(Value::Object(settings)) => settings,
            Ok(_) => return Ok(()),
            Err(error) => return self.undecodable(item, frame.len(), "an engine", &error),
        };
        let model = self.parts.meta_mut().model.clone().unwrap_or_default();
        let record = engine_record(item.rank, self.since_start_ns(item.at_ns), &model, settings);
        if self.engine(item.rank).record.as_ref().is_some_and(|before| before.settings == record.settings) {
            return Ok(());
        }
        tracing::info!(rank = item.rank, version = record.vllm_version, "an engine has registered");
        self.complete_meta(&record);
        self.counts.engines.add(1);
        let engine = self.engine(item.rank);
        (engine.is_dead, engine.record) = (false, Some(record.clone()));
        self.parts.write(&CaptureLine::Engine(Box::new(record)))
    }

    /// Takes the version and fingerprint from the first engine. All engines of a deployment have the same.
    fn complete_meta(&mut self, engine: &EngineRecord) {
        let meta = self.parts.meta_mut();
        if meta.vllm_version.is_none() {
            meta.vllm_version.clone_from(&engine.vllm_version);
            meta.fingerprint.clone_from(&engine.fingerprint);
        }
    }

    fn kv(&mut self, item: &Item, sequence: u64, payload: &[u8]) -> Result<(), RecordError> {
        let detail = self.detail;
        let (rank, events) = match kv_events(payload, detail.prompts && detail.tokens) {
            Ok((rank, events)) => (rank.unwrap_or(item.rank), events),
            Err(error) => return self.undecodable(item, payload.len(), "a publisher of KV events", &error),
        };
        self.counts.kv_batches.add(1);
        let at_ns = self.since_start_ns(item.at_ns);
        self.parts.write(&CaptureLine::Kv(KvRecord { rank, at_ns, sequence, events }))
    }

    fn notice(&mut self, item: &Item, notice: &RelayNotice) -> Result<(), RecordError> {
        let rank = item.rank;
        match notice {
            RelayNotice::Hello { again: false } => tracing::info!(rank, "an engine sends HELLO"),
            RelayNotice::Hello { again: true } => {
                self.engine(rank).record = None;
                self.interrupted(item, "the engine came again", |_| true)?;
            }
            RelayNotice::Init { clients, coordinator } => {
                tracing::info!(rank, api_servers = clients, coordinator, "the frontend has answered");
            }
            RelayNotice::InitRefused { reason } => {
                self.counts.refused_inits.add(1);
                tracing::error!(rank, "the frontend's answer to the engine was not handed on: {reason}");
            }
            RelayNotice::Ready => tracing::info!(rank, "the engine serves"),
            RelayNotice::FrontendLost { client } => {
                let client = *client;
                let reason = format!("the connection to API server {client} came to an end");
                self.interrupted(item, &reason, move |request| request.client() == client)?;
            }
            RelayNotice::EngineLost => {
                self.interrupted(item, "the connection of the engine came to an end", |_| true)?
            }
            RelayNotice::Refused { reason } => self.complain(rank, reason),
        }
        Ok(())
    }

    fn dead(&mut self, item: &Item) -> Result<(), RecordError> {
        // An engine reports its death to every API server.
        if std::mem::replace(&mut self.engine(item.rank).is_dead, true) {
            return Ok(());
        }
        self.interrupted(item, "the engine reports that it is dead", |_| true)
    }

    /// Records an interruption of an engine's traffic, and drops the requests that `is_meant` selects.
    fn interrupted(
        &mut self,
        item: &Item,
        reason: &str,
        is_meant: impl Fn(&OpenRequest) -> bool,
    ) -> Result<(), RecordError> {
        tracing::warn!(rank = item.rank, "{reason}");
        self.break_off(item.at_ns, Some(item.rank), reason)?;
        self.give_up(reason, |rank, request| rank == item.rank && is_meant(request))
    }

    /// Records that messages of unknown requests were lost.
    pub(crate) fn lost(&mut self, at_ns: u64, messages: u64, bytes: u64) -> Result<(), RecordError> {
        self.counts.lost_messages.add(messages);
        self.counts.lost_bytes.add(bytes);
        let reason = format!("the recorder was behind: {messages} messages of {bytes} bytes were not recorded");
        tracing::error!("{reason}");
        self.break_off(at_ns, None, &reason)?;
        self.give_up(LOST, |_, _| true)
    }

    fn break_off(&mut self, at_ns: u64, rank: Option<u32>, reason: &str) -> Result<(), RecordError> {
        self.counts.breaks.add(1);
        let at_ns = self.since_start_ns(at_ns);
        self.parts.write(&CaptureLine::Break(Break { at_ns, reason: reason.to_owned(), rank }))
    }

    fn give_up(&mut self, why: &str, is_meant: impl Fn(u32, &OpenRequest) -> bool) -> Result<(), RecordError> {
        for record in self.requests.give_up(Some(why), is_meant) {
            self.counts.broken.add(1);
            self.parts.write(&CaptureLine::Request(Box::new(record)))?;
        }
        Ok(())
    }

    fn undecodable(&mut self, item: &Item, bytes: usize, from: &str, error: &dyn Display) -> Result<(), RecordError> {
        self.counts.undecodable.add(1);
        let reason = format!("a message of {bytes} bytes from {from} cannot be read: {error}");
        self.complain(item.rank, &reason);
        self.break_off(item.at_ns, Some(item.rank), &reason)
    }

    /// Logs the first ten problems, then only at powers of two.
    fn complain(&mut self, rank: u32, problem: &str) {
        self.complaints += 1;
        if self.complaints <= 10 || self.complaints.is_power_of_two() {
            tracing::warn!(rank, problems = self.complaints, "{problem}");
        }
    }
}

fn registered(engines: &BTreeMap<u32, Engine>) -> impl Iterator<Item = &EngineRecord> {
    engines.values().filter_map(|engine| engine.record.as_ref())
}
