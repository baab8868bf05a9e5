//! Fields of JSON objects as parts of an observation: labels, times with units and numbers.

use serde_json::{Map, Value};

use crate::error::Problem;
use crate::observation::{Observation, Text};

/// Nanoseconds per unit of time, by the ending of a field's name.
pub(super) const UNITS: [(&str, f64); 4] = [("_ns", 1.0), ("_us", 1e3), ("_ms", 1e6), ("_s", 1e9)];
/// Maximum time: 31 years. No request lasts longer.
const MAX_NS: f64 = 1e18;

pub(super) fn label<'o, 'a>(observation: &'o mut Observation<'a>, name: &str) -> Option<&'o mut Option<Text<'a>>> {
    Some(match name {
        "model" => &mut observation.model,
        "model_version" => &mut observation.model_version,
        "backend" => &mut observation.backend,
        "backend_version" => &mut observation.backend_version,
        "accelerator" => &mut observation.accelerator,
        "tenant" => &mut observation.tenant,
        "route" => &mut observation.route,
        "replica" => &mut observation.replica,
        "scheduler" => &mut observation.scheduler,
        "content" => &mut observation.content,
        "provenance" => &mut observation.provenance,
        _ => return None,
    })
}

const LABELS: [&str; 11] = [
    "model",
    "model_version",
    "backend",
    "backend_version",
    "accelerator",
    "tenant",
    "route",
    "replica",
    "scheduler",
    "content",
    "provenance",
];

pub(super) fn set_labels(observation: &mut Observation<'_>, row: &Map<String, Value>) -> Result<(), Problem> {
    for name in LABELS {
        if let Some(text) = optional_text(row, name)?
            && let Some(field) = label(observation, name)
        {
            *field = Some(text.into());
        }
    }
    observation.queue_depth = match known(row, "queue_depth") {
        None => None,
        Some(value) => Some(whole("queue_depth", value)?),
    };
    observation.kv_usage = number(row, "kv_usage")?;
    Ok(())
}

/// The field's value; None if the value is null or an empty cell.
pub(super) fn known<'a>(row: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    row.get(field).filter(|value| !value.is_null() && value.as_str() != Some(""))
}

/// Reads a text. A number becomes the text of its digits.
pub(super) fn optional_text(row: &Map<String, Value>, field: &str) -> Result<Option<String>, Problem> {
    match known(row, field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(other) => Err(Problem::new(field, format!("invalid text {other}: expected a string"))),
    }
}

pub(super) fn of_number(field: &str, value: &Value) -> Result<f64, Problem> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    let number = number.filter(|number| number.is_finite());
    number.ok_or_else(|| Problem::new(field, format!("invalid number {value}: expected a finite one")))
}

pub(super) fn number(row: &Map<String, Value>, field: &str) -> Result<Option<f64>, Problem> {
    known(row, field).map(|value| of_number(field, value)).transpose()
}

pub(super) fn whole(field: &str, value: &Value) -> Result<u32, Problem> {
    let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
    let number = number.and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| {
        Problem::new(field, format!("invalid number {value}: expected a whole number from 0 to {}", u32::MAX))
    })
}

pub(super) fn ns(field: &str, value: f64, ns_per_unit: f64) -> Result<u64, Problem> {
    let ns = (value * ns_per_unit).round();
    if ns.is_finite() && (0.0..MAX_NS).contains(&ns) {
        return Ok(ns as u64);
    }
    Err(Problem::new(field, format!("invalid time {value}: expected 0 to 31 years")))
}

/// Reads a time whose field name ends in the unit, such as `latency_ms`.
pub(super) fn time(row: &Map<String, Value>, stem: &str) -> Result<Option<u64>, Problem> {
    let mut found = None;
    for (ending, ns_per_unit) in UNITS {
        let field = format!("{stem}{ending}");
        let Some(value) = known(row, &field) else { continue };
        let time = ns(&field, of_number(&field, value)?, ns_per_unit)?;
        if found.replace(time).is_some() {
            return Err(Problem::new(&field, "the same time is given in another unit, too; keep one"));
        }
    }
    Ok(found)
}

pub(super) fn needed_time(row: &Map<String, Value>, stem: &str) -> Result<u64, Problem> {
    time(row, stem)?.ok_or_else(|| {
        Problem::new(&format!("{stem}_ms"), format!("the time is missing: expected {stem}_ns, _us, _ms or _s"))
    })
}

pub(super) fn needed_text(row: &Map<String, Value>, field: &str) -> Result<String, Problem> {
    optional_text(row, field)?.ok_or_else(|| Problem::new(field, "the field is missing"))
}

/// The class of an error: its type or code, or else its message.
pub(super) fn error_class(error: &Value) -> String {
    let text = |value: &Value| match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let keys = ["type", "code", "message"];
    text(error).or_else(|| keys.iter().find_map(|key| text(error.get(key)?))).unwrap_or_else(|| "error".to_owned())
}

pub(super) fn object(line: &[u8]) -> Result<Map<String, Value>, Problem> {
    serde_json::from_slice(line).map_err(|error| {
        Problem::new("", format!("invalid JSON: {}", error.to_string().replace(" at line 1 column ", " at column ")))
    })
}
