//! Telemetry of guests, and its limits.
//!
//! An instance reports counts, gauges, annotations and log lines. They are checked and limited here, and passed on to
//! a [`NoteSink`]. They never influence decisions, so a run with a sink decides like a run without.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::CallFault;
use crate::limits::Limits;

/// The longest name of a counter or gauge in bytes, as `wit/` specifies.
const NAME_BYTES_MAX: usize = 64;

/// Bytes charged for each item in addition to its text.
const NOTE_BYTES: u64 = 16;

/// Longest last line, in bytes, that the error of a panic shows.
const LAST_LINE_BYTES_MAX: usize = 1024;

/// An item of a guest's telemetry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Note<'a> {
    /// A counter grew.
    Count {
        name: &'a str,
        /// Increment of the counter.
        by: u64,
    },
    /// A gauge changed.
    Gauge {
        name: &'a str,
        /// Time of the change, in nanoseconds.
        at_ns: u64,
        /// The value; it is finite.
        value: f64,
        /// Whether the time series should include the value; `false` once the instance has sent too much.
        in_course: bool,
    },
    /// A mark at an instant.
    Annotation {
        /// The instant, in nanoseconds.
        at_ns: u64,
        /// The text of the mark.
        text: &'a str,
    },
    /// A line of the log.
    Line {
        /// The line.
        text: &'a str,
    },
    /// An item was dropped because it was invalid or over a limit.
    Dropped,
}

/// Receives the telemetry of a guest's instances.
pub trait NoteSink: Send + Sync {
    /// Receives one note. Notes of one instance arrive in the order sent.
    fn note(&self, note: Note<'_>);
}

/// Statistics of a gauge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaugeSummary {
    /// The latest value.
    pub last: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

/// Counters and gauges by name, and the number of dropped notes. Their size is bounded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GuestStats {
    /// Totals of the counters.
    pub counters: BTreeMap<String, u64>,
    pub gauges: BTreeMap<String, GaugeSummary>,
    /// Number of dropped notes.
    pub dropped: u64,
}

impl GuestStats {
    /// Adds a note; only counts and gauges have an effect.
    pub fn add(&mut self, note: &Note<'_>) {
        match *note {
            Note::Count { name, by } => {
                let total = entry(&mut self.counters, name, || 0);
                *total = total.saturating_add(by);
            }
            Note::Gauge { name, value, in_course, .. } => {
                let gauge = entry(&mut self.gauges, name, || GaugeSummary { last: value, min: value, max: value });
                *gauge = GaugeSummary { last: value, min: gauge.min.min(value), max: gauge.max.max(value) };
                self.dropped += u64::from(!in_course);
            }
            Note::Dropped => self.dropped += 1,
            Note::Annotation { .. } | Note::Line { .. } => {}
        }
    }

    /// Whether there is no telemetry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The value of `name`, inserted if missing. Names are few and used often, so the name is copied only on insertion.
fn entry<'m, V>(map: &'m mut BTreeMap<String, V>, name: &str, make: impl FnOnce() -> V) -> &'m mut V {
    if !map.contains_key(name) {
        map.insert(name.to_owned(), make());
    }
    map.get_mut(name).expect("it was inserted where it was not there")
}

/// Telemetry of one instance so far, as counted by its limits.
pub(crate) struct TelemetryMeter {
    sink: Option<Arc<dyn NoteSink>>,
    names: BTreeMap<String, Kind>,
    names_max: usize,
    /// Remaining `observe` calls of the current call.
    calls_left: u32,
    calls_per_call: u32,
    bytes_left: u64,
    /// The last line logged in the current call, truncated; empty for none.
    last_line: String,
}

enum Kind {
    Counter,
    /// A gauge, and the time of its latest value.
    Gauge(u64),
}

impl TelemetryMeter {
    pub(crate) fn new(limits: &Limits, sink: Option<Arc<dyn NoteSink>>) -> Self {
        Self {
            sink,
            names: BTreeMap::new(),
            names_max: limits.observe_names,
            calls_left: limits.observe_calls_per_call,
            calls_per_call: limits.observe_calls_per_call,
            bytes_left: limits.observe_bytes,
            last_line: String::new(),
        }
    }

    pub(crate) fn begin_call(&mut self) {
        self.calls_left = self.calls_per_call;
        self.last_line.clear();
    }

    pub(crate) fn last_line(&self) -> Option<&str> {
        Some(self.last_line.as_str()).filter(|line| !line.is_empty())
    }

    pub(crate) fn count(&mut self, name: &str, by: u64) -> Result<(), CallFault> {
        self.admit()?;
        match self.kind(name, || Kind::Counter) {
            Some(Kind::Counter) => self.send(Note::Count { name, by }),
            _ => self.send(Note::Dropped),
        }
        Ok(())
    }

    pub(crate) fn gauge(&mut self, name: &str, at_ns: u64, value: f64) -> Result<(), CallFault> {
        self.admit()?;
        let is_allowed = value.is_finite()
            && match self.kind(name, || Kind::Gauge(at_ns)) {
                Some(Kind::Gauge(latest_ns)) if at_ns >= *latest_ns => {
                    *latest_ns = at_ns;
                    true
                }
                _ => false,
            };
        if is_allowed {
            let in_course = self.spend(0);
            self.send(Note::Gauge { name, at_ns, value, in_course });
        } else {
            self.send(Note::Dropped);
        }
        Ok(())
    }

    pub(crate) fn annotate(&mut self, at_ns: u64, text: &str) -> Result<(), CallFault> {
        self.admit()?;
        let note = if self.spend(text.len()) { Note::Annotation { at_ns, text } } else { Note::Dropped };
        self.send(note);
        Ok(())
    }

    pub(crate) fn log(&mut self, text: &str) -> Result<(), CallFault> {
        self.admit()?;
        self.last_line.clear();
        self.last_line.push_str(&text[..text.floor_char_boundary(LAST_LINE_BYTES_MAX)]);
        let note = if self.spend(text.len()) { Note::Line { text } } else { Note::Dropped };
        self.send(note);
        Ok(())
    }

    fn admit(&mut self) -> Result<(), CallFault> {
        let fault = CallFault::TooManyObservations { limit: self.calls_per_call };
        self.calls_left = self.calls_left.checked_sub(1).ok_or(fault)?;
        Ok(())
    }

    /// The kind of `name`; none if the name is invalid or over the limit of names.
    fn kind(&mut self, name: &str, new: impl FnOnce() -> Kind) -> Option<&mut Kind> {
        if !self.names.contains_key(name) {
            if self.names.len() >= self.names_max || !is_name(name) {
                return None;
            }
            self.names.insert(name.to_owned(), new());
        }
        self.names.get_mut(name)
    }

    /// Charges a note with this much text. Returns whether the limit allows it.
    fn spend(&mut self, text_bytes: usize) -> bool {
        match self.bytes_left.checked_sub(NOTE_BYTES + text_bytes as u64) {
            Some(left) => {
                self.bytes_left = left;
                true
            }
            None => false,
        }
    }

    fn send(&self, note: Note<'_>) {
        if let Some(sink) = &self.sink {
            sink.note(note);
        }
    }
}

/// Whether `text` is a valid name of a counter or gauge.
fn is_name(text: &str) -> bool {
    let is_inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
    text.len() <= NAME_BYTES_MAX
        && text.bytes().next().is_some_and(|first| first.is_ascii_lowercase())
        && text.bytes().all(is_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<Vec<String>>);

    impl NoteSink for Kept {
        fn note(&self, note: Note<'_>) {
            self.0.lock().expect("no holder panicked").push(format!("{note:?}"));
        }
    }

    fn telemetry(limits: Limits) -> (TelemetryMeter, Arc<Kept>) {
        let kept = Arc::new(Kept::default());
        (TelemetryMeter::new(&limits, Some(kept.clone())), kept)
    }

    fn dropped(kept: &Kept) -> usize {
        kept.0.lock().expect("no holder panicked").iter().filter(|note| *note == "Dropped").count()
    }

    #[test]
    fn names_are_those_of_the_interface() {
        for good in ["a", "steps_total", "gpu0_celsius", &"x".repeat(64)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "A", "0a", "_a", "a-b", "a b", "ä", &"x".repeat(65)] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn a_name_is_of_one_kind_and_names_are_few() {
        let (mut telemetry, kept) = telemetry(Limits { observe_names: 2, ..Limits::default() });
        telemetry.count("a", 1).expect("few calls");
        telemetry.gauge("a", 0, 1.0).expect("few calls");
        assert_eq!(dropped(&kept), 1, "it is a counter");
        telemetry.gauge("b", 5, 1.0).expect("few calls");
        telemetry.gauge("b", 4, 1.0).expect("few calls");
        assert_eq!(dropped(&kept), 2, "time went backwards");
        telemetry.gauge("b", 6, f64::NAN).expect("few calls");
        assert_eq!(dropped(&kept), 3, "it is not finite");
        telemetry.count("c", 1).expect("few calls");
        assert_eq!(dropped(&kept), 4, "there are two names already");
        telemetry.count("a", 1).expect("few calls");
        assert_eq!(dropped(&kept), 4);
    }

    #[test]
    fn beyond_its_bytes_only_sums_are_heard() {
        let (mut telemetry, kept) = telemetry(Limits { observe_bytes: 40, ..Limits::default() });
        telemetry.gauge("g", 1, 1.0).expect("few calls");
        telemetry.gauge("g", 2, 2.0).expect("few calls");
        telemetry.gauge("g", 3, 3.0).expect("few calls");
        telemetry.log("a line that does not fit").expect("few calls");
        telemetry.annotate(3, "neither").expect("few calls");
        let notes = kept.0.lock().expect("no holder panicked").clone();
        assert!(notes[1].contains("in_course: true") && notes[2].contains("in_course: false"), "{notes:?}");
        assert_eq!(notes[3..], ["Dropped", "Dropped"]);
    }

    #[test]
    fn too_many_calls_in_one_call_are_a_fault_and_the_next_call_starts_anew() {
        let (mut telemetry, _) = telemetry(Limits { observe_calls_per_call: 2, ..Limits::default() });
        for _ in 0..2 {
            telemetry.begin_call();
            telemetry.count("a", 1).expect("the first");
            telemetry.log("b").expect("the second");
            assert_eq!(telemetry.count("a", 1), Err(CallFault::TooManyObservations { limit: 2 }));
        }
    }

    #[test]
    fn sums_are_kept_by_name() {
        let mut stats = GuestStats::default();
        stats.add(&Note::Count { name: "n", by: u64::MAX });
        stats.add(&Note::Count { name: "n", by: 2 });
        for value in [3.0, 1.0, 2.0] {
            stats.add(&Note::Gauge { name: "g", at_ns: 0, value, in_course: value > 1.0 });
        }
        assert_eq!(stats.counters["n"], u64::MAX, "a counter stays where it cannot grow");
        assert_eq!(stats.gauges["g"], GaugeSummary { last: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(stats.dropped, 1);
    }
}
