//! The recorded exchanges of a capture, by request.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use serde::Serialize;
use vcr_trace::capture::{CaptureFile, CapturePosition, HttpEnd, HttpRecord, ReadOptions};
use xxhash_rust::xxh3::Xxh3;

use super::asked::{Asked, AskedParts};
use super::diff::{Difference, differences};
use super::rules::{MatchRules, Order};
use crate::http::RedactRules;
use crate::playback::PlaybackError;

const MISSES_MAX: usize = 100;

/// The recorded exchanges of a capture. An [`Order`] chooses among recordings of equal requests.
pub struct HttpTape {
    file: Option<CaptureFile>,
    rules: MatchRules,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    /// Recordings of equal requests, by request key.
    by_key: HashMap<u64, Same>,
    report: HttpTapeReport,
}

#[derive(Default)]
struct Same {
    /// Indexes of entries, in order of arrival.
    entries: Vec<u32>,
    /// Number of requests that got one of the recordings.
    taken: u64,
}

struct Entry {
    place: Place,
    route: u64,
    parameters: u64,
    is_used: bool,
    sketch: Box<[u64]>,
}

#[derive(Clone)]
enum Place {
    File(CapturePosition),
    Memory(Arc<HttpRecord>),
}

/// The result of a lookup.
#[derive(Debug)]
pub enum Found {
    Record(Box<HttpRecord>),
    /// No recording was found.
    Miss(Box<Miss>),
}

/// A request without a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Miss {
    /// Method and path.
    pub request: String,
    /// The most similar recording with the same method and path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<Nearest>,
}

/// The recording most similar to a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Nearest {
    /// The recording's id in the capture.
    pub id: String,
    /// Differences between the recording and the request.
    pub differences: Vec<Difference>,
}

/// The totals of a playback.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HttpTapeReport {
    pub recordings: u64,
    /// Recordings that were never played.
    pub unused: u64,
    /// Recordings that cannot be played: the client disconnected, or their bodies are incomplete.
    pub incomplete: u64,
    /// Requests that got a recording.
    pub matched: u64,
    /// Requests that got a recording already played for another request.
    pub repeated: u64,
    /// Requests without a recording.
    pub missed: u64,
    /// The first misses.
    pub misses: Vec<Miss>,
}

impl HttpTape {
    /// Creates a tape without recordings.
    #[must_use]
    pub fn empty(rules: MatchRules) -> Self {
        Self { file: None, rules, state: Mutex::default() }
    }

    /// Opens a capture. Exchanges stay in the file.
    pub fn open(path: &Path, rules: MatchRules, lenient: bool) -> Result<Self, PlaybackError> {
        let file = CaptureFile::open(path, &ReadOptions { lenient })?;
        let meta = file.meta();
        let redact = RedactRules {
            headers: meta.redacted_headers.clone(),
            query: meta.redacted_query.clone(),
            json: meta.redacted_json.iter().filter_map(|path| path.parse().ok()).collect(),
        };
        let rules = MatchRules { redact, ..rules };
        let mut state = State::default();
        let mut found: Vec<(u64, CapturePosition, Asked)> = Vec::new();
        file.scan_http(|position, record| match is_playable(&record) {
            true => found.push((record.arrival_ns, position, asked_of(&record, &rules))),
            false => state.report.incomplete += 1,
        })?;
        // The capture is in order of ends, not arrivals.
        found.sort_by_key(|(arrival_ns, ..)| *arrival_ns);
        for (_, position, asked) in found {
            state.add(Place::File(position), &asked);
        }
        Ok(Self { file: Some(file), rules, state: Mutex::new(state) })
    }

    /// The rules for comparing requests.
    #[must_use]
    pub fn rules(&self) -> &MatchRules {
        &self.rules
    }

    /// Adds a recording. It counts as played for the request that was recorded.
    pub fn add(&self, record: HttpRecord) {
        let asked = asked_of(&record, &self.rules);
        let mut state = self.state();
        if is_playable(&record) {
            state.add(Place::Memory(Arc::new(record)), &asked);
            state.report.unused -= 1;
            let State { entries, by_key, .. } = &mut *state;
            if let (Some(entry), Some(same)) = (entries.last_mut(), by_key.get_mut(&asked.key())) {
                entry.is_used = true;
                same.taken += 1;
            }
        }
    }

    /// Finds a recording for a request and marks it as played.
    pub fn take(&self, asked: &Asked) -> Result<Found, PlaybackError> {
        let key = asked.key();
        let mut state = self.state();
        let State { entries, by_key, report } = &mut *state;
        let place = by_key.get_mut(&key).map(|same| {
            let index = match self.rules.order {
                Order::Recorded => same.next(),
                Order::Parameters => same.of_parameters(asked.parameters_key(), entries),
                Order::Random => same.drawn(self.rules.seed, key),
            };
            same.taken += 1;
            let entry = &mut entries[index as usize];
            let was_used = std::mem::replace(&mut entry.is_used, true);
            report.matched += 1;
            report.repeated += u64::from(was_used);
            report.unused -= u64::from(!was_used);
            entry.place.clone()
        });
        if let Some(place) = place {
            drop(state);
            return self.read(&place).map(|record| Found::Record(Box::new(record)));
        }
        let nearest = state.nearest(asked);
        drop(state);
        let nearest = nearest.map(|place| self.read(&place)).transpose()?;
        let miss = Miss { request: asked.route(), nearest: nearest.map(|record| self.compared(&record, asked)) };
        let report = &mut self.state().report;
        report.missed += 1;
        if report.misses.len() < MISSES_MAX {
            report.misses.push(miss.clone());
        }
        Ok(Found::Miss(Box::new(miss)))
    }

    /// The totals so far.
    #[must_use]
    pub fn report(&self) -> HttpTapeReport {
        self.state().report.clone()
    }

    fn compared(&self, record: &HttpRecord, asked: &Asked) -> Nearest {
        let recorded = asked_of(record, &self.rules);
        let mut found = match (recorded.json(), asked.json()) {
            (Some(recorded), Some(asked)) => differences(recorded, asked),
            _ => {
                vec![Difference { path: String::new(), recorded: None, asked: Some("a body that is not JSON".into()) }]
            }
        };
        if recorded.query() != asked.query() {
            let query = |text: &str| Some(format!("?{text}").into());
            let (recorded, asked) = (query(recorded.query()), query(asked.query()));
            found.insert(0, Difference { path: "query".to_owned(), recorded, asked });
        }
        if recorded.headers() != asked.headers() {
            let (recorded, asked) = (Some(recorded.headers().into()), Some(asked.headers().into()));
            found.insert(0, Difference { path: "headers".to_owned(), recorded, asked });
        }
        Nearest { id: record.id.clone(), differences: found }
    }

    fn read(&self, place: &Place) -> Result<HttpRecord, PlaybackError> {
        match (place, &self.file) {
            (Place::File(position), Some(file)) => Ok(file.http_at(*position)?),
            (Place::Memory(record), _) => Ok((**record).clone()),
            (Place::File(_), None) => unreachable!("places in a file come from one"),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Same {
    fn next(&self) -> u32 {
        self.entries[(self.taken as usize).min(self.entries.len() - 1)]
    }

    /// The next unused recording with these parameters, or else the last one with them. If there is none, the next
    /// unused recording with any parameters.
    fn of_parameters(&self, parameters: u64, entries: &[Entry]) -> u32 {
        let is_new = |index: &&u32| !entries[**index as usize].is_used;
        let equal = || self.entries.iter().filter(|index| entries[**index as usize].parameters == parameters);
        let next = equal().find(is_new).or_else(|| equal().next_back()).or_else(|| self.entries.iter().find(is_new));
        next.copied().unwrap_or_else(|| self.next())
    }

    /// A random recording.
    fn drawn(&self, seed: u64, key: u64) -> u32 {
        let mut hash = Xxh3::with_seed(seed);
        hash.update(&key.to_le_bytes());
        hash.update(&self.taken.to_le_bytes());
        self.entries[(hash.digest() % self.entries.len() as u64) as usize]
    }
}

impl State {
    fn add(&mut self, place: Place, asked: &Asked) {
        let index = self.entries.len() as u32;
        let (route, parameters) = (asked.route_key(), asked.parameters_key());
        self.entries.push(Entry { place, route, parameters, is_used: false, sketch: asked.sketch() });
        self.by_key.entry(asked.key()).or_default().entries.push(index);
        self.report.recordings += 1;
        self.report.unused += 1;
    }

    /// Among the recordings with the same method and path, the first with the most parts in common.
    fn nearest(&self, asked: &Asked) -> Option<Place> {
        let (route, sketch) = (asked.route_key(), asked.sketch());
        let of_route = self.entries.iter().filter(|entry| entry.route == route).enumerate();
        let best = of_route.max_by_key(|(order, entry)| (common(&entry.sketch, &sketch), usize::MAX - order));
        best.map(|(_, entry)| entry.place.clone())
    }
}

/// Counts the common numbers of two sorted lists.
fn common(one: &[u64], other: &[u64]) -> usize {
    let mut other = other.iter().peekable();
    let is_shared = |part: &&u64| {
        while other.next_if(|known| known < part).is_some() {}
        other.next_if_eq(part).is_some()
    };
    one.iter().filter(is_shared).count()
}

fn is_playable(record: &HttpRecord) -> bool {
    record.status.is_some()
        && record.end != HttpEnd::ClientGone
        && record.left_out_bytes == 0
        && record.request_left_out_bytes == 0
}

fn asked_of(record: &HttpRecord, rules: &MatchRules) -> Asked {
    let parts = AskedParts {
        method: &record.method,
        path: &record.path,
        query: record.query.as_deref(),
        headers: &record.request_headers,
        body: &record.request_body.0,
    };
    Asked::of(parts, rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use vcr_trace::capture::{CaptureEnd, CaptureLine, CaptureMeta, CaptureWriter, HttpBytes};

    fn record(number: u64, body: &str) -> HttpRecord {
        HttpRecord {
            id: format!("http-{number}"),
            arrival_ns: 100 - number,
            method: "POST".to_owned(),
            path: "/v1/completions".to_owned(),
            request_body: HttpBytes(body.as_bytes().to_vec()),
            status: Some(200),
            ..HttpRecord::default()
        }
    }

    fn tape(records: Vec<HttpRecord>) -> HttpTape {
        tape_by(MatchRules::default(), records)
    }

    fn tape_by(rules: MatchRules, records: Vec<HttpRecord>) -> HttpTape {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.jsonl");
        let meta = CaptureMeta { format: "vcr.capture".to_owned(), version: 1, ..CaptureMeta::default() };
        let mut writer = CaptureWriter::create(&path, meta).expect("it is new");
        for record in records {
            writer.write(&CaptureLine::Http(Box::new(record))).expect("it is writable");
        }
        writer.write(&CaptureLine::End(CaptureEnd::default())).expect("it is writable");
        writer.finish().expect("it is writable");
        HttpTape::open(&path, rules, false).expect("it is a capture")
    }

    fn ask(tape: &HttpTape, body: &str) -> Result<String, Miss> {
        let parts =
            AskedParts { method: "POST", path: "/v1/completions", body: body.as_bytes(), ..AskedParts::default() };
        let asked = Asked::of(parts, tape.rules());
        match tape.take(&asked).expect("the file is open") {
            Found::Record(record) => Ok(record.id),
            Found::Miss(miss) => Err(*miss),
        }
    }

    #[test]
    fn recordings_of_one_request_come_in_the_order_of_arrival() {
        let same = r#"{"prompt":"a"}"#;
        let tape = tape(vec![record(1, same), record(2, same), record(3, r#"{"prompt":"b"}"#)]);
        let taken: Vec<_> = (0..3).map(|_| ask(&tape, r#"{"prompt": "a", "user": "x"}"#).expect("a match")).collect();
        assert_eq!(taken, ["http-2", "http-1", "http-1"]);
        let report = tape.report();
        assert_eq!((report.recordings, report.matched, report.repeated, report.unused), (3, 3, 1, 1));
    }

    #[test]
    fn recordings_are_chosen_by_parameters_or_by_lot() {
        let at = |temperature: u32| format!(r#"{{"prompt":"a","temperature":{temperature}}}"#);
        // The record with the highest number arrived first.
        let records = || vec![record(4, &at(0)), record(3, &at(1)), record(2, &at(0)), record(1, &at(2))];
        let rules = MatchRules { order: Order::Parameters, ..MatchRules::default() };
        let tape = tape_by(rules, records());
        let taken: Vec<_> = [1, 0, 0, 0, 7, 7].map(|of| ask(&tape, &at(of)).expect("a match")).to_vec();
        assert_eq!(taken, ["http-3", "http-4", "http-2", "http-2", "http-1", "http-1"]);
        let report = tape.report();
        assert_eq!((report.matched, report.repeated, report.unused), (6, 2, 0));
        let same = || (1..=8).map(|number| record(number, "{}")).collect();
        let drawn = |seed: u64| {
            let tape = tape_by(MatchRules { order: Order::Random, seed, ..MatchRules::default() }, same());
            let drawn: Vec<_> = (0..40).map(|_| ask(&tape, "{}").expect("a match")).collect();
            let mut known = drawn.clone();
            known.sort_unstable();
            known.dedup();
            assert_eq!(tape.report().unused, 8 - known.len() as u64);
            assert!(known.len() > 5, "{known:?}");
            drawn
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    #[test]
    fn a_miss_shows_the_nearest_recording() {
        let chat = |text: &str, temperature: f64| {
            json!({"messages": [{"content": "system"}, {"content": text}], "temperature": temperature}).to_string()
        };
        let tape = tape(vec![record(1, &chat("a", 0.0)), record(2, &chat("b", 0.5)), record(3, "{}")]);
        let miss = ask(&tape, &chat("b", 0.7)).expect_err("another temperature");
        let nearest = miss.nearest.expect("there are recordings");
        let expected =
            Difference { path: "/temperature".to_owned(), recorded: Some(json!(0.5)), asked: Some(json!(0.7)) };
        assert_eq!((nearest.id.as_str(), nearest.differences), ("http-2", vec![expected]));
        let other = Asked::of(AskedParts { method: "GET", path: "/v1/models", ..AskedParts::default() }, tape.rules());
        let Found::Miss(miss) = tape.take(&other).expect("it is open") else { panic!("nothing is there") };
        assert_eq!((miss.request.as_str(), miss.nearest), ("GET /v1/models", None));
        assert_eq!(tape.report().missed, 2);
    }

    #[test]
    fn incomplete_recordings_are_not_played_and_new_ones_are() {
        let gone = HttpRecord { end: HttpEnd::ClientGone, ..record(1, "{}") };
        let cut = HttpRecord { left_out_bytes: 1, ..record(2, "{}") };
        let tape = tape(vec![gone, cut]);
        assert!(ask(&tape, "{}").is_err());
        assert_eq!(tape.report().incomplete, 2);
        tape.add(record(3, "{}"));
        assert_eq!(ask(&tape, "{}").expect("it was added"), "http-3");
        assert_eq!((tape.report().unused, tape.report().repeated), (0, 1));
    }
}
