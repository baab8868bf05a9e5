//! Writes traces for Perfetto and `chrome://tracing`.
//!
//! The format is the JSON trace event format: slices on named tracks, counters, spans of requests, and instants.
//! Times are passed in nanoseconds and written in microseconds, as the format requires.

use std::io::{self, Write};

use serde::Serialize;

/// Writes trace events with separators but without header and footer, so that parts of a trace can be written
/// separately and joined.
#[derive(Debug)]
pub struct PerfettoWriter<W: Write> {
    out: W,
    first: bool,
}

#[derive(Serialize)]
struct TraceEvent<'a, A: Serialize> {
    ph: &'static str,
    pid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<A>,
}

#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
}

struct Pairs<'a, V>(&'a [(&'a str, V)]);

impl<V: Serialize + Copy> Serialize for Pairs<'_, V> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl<W: Write> PerfettoWriter<W> {
    /// The text before the first event of a document.
    pub const HEADER: &'static [u8] = b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    /// The text between the events of two parts.
    pub const SEPARATOR: &'static [u8] = b",\n";
    /// The text after the last event of a document.
    pub const FOOTER: &'static [u8] = b"\n]}\n";

    /// Writes a part of a trace: events without header and footer.
    pub fn continued(out: W) -> Self {
        Self { out, first: true }
    }

    /// Names a group of tracks.
    ///
    /// # Errors
    /// If the writer fails; this is true of all methods here.
    pub fn process_name(&mut self, process: u64, name: &str) -> io::Result<()> {
        self.metadata("process_name", process, None, name)
    }

    /// Names a track.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn thread_name(&mut self, process: u64, thread: u64, name: &str) -> io::Result<()> {
        self.metadata("thread_name", process, Some(thread), name)
    }

    /// Writes a slice on a track.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn slice(
        &mut self,
        process: u64,
        thread: u64,
        name: &str,
        start_ns: u64,
        duration_ns: u64,
        args: &[(&str, u64)],
    ) -> io::Result<()> {
        self.event(&TraceEvent {
            tid: Some(thread),
            ts: Some(micros(start_ns)),
            dur: Some(micros(duration_ns)),
            args: Some(Pairs(args)),
            ..blank("X", process, name)
        })
    }

    /// Writes values of counters from this time on.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn counter(&mut self, process: u64, name: &str, at_ns: u64, values: &[(&str, u64)]) -> io::Result<()> {
        self.event(&TraceEvent { ts: Some(micros(at_ns)), args: Some(Pairs(values)), ..blank("C", process, name) })
    }

    /// Writes the value of a counter from this time on. The value may be a fraction.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn gauge(&mut self, process: u64, name: &str, at_ns: u64, value: f64) -> io::Result<()> {
        let values = Pairs(&[("value", value)]);
        self.event(&TraceEvent { ts: Some(micros(at_ns)), args: Some(values), ..blank("C", process, name) })
    }

    /// Writes a span that is not on a track, from the first to the second time. Spans with the same `id` and
    /// `category` share a row.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn span(
        &mut self,
        process: u64,
        id: u64,
        category: &str,
        name: &str,
        (start_ns, end_ns): (u64, u64),
        args: &[(&str, u64)],
    ) -> io::Result<()> {
        let told = (!args.is_empty()).then_some(Pairs(args));
        for (phase, at_ns, args) in [("b", start_ns, told), ("e", end_ns, None)] {
            self.event(&TraceEvent {
                tid: Some(1),
                ts: Some(micros(at_ns)),
                cat: Some(category),
                id: Some(id),
                args,
                ..blank(phase, process, name)
            })?;
        }
        Ok(())
    }

    /// Writes an instant event on a track.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn instant(&mut self, process: u64, thread: u64, name: &str, at_ns: u64) -> io::Result<()> {
        self.event(&TraceEvent {
            tid: Some(thread),
            ts: Some(micros(at_ns)),
            s: Some("t"),
            ..blank::<()>("i", process, name)
        })
    }

    /// Writes the text after the last event, and flushes the underlying writer.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn end_document(&mut self) -> io::Result<()> {
        self.out.write_all(Self::FOOTER)?;
        self.out.flush()
    }

    /// Flushes the underlying writer.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn metadata(&mut self, kind: &str, process: u64, tid: Option<u64>, name: &str) -> io::Result<()> {
        self.event(&TraceEvent { tid, args: Some(Name { name }), ..blank("M", process, kind) })
    }

    fn event<A: Serialize>(&mut self, event: &TraceEvent<'_, A>) -> io::Result<()> {
        if !std::mem::take(&mut self.first) {
            self.out.write_all(Self::SEPARATOR)?;
        }
        serde_json::to_writer(&mut self.out, event)?;
        Ok(())
    }
}

fn blank<'a, A: Serialize>(ph: &'static str, pid: u64, name: &'a str) -> TraceEvent<'a, A> {
    TraceEvent { ph, pid, tid: None, ts: None, dur: None, cat: None, id: None, name, s: None, args: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_join_into_one_document() {
        let part = |process| {
            let mut bytes = Vec::new();
            let mut writer = PerfettoWriter::continued(&mut bytes);
            writer.process_name(process, "a \"quoted\" name").unwrap();
            writer.slice(process, 1, "decode", 1_500, 2_000, &[("tokens", 3)]).unwrap();
            writer.counter(process, "engine", 0, &[("running", 1), ("waiting", 0)]).unwrap();
            writer.span(process, 7, "chat", "queue", (0, 10), &[("tokens", 3)]).unwrap();
            writer.instant(process, 1, "crash", 5).unwrap();
            bytes
        };
        let document = [
            PerfettoWriter::<Vec<u8>>::HEADER,
            &part(1),
            PerfettoWriter::<Vec<u8>>::SEPARATOR,
            &part(2),
            PerfettoWriter::<Vec<u8>>::FOOTER,
        ]
        .concat();
        let parsed: serde_json::Value = serde_json::from_slice(&document).unwrap();
        let events = parsed["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 12);
        assert_eq!(events[1]["ts"], 1.5);
        assert_eq!(events[1]["args"]["tokens"], 3);
    }
}
