//! Reports of the engines in this process about requests and transfers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vcr_cluster::{KvMoved, KvTransfer};
use vcr_frontend::engine::{EngineObserver, RequestObserver, RequestStart};
use vcr_live::Placement;
use vcr_wire::{EventType, FinishReason, SchedulerStats, StepOutput};

use crate::drive::AnswerReporter;

/// The reports of an engine that count for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedOutputs {
    All,
    /// Everything but output tokens, because clients do not get those of a prefill engine.
    Prompt,
    /// Everything but admission and cached tokens, because another engine computed the prompt.
    Output,
}

/// An engine's reports about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Noted {
    /// When the request was admitted, in seconds on the system's monotonic clock.
    pub(crate) scheduled_s: Option<f64>,
    pub(crate) cached_tokens: u32,
    pub(crate) preemptions: u32,
}

struct Contents {
    /// The index of the pool's first engine in the report.
    first_engine: u32,
    /// The engine of each request, by the request's tag.
    engines: BTreeMap<u64, u16>,
    /// When the prompt's KV reached the decode engine, in nanoseconds on the system's monotonic clock, by tag.
    received_ns: BTreeMap<u64, u64>,
    /// Reports about the run's requests, by tag.
    requests: BTreeMap<u64, Noted>,
    /// Transfers to the pool's engines. They end at times on the system's monotonic clock.
    transfers: Vec<KvTransfer>,
}

/// Collects reports from the engines' threads. Clones share their contents.
#[derive(Clone)]
pub(crate) struct Book(Arc<Mutex<Contents>>);

/// The name of a request, for its header and id.
pub(crate) fn name_of(tag: u64) -> String {
    format!("vcr-{tag}")
}

/// Extracts the tag from a name such as `cmpl-vcr-17`.
pub(crate) fn tag_of(name: &str) -> Option<u64> {
    let (_, rest) = name.split_once("vcr-")?;
    rest.split('-').next()?.parse().ok()
}

impl Book {
    /// Creates the book of a pool. `first_engine` is the index of the pool's first engine in the report.
    pub(crate) fn new(first_engine: u32) -> Self {
        let contents = Contents {
            first_engine,
            engines: BTreeMap::new(),
            received_ns: BTreeMap::new(),
            requests: BTreeMap::new(),
            transfers: Vec::new(),
        };
        Self(Arc::new(Mutex::new(contents)))
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        // A panic under this lock leaves the contents consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn first_engine(&self) -> u32 {
        self.contents().first_engine
    }

    pub(crate) fn take(&self, tag: u64) -> Option<Noted> {
        self.contents().requests.remove(&tag)
    }

    /// Records a change in the placement of a request.
    pub(crate) fn place(&self, name: &str, place: Placement) {
        let Some(tag) = tag_of(name) else { return };
        let mut contents = self.contents();
        match place {
            Placement::Taken(rank) => _ = contents.engines.insert(tag, rank),
            Placement::Received(at_ns) => _ = contents.received_ns.insert(tag, at_ns),
            Placement::Scheduled { at_ns, cached_tokens } => {
                let noted = Noted { scheduled_s: Some(at_ns as f64 / 1e9), cached_tokens, preemptions: 0 };
                contents.requests.insert(tag, noted);
            }
            Placement::Preempted => {
                if let Some(noted) = contents.requests.get_mut(&tag) {
                    noted.preemptions += 1;
                }
            }
        }
    }

    /// Passes the engine of a request, and the arrival time of its KV, to `reporter`. Further calls pass nothing.
    pub(crate) fn report_engine(&self, tag: u64, reporter: &AnswerReporter, counted: CountedOutputs) {
        let received_ns = self.contents().received_ns.remove(&tag);
        if let Some(at_ns) = received_ns {
            reporter.transferred(at_ns);
        }
        match (self.take_engine(tag), counted) {
            (None, _) => {}
            (Some(engine), CountedOutputs::All | CountedOutputs::Prompt) => reporter.served_by(engine),
            (Some(engine), CountedOutputs::Output) => reporter.decoded_by(engine),
        }
    }

    fn take_engine(&self, tag: u64) -> Option<u32> {
        let mut contents = self.contents();
        let rank = contents.engines.remove(&tag)?;
        Some(contents.first_engine + u32::from(rank))
    }

    pub(crate) fn transferred(&self, rank: u16, from: u32, end_ns: u64, outcome: Result<KvMoved, &'static str>) {
        let mut contents = self.contents();
        let engine = contents.first_engine + u32::from(rank);
        contents.transfers.push(KvTransfer { engine, from, end_ns, outcome });
    }

    pub(crate) fn take_transfers(&self) -> Vec<KvTransfer> {
        std::mem::take(&mut self.contents().transfers)
    }
}

/// Records all reports in a book and forwards them to another observer.
pub(crate) struct BookObserver {
    pub(crate) book: Book,
    pub(crate) next: Option<Box<dyn EngineObserver>>,
}

impl EngineObserver for BookObserver {
    fn scheduler(&self, rank: u16, stats: &SchedulerStats) {
        if let Some(next) = &self.next {
            next.scheduler(rank, stats);
        }
    }

    fn request(&self, start: RequestStart) -> Box<dyn RequestObserver> {
        let tag = tag_of(&start.id);
        let next = self.next.as_ref().map(|next| next.request(start));
        Box::new(BookRequestObserver { book: self.book.clone(), tag, noted: Noted::default(), next })
    }

    fn message_ended(&self, rank: u16) {
        if let Some(next) = &self.next {
            next.message_ended(rank);
        }
    }
}

struct BookRequestObserver {
    book: Book,
    tag: Option<u64>,
    noted: Noted,
    next: Option<Box<dyn RequestObserver>>,
}

impl RequestObserver for BookRequestObserver {
    fn output(&mut self, now_s: f64, engine_s: f64, output: &StepOutput<'_>) {
        if let StepOutput::Whole(output) = output {
            for event in output.events.iter().flatten() {
                match event.kind {
                    EventType::Queued => {}
                    EventType::Scheduled => _ = self.noted.scheduled_s.get_or_insert(event.timestamp),
                    EventType::Preempted => self.noted.preemptions += 1,
                }
            }
            if let Some(prefill) = &output.prefill_stats {
                self.noted.cached_tokens = prefill.num_cached_tokens as u32;
            }
        }
        if let Some(next) = &mut self.next {
            next.output(now_s, engine_s, output);
        }
    }

    fn finish(self: Box<Self>, now_s: f64, reason: FinishReason) {
        if let Some(tag) = self.tag {
            self.book.contents().requests.insert(tag, self.noted);
        }
        if let Some(next) = self.next {
            next.finish(now_s, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_those_of_the_report() {
        let book = Book::new(4);
        book.place("cmpl-vcr-17-00ff", Placement::Taken(2));
        book.place("another", Placement::Taken(1));
        assert_eq!((book.take_engine(17), book.take_engine(17), book.take_engine(1)), (Some(6), None, None));
    }

    #[test]
    fn requests_are_known_by_their_names() {
        assert_eq!(tag_of(&name_of(17)), Some(17));
        assert_eq!(tag_of("cmpl-vcr-17"), Some(17));
        assert_eq!(tag_of("cmpl-vcr-17-0"), Some(17));
        assert_eq!(tag_of("cmpl-17"), None);
        assert_eq!(tag_of("vcr-x"), None);
    }
}
