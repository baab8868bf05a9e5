//! The client side of one engine.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use tokio::sync::oneshot;
use vcr_base::finish_reason::FinishReason;
use vcr_wire::{
    ENGINE_CORE_DEAD, EngineCoreOutput, EngineCoreRequest, Integer, LocalEvent, LocalLink, LocalLinkError,
    MessageDamage, ReadyResponse, Request, StepOutput, StepOutputs, UtilityCall, UtilityOutput, Value, WakeUp,
    monotonic_ns,
};

use super::EngineError;
use super::collector::Collector;
use super::observer::{EngineObserver, RequestObserver};
use super::wake_ups::WakeUps;
use crate::http::ConnectionControl;

struct Entry {
    collector: Arc<Collector>,
    /// The number of prompt tokens until the first output, then 0.
    prefilling_tokens: usize,
    observer: Option<Box<dyn RequestObserver>>,
    connection: Option<ConnectionControl>,
}

type Answer = oneshot::Sender<Result<Value, EngineError>>;

#[derive(Default)]
struct Table {
    is_up: bool,
    ready: Option<Box<ReadyResponse>>,
    requests: HashMap<Arc<str>, Entry>,
    calls: BTreeMap<u64, Answer>,
    last_call: u64,
    /// Wakers of the clients in one message. The allocation is reused.
    woken: Vec<Waker>,
}

/// The state of one engine and its requests.
pub(super) struct Rank {
    pub(super) number: u16,
    link: OnceLock<LocalLink>,
    table: Mutex<Table>,
    load: AtomicUsize,
    /// Prompt tokens of requests without an output.
    prefilling_tokens: AtomicUsize,
    wake_ups: WakeUps,
}

pub(super) fn now_s() -> f64 {
    monotonic_ns() as f64 / 1e9
}

impl Rank {
    pub(super) fn new(number: u16) -> Self {
        Self {
            number,
            link: OnceLock::new(),
            table: Mutex::default(),
            load: AtomicUsize::new(0),
            prefilling_tokens: AtomicUsize::new(0),
            wake_ups: WakeUps::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic cannot leave the table inconsistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn connect(&self, link: LocalLink) {
        // `connect` is called only once.
        _ = self.link.set(link);
    }

    pub(super) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// Prompt tokens of requests without an output.
    pub(super) fn prefilling_tokens(&self) -> usize {
        self.prefilling_tokens.load(Ordering::Relaxed)
    }

    /// Number of requests that fit in the engine's mailbox.
    pub(super) fn room(&self) -> usize {
        self.link.get().map_or(usize::MAX, LocalLink::max_waiting)
    }

    pub(super) fn is_up(&self) -> bool {
        self.table().is_up
    }

    pub(super) fn ready(&self) -> Option<Box<ReadyResponse>> {
        self.table().ready.clone()
    }

    fn send(&self, request: Request) -> Result<(), EngineError> {
        self.post(request).map(drop)
    }

    fn post(&self, request: Request) -> Result<Option<WakeUp>, EngineError> {
        let link = self.link.get().ok_or(EngineError::Dead)?;
        link.post(request).map_err(|error| match error {
            LocalLinkError::Full => EngineError::Full,
            LocalLinkError::Lost => EngineError::Dead,
        })
    }

    /// Sends a request from `connection`. Returns the collector of its outputs.
    pub(super) fn submit(
        &self,
        id: &Arc<str>,
        request: Box<EngineCoreRequest>,
        observer: Option<Box<dyn RequestObserver>>,
        connection: Option<ConnectionControl>,
    ) -> Result<Arc<Collector>, EngineError> {
        let collector = Arc::new(Collector::default());
        let prefilling_tokens = request.prompt_token_ids.as_ref().map_or(0, Vec::len);
        let entry = Entry { collector: Arc::clone(&collector), prefilling_tokens, observer, connection };
        // Insert first, because outputs may arrive at once.
        self.table().requests.insert(Arc::clone(id), entry);
        self.load.fetch_add(1, Ordering::Relaxed);
        self.prefilling_tokens.fetch_add(prefilling_tokens, Ordering::Relaxed);
        match self.post(Request::Add(request)) {
            Ok(wake_up) => self.wake_ups.posted(wake_up),
            Err(error) => {
                self.end(id, FinishReason::Error);
                return Err(error);
            }
        }
        Ok(collector)
    }

    /// Aborts a request that has not ended.
    pub(super) fn abort(&self, id: &str, reason: FinishReason) {
        if self.end(id, reason) {
            // A lost engine has no requests.
            _ = self.send(Request::Abort(vec![id.to_owned()]));
        }
    }

    /// Aborts all requests whose ids `is_wanted` selects, and notifies their clients.
    pub(super) fn abort_all(&self, is_wanted: impl Fn(&str) -> bool) {
        let ids: Vec<String> =
            self.table().requests.keys().filter(|id| is_wanted(id)).map(|id| id.to_string()).collect();
        for id in &ids {
            // Notify the client first, so that it does not wait forever.
            if let Some(entry) = self.table().requests.get(id.as_str()) {
                let finish_reason = Some(FinishReason::Abort);
                let output = EngineCoreOutput { request_id: id.clone(), finish_reason, ..EngineCoreOutput::default() };
                entry.collector.push(StepOutput::Whole(Box::new(output)));
            }
            self.end(id, FinishReason::Abort);
        }
        if !ids.is_empty() {
            // A lost engine has no requests.
            _ = self.send(Request::Abort(ids));
        }
    }

    fn end(&self, id: &str, reason: FinishReason) -> bool {
        let entry = self.table().requests.remove(id);
        let Some(entry) = entry else { return false };
        self.load.fetch_sub(1, Ordering::Relaxed);
        self.prefilling_tokens.fetch_sub(entry.prefilling_tokens, Ordering::Relaxed);
        if let Some(observer) = entry.observer {
            observer.finish(now_s(), reason);
        }
        true
    }

    pub(super) fn call(&self, method: &str, args: Vec<Value>) -> oneshot::Receiver<Result<Value, EngineError>> {
        let (answer, receiver) = oneshot::channel();
        let number = {
            let mut table = self.table();
            table.last_call += 1;
            let number = table.last_call;
            table.calls.insert(number, answer);
            number
        };
        let call = UtilityCall { client_index: 0, call_id: Integer::from(number), method: method.to_owned(), args };
        if let Err(error) = self.send(Request::Utility(call)) {
            self.answer(number, Err(error));
        }
        receiver
    }

    fn answer(&self, number: u64, result: Result<Value, EngineError>) {
        let answer = self.table().calls.remove(&number);
        if let Some(answer) = answer {
            // The caller may have left.
            _ = answer.send(result);
        }
    }

    /// Handles an event. Returns whether the engine became ready for the first time.
    pub(super) fn handle(&self, event: LocalEvent<'_>, observer: Option<&dyn EngineObserver>) -> bool {
        match event {
            LocalEvent::Ready(ready) => {
                let mut table = self.table();
                table.is_up = true;
                return table.ready.replace(Box::new(ready.clone())).is_none();
            }
            LocalEvent::Lost => self.lose(),
            LocalEvent::Message(frame) if frame == ENGINE_CORE_DEAD => self.lose(),
            LocalEvent::Message(frame) => match StepOutputs::decode(frame) {
                Ok(step) => self.take(step, observer),
                Err(error) => tracing::error!(rank = self.number, "an engine's message cannot be decoded: {error}"),
            },
            LocalEvent::Step(step) => self.take(step, observer),
            LocalEvent::Damaged(frame, damage) => {
                if let Ok(step) = StepOutputs::decode(frame) {
                    self.take_damaged(step, damage);
                }
            }
        }
        false
    }

    /// Ends the requests in a message that a fault damages. For lost outputs, real clients would wait forever, so
    /// their connections are reset. Outputs that cannot be decoded become errors.
    fn take_damaged(&self, mut step: StepOutputs<'_>, damage: MessageDamage) {
        if let Some(utility) = step.message.utility_output.take() {
            self.answer(utility.call_id.as_u64().unwrap_or(0), Err(EngineError::Unreadable));
        }
        let mut damaged = Vec::new();
        step.for_each(|id, _| damaged.push(id.to_owned()));
        for id in &damaged {
            if let Some(entry) = self.table().requests.get(id.as_str()) {
                match (damage, &entry.connection) {
                    (MessageDamage::Lost, Some(connection)) => connection.reset(),
                    _ => entry.collector.fail(EngineError::Unreadable),
                }
            }
            self.abort(id, FinishReason::Error);
        }
    }

    fn lose(&self) {
        let (requests, calls) = {
            let mut table = self.table();
            table.is_up = false;
            (std::mem::take(&mut table.requests), std::mem::take(&mut table.calls))
        };
        if !requests.is_empty() {
            tracing::error!(rank = self.number, requests = requests.len(), "the engine is lost with its requests");
        }
        self.load.fetch_sub(requests.len(), Ordering::Relaxed);
        let now_s = now_s();
        for entry in requests.into_values() {
            self.prefilling_tokens.fetch_sub(entry.prefilling_tokens, Ordering::Relaxed);
            entry.collector.fail(EngineError::Dead);
            if let Some(observer) = entry.observer {
                observer.finish(now_s, FinishReason::Error);
            }
        }
        for answer in calls.into_values() {
            _ = answer.send(Err(EngineError::Dead));
        }
    }

    fn take(&self, mut step: StepOutputs<'_>, observer: Option<&dyn EngineObserver>) {
        if let (Some(stats), Some(observer)) = (&step.message.scheduler_stats, observer) {
            observer.scheduler(self.number, stats);
        }
        if let Some(utility) = step.message.utility_output.take() {
            self.take_utility(utility);
        }
        let (now_s, engine_s) = (now_s(), step.message.timestamp);
        let mut table = self.table();
        // Wake the clients after the lock is released, because they need it for their next requests.
        let mut woken = std::mem::take(&mut table.woken);
        step.for_each(|id, output| {
            // An output may arrive after its request was aborted.
            let Some(entry) = table.requests.get_mut(id) else { return };
            self.prefilling_tokens.fetch_sub(std::mem::take(&mut entry.prefilling_tokens), Ordering::Relaxed);
            if let Some(observer) = &mut entry.observer {
                observer.output(now_s, engine_s, &output);
            }
            let finish = match &output {
                StepOutput::Tokens(_) => None,
                StepOutput::Whole(output) => output.finish_reason,
            };
            let Some(reason) = finish else { return woken.extend(entry.collector.put(output)) };
            if let Some(entry) = table.requests.remove(id) {
                self.load.fetch_sub(1, Ordering::Relaxed);
                // The client may read metrics as soon as it sees the end, so update them first.
                if let Some(observer) = entry.observer {
                    observer.finish(now_s, reason);
                }
                woken.extend(entry.collector.put(output));
            }
        });
        drop(table);
        if let Some(observer) = observer {
            observer.message_ended(self.number);
        }
        woken.drain(..).for_each(Waker::wake);
        self.table().woken = woken;
    }

    fn take_utility(&self, utility: UtilityOutput) {
        let result = match utility.failure_message {
            Some(message) => Err(EngineError::Utility(message)),
            None => Ok(utility.result.map_or(Value::Nil, |result| result.value)),
        };
        self.answer(utility.call_id.as_u64().unwrap_or(0), result);
    }
}
