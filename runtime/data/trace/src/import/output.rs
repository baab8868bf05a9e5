//! The output of importers and its counts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::capture::{
    BrokenOff, CAPTURE_FORMAT, CAPTURE_VERSION, CaptureEnd, CaptureLine, CaptureMeta, EngineRecord, RequestRecord,
};

use crate::import::error::Problem;
use crate::import::{Format, ImportError, OUTPUT_TEXT, Sink};

/// The result of an import.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The format of the file.
    pub format: Format,
    /// Number of imported requests.
    pub requests: u64,
    /// Number of items that a lenient import skipped.
    pub skipped: u64,
    /// The first error that was skipped, in words.
    pub first_skipped: Option<String>,
    /// How the capture breaks off; None if it does not.
    pub broken_off: Option<BrokenOff>,
    /// Omissions and assumptions, in order of first appearance.
    pub notes: Vec<Note>,
}

/// A number of items that an import left out or assumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Name of the counted items, in words that follow a number.
    pub what: String,
    /// Number of items.
    pub count: u64,
}

impl Note {
    /// The note as a sentence. Names of items that do not say what became of them are of unused items.
    #[must_use]
    pub fn sentence(&self) -> String {
        let says_it = [" were ", ", which ", " with a warning: "].iter().any(|words| self.what.contains(words));
        let rest = if says_it { "" } else { " were not used" };
        format!("{} {}{rest}", self.count, self.what)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    lenient: bool,
    skipped: u64,
    first_skipped: Option<String>,
    notes: Vec<Note>,
}

impl Tally {
    pub(crate) fn new(lenient: bool) -> Self {
        Self { lenient, ..Self::default() }
    }

    /// Skips an item if the import is lenient. Otherwise returns the error, which ends the import.
    pub(crate) fn refuse(&mut self, error: ImportError) -> Result<(), ImportError> {
        if !self.lenient {
            return Err(error);
        }
        self.skipped += 1;
        self.first_skipped.get_or_insert_with(|| error.to_string());
        Ok(())
    }

    pub(crate) fn is_lenient(&self) -> bool {
        self.lenient
    }

    pub(crate) fn skipped_elsewhere(&mut self, count: u64, first: Option<String>) {
        self.skipped += count;
        self.first_skipped = self.first_skipped.take().or(first);
    }

    pub(crate) fn note(&mut self, what: &str) {
        self.notes_of(what, 1);
    }

    pub(crate) fn notes_of(&mut self, what: &str, count: u64) {
        if count == 0 {
            return;
        }
        match self.notes.iter_mut().find(|note| note.what == what) {
            Some(note) => note.count += count,
            None => self.notes.push(Note { what: what.to_owned(), count }),
        }
    }
}

pub(crate) struct Out<'a> {
    sink: &'a mut Sink<'a>,
    pub(crate) tally: Tally,
    requests: u64,
    last_ns: u64,
    pub(crate) broken_off: Option<BrokenOff>,
    keeps_output_text: bool,
}

impl<'a> Out<'a> {
    pub(crate) fn new(sink: &'a mut Sink<'_>, lenient: bool) -> Self {
        Self { sink, tally: Tally::new(lenient), requests: 0, last_ns: 0, broken_off: None, keeps_output_text: false }
    }

    pub(crate) fn keeping_output_text(self, keeps_output_text: bool) -> Self {
        Self { keeps_output_text, ..self }
    }

    pub(crate) fn line(&mut self, line: CaptureLine) -> Result<(), ImportError> {
        self.requests += u64::from(matches!(line, CaptureLine::Request(_)));
        (self.sink)(line).map_err(|source| ImportError::Write { source })
    }

    pub(crate) fn meta(&mut self, format: Format, meta: CaptureMeta) -> Result<(), ImportError> {
        self.line(CaptureLine::Meta(Box::new(CaptureMeta {
            format: CAPTURE_FORMAT.to_owned(),
            version: CAPTURE_VERSION,
            source: Some(format.name().to_owned()),
            ..meta
        })))
    }

    pub(crate) fn engine(&mut self, engine: EngineRecord) -> Result<(), ImportError> {
        self.line(CaptureLine::Engine(Box::new(engine)))
    }

    pub(crate) fn request(&mut self, mut record: RequestRecord) -> Result<(), ImportError> {
        if !self.keeps_output_text {
            record.other.remove(OUTPUT_TEXT);
        }
        let end_ns = record.arrival_ns.unwrap_or(0).saturating_add(record.end_ns.unwrap_or(0));
        self.last_ns = self.last_ns.max(end_ns);
        self.line(CaptureLine::Request(Box::new(record)))
    }

    /// Writes the last line. Returns the result of the import.
    pub(crate) fn finish(mut self, format: Format, name: &str) -> Result<Imported, ImportError> {
        if self.requests == 0 && format != Format::Capture {
            return Err(ImportError::Empty { name: name.to_owned(), skipped: self.tally.skipped });
        }
        if format != Format::Capture {
            let end = CaptureEnd { at_ns: self.last_ns, requests: self.requests, unfinished: 0, continues: false };
            self.line(CaptureLine::End(end))?;
        }
        let Tally { skipped, first_skipped, notes, .. } = self.tally;
        Ok(Imported { format, requests: self.requests, skipped, first_skipped, broken_off: self.broken_off, notes })
    }
}

/// A request whose arrival was measured on a clock of its source.
pub(crate) struct Timed {
    /// The arrival in nanoseconds on this clock, if known.
    pub(crate) at_ns: Option<i128>,
    pub(crate) record: RequestRecord,
}

/// Sorts requests by arrival, and makes arrivals relative to the earliest one, which is returned. Requests without
/// an arrival come last.
pub(crate) fn since_earliest(requests: &mut [Timed]) -> Option<i128> {
    let earliest = requests.iter().filter_map(|timed| timed.at_ns).min();
    requests.sort_by_key(|timed| (timed.at_ns.is_none(), timed.at_ns));
    for timed in requests {
        // The times of a file span less than 584 years, the maximum of 64 bits.
        let since = timed.at_ns.zip(earliest).map(|(at, earliest)| at - earliest);
        timed.record.arrival_ns = since.map(|since| u64::try_from(since).unwrap_or(u64::MAX));
    }
    earliest
}

/// Refuses requests that no capture reader accepts: an empty prompt, more cached tokens than prompt tokens, or
/// times whose sum overflows.
pub(crate) fn checked(record: RequestRecord) -> Result<RequestRecord, Problem> {
    if record.prompt_tokens == 0 {
        return Err(Problem::new("", "the prompt has no tokens; every request needs at least one"));
    }
    if record.cached_tokens > record.prompt_tokens {
        let text = format!("{} cached tokens in a prompt of {}", record.cached_tokens, record.prompt_tokens);
        return Err(Problem::new("", text));
    }
    let gaps_ns = record.gap_summary.map_or(Some(0), |gaps| gaps.mean_ns.checked_mul(u64::from(gaps.count)));
    let sum = |parts: [Option<u64>; 3]| parts.into_iter().try_fold(0u64, |sum, part| sum.checked_add(part?));
    let arrival_ns = Some(record.arrival_ns.unwrap_or(0));
    let fits = sum([arrival_ns, Some(record.ttft_ns.unwrap_or(0)), gaps_ns]).is_some()
        && sum([arrival_ns, Some(record.end_ns.unwrap_or(0)), Some(0)]).is_some()
        && sum([arrival_ns, Some(record.queue_ns.unwrap_or(0)), Some(0)]).is_some();
    if fits { Ok(record) } else { Err(Problem::new("", "its times add up to more than 584 years; correct them")) }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// The start in nanoseconds on some clock.
    pub(crate) at_ns: i128,
    pub(crate) duration_ns: u64,
}

/// Sets the number of requests in progress at each arrival, including the arriving request. Requests without a span
/// are left unchanged.
pub(crate) fn count_concurrent(requests: &mut [Timed], span: impl Fn(&Timed) -> Option<Span>) {
    let mut spans: Vec<(Span, usize)> =
        requests.iter().enumerate().filter_map(|(index, timed)| Some((span(timed)?, index))).collect();
    spans.sort_by_key(|(span, index)| (span.at_ns, *index));
    let mut ends_ns = BinaryHeap::new();
    for (Span { at_ns, duration_ns }, index) in spans {
        while ends_ns.peek().is_some_and(|Reverse(end_ns)| *end_ns <= at_ns) {
            ends_ns.pop();
        }
        ends_ns.push(Reverse(at_ns + i128::from(duration_ns)));
        requests[index].record.concurrency = u32::try_from(ends_ns.len()).ok();
    }
}

#[cfg(test)]
mod tests {
    use crate::capture::RequestRecord;

    use super::*;

    #[test]
    fn notes_are_whole_sentences() {
        let of = |what: &str| Note { what: what.to_owned(), count: 3 }.sentence();
        assert_eq!(of("values of the column `user`"), "3 values of the column `user` were not used");
        for what in [
            "requests of the warm-up were left out",
            "requests without an arrival, which the file does not have",
            "rows with a warning: it is late",
        ] {
            assert_eq!(of(what), format!("3 {what}"));
        }
    }

    #[test]
    fn requests_under_way_are_counted_at_each_arrival() {
        let spans = [(0, 10), (5, 10), (10, 1), (12, 50), (3, 1)];
        let mut requests: Vec<Timed> = spans
            .iter()
            .map(|(at_ns, end_ns)| Timed {
                at_ns: Some(*at_ns),
                record: RequestRecord { end_ns: Some(*end_ns), ..RequestRecord::default() },
            })
            .collect();
        requests.push(Timed { at_ns: None, record: RequestRecord::default() });
        count_concurrent(&mut requests, |timed| Some(Span { at_ns: timed.at_ns?, duration_ns: timed.record.end_ns? }));
        let counted: Vec<_> = requests.iter().map(|timed| timed.record.concurrency).collect();
        assert_eq!(counted, [Some(1), Some(2), Some(2), Some(2), Some(2), None]);
    }
}
