//! Reads tables with a row for each request: CSV with a header, or one JSON object per line.
//!
//! Columns have standard names, or names that an option maps to standard names. The standard name of a time ends in
//! its unit. Lists in CSV are JSON arrays, or numbers separated by spaces. Other columns are ignored.

use std::io::BufRead;
use std::ops::ControlFlow;

use serde_json::{Map, Number, Value};

use super::fields::{UNITS, known, needed_text, needed_time, ns, object, of_number, optional_text, set_labels, time};
use super::{Out, each_line, peek_first};
use crate::error::{GateError, Place, Problem};
use crate::observation::Observation;

const PLAIN: [&str; 21] = [
    "request_id",
    "content",
    "ok",
    "status",
    "error",
    "event_tokens",
    "output_tokens",
    "token_ids",
    "text",
    "fingerprint",
    "vector",
    "model",
    "model_version",
    "backend",
    "backend_version",
    "accelerator",
    "tenant",
    "route",
    "replica",
    "scheduler",
    "provenance",
];
const NUMBERS: [&str; 2] = ["queue_depth", "kv_usage"];
const TIMES: [&str; 5] = ["latency", "ttft", "mean_gap", "gap", "event"];

/// Whether this is a standard name, to which a table's column can be mapped.
#[must_use]
pub fn is_column(name: &str) -> bool {
    let is_unit = |ending: &str| UNITS.iter().any(|(unit, _)| *unit == ending);
    let is_time = |stem: &str| name.strip_prefix(stem).is_some_and(is_unit);
    PLAIN.contains(&name) || NUMBERS.contains(&name) || TIMES.iter().any(|stem| is_time(stem))
}

/// The standard names of columns, for messages.
#[must_use]
pub fn columns() -> String {
    let times = TIMES.map(|stem| format!("{stem}_ms (or _ns, _us, _s)"));
    [&PLAIN.map(str::to_owned)[..], &NUMBERS.map(str::to_owned), &times].concat().join(", ")
}

/// Whether the rows of a table with this start have request ids. A capture would lose these ids.
pub(super) fn has_ids(start: &[u8]) -> bool {
    const ID: &str = "request_id";
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    let row = text.split(|byte| *byte == b'\n').next().unwrap_or(text);
    match serde_json::from_slice::<Map<String, Value>>(row) {
        Ok(row) => row.contains_key(ID),
        Err(_) => String::from_utf8_lossy(row).split(',').any(|column| column.trim().trim_matches('"') == ID),
    }
}

pub(super) fn read(reader: impl BufRead, out: &mut Out<'_, '_>) -> Result<(), GateError> {
    let name = out.name.clone();
    let (first, reader) = peek_first(reader, &name)?;
    let Some(first) = first else { return Ok(()) };
    if first != b'{' {
        return read_csv(reader, out);
    }
    each_line(reader, &name, |line, bytes| match object(bytes) {
        Ok(row) => add(row, Place::Line(line), out),
        Err(problem) => Err(out.problem(problem, Place::Line(line))),
    })
}

fn read_csv(reader: impl BufRead, out: &mut Out<'_, '_>) -> Result<(), GateError> {
    let mut table = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(reader);
    let failed =
        |error: csv::Error, row: u64, name: &str| Problem::new("", error.to_string()).at(name, Place::Row(row));
    let header: Vec<String> = match table.headers() {
        Ok(header) => header.iter().map(|column| column.trim_start_matches('\u{feff}').to_owned()).collect(),
        Err(error) => return Err(failed(error, 0, &out.name).into()),
    };
    for (index, record) in table.records().enumerate() {
        let number = index as u64 + 1;
        let record = record.map_err(|error| failed(error, number, &out.name))?;
        let cells = header.iter().cloned().zip(record.iter().map(|cell| Value::String(cell.to_owned())));
        if add(cells.collect(), Place::Row(number), out)?.is_break() {
            break;
        }
    }
    Ok(())
}

fn add(mut row: Map<String, Value>, place: Place, out: &mut Out<'_, '_>) -> Result<ControlFlow<()>, GateError> {
    for (standard, own) in &out.options.columns {
        if let Some(value) = row.remove(own) {
            row.insert(standard.clone(), value);
        }
    }
    let tokens = known(&row, "output_tokens").map(|value| of_number("output_tokens", value)).transpose();
    let observed = tokens.and_then(|tokens| Ok((observation(&row)?, tokens)));
    let (observation, tokens) = observed.map_err(|problem| out.problem(problem, place))?;
    out.add(observation, tokens.map(|tokens| tokens as u64), place)
}

fn observation(row: &Map<String, Value>) -> Result<Observation<'static>, Problem> {
    let error = optional_text(row, "error")?;
    let ok = match known(row, "ok") {
        None => status_is_ok(row)? && error.is_none(),
        Some(value) => is_true(value)?,
    };
    let status = optional_text(row, "status")?.filter(|_| !ok && error.is_none());
    let mut observation = Observation {
        request_id: needed_text(row, "request_id")?.into(),
        ok,
        error: error.or(status).map(Into::into),
        latency_ns: Some(needed_time(row, "latency")?),
        ttft_ns: time(row, "ttft")?,
        mean_gap_ns: time(row, "mean_gap")?,
        gap_ns: times(row, "gap")?,
        event_ns: times(row, "event")?,
        event_tokens: list(row, "event_tokens")?.map(|all| ids("event_tokens", &all)).transpose()?,
        token_ids: list(row, "token_ids")?.map(|all| ids("token_ids", &all)).transpose()?,
        vector: list(row, "vector")?,
        text: text(row, "text")?.map(Into::into),
        fingerprint: optional_text(row, "fingerprint")?.map(Into::into),
        ..Observation::default()
    };
    set_labels(&mut observation, row)?;
    Ok(observation)
}

/// Reads a text. An empty JSON string is a text; an empty CSV cell is none.
fn text(row: &Map<String, Value>, field: &str) -> Result<Option<String>, Problem> {
    let is_cell = row.get("request_id").is_some_and(Value::is_string) && row.values().all(Value::is_string);
    if row.get(field).is_some_and(|value| value == "") && !is_cell {
        return Ok(Some(String::new()));
    }
    optional_text(row, field)
}

fn status_is_ok(row: &Map<String, Value>) -> Result<bool, Problem> {
    let Some(status) = optional_text(row, "status")? else { return Ok(true) };
    match (status.parse::<u32>(), status.as_str()) {
        (Ok(code), _) => Ok(code < 400),
        (Err(_), "ok" | "success" | "completed") => Ok(true),
        (Err(_), _) => Ok(false),
    }
}

fn is_true(value: &Value) -> Result<bool, Problem> {
    match value {
        Value::Bool(is_true) => Ok(*is_true),
        Value::String(text) if ["true", "1", "yes"].contains(&text.to_lowercase().as_str()) => Ok(true),
        Value::String(text) if ["false", "0", "no"].contains(&text.to_lowercase().as_str()) => Ok(false),
        Value::Number(number) if number.as_u64().is_some_and(|number| number < 2) => Ok(number == &Number::from(1)),
        other => Err(Problem::new("ok", format!("invalid value {other}: expected true or false"))),
    }
}

/// Reads a list of numbers: an array, the text of an array, or a text of numbers separated by spaces.
fn list(row: &Map<String, Value>, field: &str) -> Result<Option<Vec<f64>>, Problem> {
    let invalid = || Problem::new(field, "invalid list: expected an array of numbers, or numbers between spaces");
    let of_all = |all: &[Value]| all.iter().map(|value| of_number(field, value)).collect::<Result<Vec<f64>, _>>();
    match known(row, field) {
        None => Ok(None),
        Some(Value::Array(all)) => of_all(all).map(Some),
        Some(Value::String(text)) if text.starts_with('[') => {
            let all: Vec<Value> = serde_json::from_str(text).map_err(|_| invalid())?;
            of_all(&all).map(Some)
        }
        Some(Value::String(text)) => {
            let all: Vec<Value> = text.split_whitespace().map(|word| Value::String(word.to_owned())).collect();
            of_all(&all).map(Some)
        }
        Some(Value::Number(number)) => Ok(Some(vec![of_number(field, &Value::Number(number.clone()))?])),
        Some(_) => Err(invalid()),
    }
}

fn ids(field: &str, all: &[f64]) -> Result<Vec<u32>, Problem> {
    let whole = |value: &f64| {
        let is_id = value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(value);
        is_id.then_some(*value as u32)
    };
    let ids: Option<Vec<u32>> = all.iter().map(whole).collect();
    ids.ok_or_else(|| Problem::new(field, format!("invalid number: expected whole numbers from 0 to {}", u32::MAX)))
}

/// Reads a list of times whose column name ends in the unit.
fn times(row: &Map<String, Value>, stem: &str) -> Result<Option<Vec<u64>>, Problem> {
    for (ending, ns_per_unit) in UNITS {
        let field = format!("{stem}{ending}");
        if let Some(all) = list(row, &field)? {
            return all.iter().map(|value| ns(&field, *value, ns_per_unit)).collect::<Result<_, _>>().map(Some);
        }
    }
    Ok(None)
}
