//! Server-sent events in the parts of a body.

use super::decode::Part;

/// An event and the time at which it was complete.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) at_ns: u64,
    /// All bytes, including the empty line after the event.
    pub(super) raw: Vec<u8>,
}

impl Event {
    /// The data lines, joined by newlines.
    pub(super) fn data(&self) -> String {
        let text = String::from_utf8_lossy(&self.raw);
        let lines = text.lines().filter_map(|line| line.strip_prefix("data:"));
        lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
    }

    /// Replaces the event's data with `data`, which must be one line.
    pub(super) fn with_data(&self, data: &str) -> Vec<u8> {
        let text = String::from_utf8_lossy(&self.raw);
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.is_empty() && !line.starts_with("data:")).collect();
        let data = format!("data: {data}");
        lines.push(&data);
        (lines.join("\n") + "\n\n").into_bytes()
    }
}

/// Splits a body into events. The last event may be incomplete.
pub(super) fn events(parts: &[Part]) -> Vec<Event> {
    let mut all = Vec::new();
    let mut raw = Vec::new();
    let mut line_start = 0;
    let mut last_ns = 0;
    for (at_ns, bytes) in parts {
        last_ns = *at_ns;
        for byte in bytes {
            raw.push(*byte);
            if *byte != b'\n' {
                continue;
            }
            let is_empty = matches!(&raw[line_start..], b"\n" | b"\r\n");
            line_start = raw.len();
            if is_empty {
                all.push(Event { at_ns: last_ns, raw: std::mem::take(&mut raw) });
                line_start = 0;
            }
        }
    }
    if !raw.is_empty() {
        all.push(Event { at_ns: last_ns, raw });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_time_of_the_part_that_completed_them() {
        let parts = [
            (1, b"event: a\r\ndata: 1\r\n".to_vec()),
            (2, b"\r\ndata:2\ndata: 3\n\ndata: [DO".to_vec()),
            (3, b"NE]\n\n".to_vec()),
            (4, b"data: cut".to_vec()),
        ];
        let found: Vec<_> = events(&parts).iter().map(|event| (event.at_ns, event.data())).collect();
        let expected = [(2, "1"), (2, "2\n3"), (3, "[DONE]"), (4, "cut")];
        assert_eq!(found, expected.map(|(at_ns, data)| (at_ns, data.to_owned())));
        assert_eq!(events(&parts)[0].with_data("x"), b"event: a\ndata: x\n\n");
    }
}
