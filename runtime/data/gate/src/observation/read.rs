use std::io::BufRead;

use vcr_base::input::Lines;

use super::{OBSERVATION_VERSION, Observation};
use crate::error::{GateError, Place, Problem, of_line};

/// Reads observations, one per line.
pub struct ObservationReader<R> {
    lines: Lines<R>,
    name: String,
}

impl<R: BufRead> ObservationReader<R> {
    /// Reads a stream; errors use `name` for it.
    pub fn new(reader: R, name: &str) -> Self {
        Self { lines: Lines::new(reader), name: name.to_owned() }
    }

    /// Returns the next observation and its line number. The observation is checked.
    ///
    /// # Errors
    /// If a line cannot be read, is not an observation, or contradicts itself.
    pub fn next_observation(&mut self) -> Result<Option<(u64, Observation<'_>)>, GateError> {
        let Self { lines, name } = self;
        let row = lines.next_row().map_err(|error| of_line(name, error))?;
        let Some((line, bytes)) = row else { return Ok(None) };
        match parse(bytes) {
            Ok(observation) => Ok(Some((line, observation))),
            Err(problem) => Err(problem.at(name, Place::Line(line)).into()),
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Observation<'_>, Problem> {
    let observation: Observation<'_> = serde_json::from_slice(bytes).map_err(|_| problem_of(bytes))?;
    observation.check()?;
    Ok(observation)
}

fn problem_of(bytes: &[u8]) -> Problem {
    if let Some(version) = other_version(bytes) {
        return Problem::new(
            "observation",
            format!("unknown schema version {version}: expected {OBSERVATION_VERSION}; mirror the source again"),
        );
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let parsed: Result<Observation<'_>, _> = serde_path_to_error::deserialize(&mut deserializer);
    match parsed {
        Err(error) => {
            let path = error.path().to_string();
            let field = if path == "." { "" } else { &path };
            Problem::new(field, without_line(&error.inner().to_string()))
        }
        Ok(_) => Problem::new("", "more than one JSON object; expected one observation a line"),
    }
}

/// The schema version of a line if it differs from [`OBSERVATION_VERSION`]. Reported before other problems, because
/// another version may have other fields.
fn other_version(bytes: &[u8]) -> Option<serde_json::Value> {
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    value.get("observation").filter(|version| version.as_u64() != Some(u64::from(OBSERVATION_VERSION))).cloned()
}

/// Removes the line number from a decoder's message: the decoder sees only one line.
fn without_line(text: &str) -> String {
    text.replace(" at line 1 column ", " at column ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> String {
        let text = format!("\n{line}\n");
        let mut reader = ObservationReader::new(text.as_bytes(), "o.jsonl");
        reader.next_observation().map(|_| ()).expect_err("it is refused").to_string()
    }

    #[test]
    fn observations_are_read_as_they_were_written() {
        let line = br#"{"observation":1,"request_id":"a\n","ok":true,"latency_ns":5,"token_ids":[1,2],"vector":[0.5],"kv_usage":0.25}"#;
        let mut reader = ObservationReader::new(&line[..], "o.jsonl");
        let (number, observation) = reader.next_observation().expect("valid").expect("one");
        assert_eq!((number, &*observation.request_id), (1, "a\n"));
        let mut written = Vec::new();
        observation.write(&mut written).expect("a vector");
        let mut again = ObservationReader::new(&written[..], "o.jsonl");
        assert_eq!(again.next_observation().expect("valid").expect("one").1, observation);
    }

    #[test]
    fn errors_name_file_line_and_field() {
        let base = r#""observation":1,"request_id":"a","ok":true,"text":"x""#;
        for (line, needles) in [
            (format!(r#"{{{base},"latency_ns":-5}}"#), &["`o.jsonl`, line 2, field `latency_ns`", "`-5`"][..]),
            (format!(r#"{{{base},"latency_ns":1,"speed":2}}"#), &["line 2", "unknown field `speed`"]),
            (format!(r#"{{{base},"latency_ns":1,"vector":[1e999]}}"#), &["line 2", "vector", "out of range"]),
            (format!(r#"{{{base},"latency_ns":1,"vector":[NaN]}}"#), &["line 2", "vector"]),
            (format!(r#"{{{base},"latency_ns":1,"event_ns":[2,1]}}"#), &["field `event_ns`", "goes back"]),
            (r#"{"observation":1,"request_id":"a"}"#.to_owned(), &["line 2", "missing field `ok`"]),
            (format!(r#"{{{base},"latency_ns":1}} {{}}"#), &["line 2", "more than one"]),
            (
                r#"{"observation":2,"who":3}"#.to_owned(),
                &["field `observation`", "unknown schema version 2: expected 1"],
            ),
            ("nothing".to_owned(), &["line 2"]),
        ] {
            let error = error(&line);
            assert!(needles.iter().all(|needle| error.contains(needle)), "{line}: {error}");
        }
    }
}
