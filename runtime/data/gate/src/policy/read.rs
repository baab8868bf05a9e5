//! Reads policy files, and writes a complete policy file.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Deserialize;
use toml::Value;

use super::{POLICY_VERSION, Policy, SEGMENT_LABELS, SIGNALS, SignalInfo, Tolerance};
use crate::policy::signal::Unit;

const MAX_RESAMPLES: u32 = 100_000;
/// Maximum number of times that a gate judges one release.
const MAX_LOOKS: u32 = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    policy: u32,
    name: Option<String>,
    #[serde(default)]
    limits: BTreeMap<String, Value>,
    #[serde(default)]
    required: BTreeMap<String, Value>,
    #[serde(default)]
    segments: Segments,
    #[serde(default)]
    statistics: Statistics,
    #[serde(default)]
    tolerance: Vec<ToleranceTable>,
    #[serde(default)]
    owners: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Segments {
    by: Option<Vec<String>>,
    min_matched: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Statistics {
    alpha: Option<f64>,
    resamples: Option<u32>,
    looks: Option<u32>,
    seed: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToleranceTable {
    model: Option<String>,
    backend: Option<String>,
    accelerator: Option<String>,
    #[serde(default)]
    absolute: f64,
    #[serde(default)]
    relative: f64,
}

pub(super) fn checked_alpha(alpha: f64) -> Result<f64, String> {
    if alpha > 0.0 && alpha <= 0.5 {
        return Ok(alpha);
    }
    Err(format!("invalid alpha {alpha}: expected more than 0 and at most 0.5"))
}

impl Policy {
    /// Reads the text of a policy file. Errors use `file` as its name.
    ///
    /// # Errors
    /// If the text is not a policy, or a limit can never hold.
    pub fn parse(text: &str, file: &str) -> Result<Self, String> {
        let parsed: File = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let place = line.map_or(String::new(), |line| format!(", line {line}"));
            format!("`{file}`{place}: {}", error.message())
        })?;
        let at = |key: &str, problem: &str| format!("`{file}`, field `{key}`: {problem}");
        let mut policy = Self::default();
        if parsed.policy != POLICY_VERSION {
            return Err(at("policy", &format!("unknown version {}: expected {POLICY_VERSION}", parsed.policy)));
        }
        policy.name = parsed.name.unwrap_or_else(|| file.to_owned());
        for (table, values) in [("limits", &parsed.limits), ("required", &parsed.required)] {
            for (key, value) in values {
                let place = format!("{table}.{key}");
                let info = signal(table, key).map_err(|problem| at(&place, &problem))?;
                policy.limits[info.signal as usize] = limit(info, value).map_err(|problem| at(&place, &problem))?;
            }
        }
        for (key, owner) in parsed.owners {
            let place = format!("owners.{key}");
            let info =
                SIGNALS.iter().find(|info| info.name == key).ok_or_else(|| at(&place, &unknown(&key, &|_| true)))?;
            policy.owners[info.signal as usize] = owner;
        }
        policy.set_segments(parsed.segments).map_err(|(key, problem)| at(key, &problem))?;
        policy.set_statistics(&parsed.statistics).map_err(|(key, problem)| at(key, &problem))?;
        for (index, table) in parsed.tolerance.into_iter().enumerate() {
            let tolerance = tolerance(table).map_err(|problem| at(&format!("tolerance[{index}]"), &problem))?;
            policy.tolerances.push(tolerance);
        }
        Ok(policy)
    }

    fn set_segments(&mut self, segments: Segments) -> Result<(), (&'static str, String)> {
        if let Some(by) = segments.by {
            if let Some(label) = by.iter().find(|label| !SEGMENT_LABELS.contains(&label.as_str())) {
                let known = SEGMENT_LABELS.join(", ");
                return Err(("segments.by", format!("unknown label `{label}`: expected {known}")));
            }
            self.segment_by = SEGMENT_LABELS.into_iter().filter(|label| by.iter().any(|own| own == label)).collect();
        }
        match segments.min_matched {
            Some(0) => return Err(("segments.min_matched", "invalid number 0: expected at least 1".to_owned())),
            Some(min) => self.min_segment = min,
            None => {}
        }
        Ok(())
    }

    fn set_statistics(&mut self, statistics: &Statistics) -> Result<(), (&'static str, String)> {
        if let Some(alpha) = statistics.alpha {
            self.alpha = checked_alpha(alpha).map_err(|problem| ("statistics.alpha", problem))?;
        }
        let in_range = |key, value: u32, low: u32, high: u32| match value {
            value if (low..=high).contains(&value) => Ok(value),
            value => Err((key, format!("invalid number {value}: expected {low} to {high}"))),
        };
        if let Some(resamples) = statistics.resamples {
            self.resamples = in_range("statistics.resamples", resamples, 100, MAX_RESAMPLES)?;
        }
        if let Some(looks) = statistics.looks {
            self.looks = in_range("statistics.looks", looks, 1, MAX_LOOKS)?;
        }
        self.seed = statistics.seed.unwrap_or(self.seed);
        Ok(())
    }

    /// Writes the policy as a file that names every key and gives the reason of each limit.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = format!("policy = {POLICY_VERSION}\n");
        for table in ["limits", "required"] {
            let _ = write!(text, "\n[{table}]\n");
            for info in SIGNALS.iter().filter(|info| info.table() == table) {
                let limit = self.limit(info.signal).map_or_else(|| "false".to_owned(), |limit| format!("{limit:?}"));
                let _ = write!(text, "# {}\n{} = {limit}\n", info.reason, info.name);
            }
        }
        let by: Vec<String> = self.segment_by.iter().map(|label| format!("\"{label}\"")).collect();
        let _ = write!(
            text,
            "\n[segments]\nby = [{}]\n# smaller ones are judged with all others only\nmin_matched = {}\n",
            by.join(", "),
            self.min_segment
        );
        let _ = write!(
            text,
            "\n[statistics]\n# chance of a hold or a rollback by noise alone, over all tests of all looks\nalpha = {:?}\n\
             resamples = {}\n# times that the gate is asked during one release\nlooks = {}\nseed = {}\n\n[owners]\n",
            self.alpha, self.resamples, self.looks, self.seed
        );
        for info in &SIGNALS {
            let _ = writeln!(text, "{} = {}", info.name, serde_json::Value::from(self.owner(info.signal)));
        }
        text
    }
}

fn signal(table: &str, key: &str) -> Result<&'static SignalInfo, String> {
    let is_of_table = |info: &SignalInfo| info.table() == table;
    let found = SIGNALS.iter().find(|info| info.name == key && is_of_table(info));
    found.ok_or_else(|| unknown(key, &is_of_table))
}

fn unknown(key: &str, is_known: &dyn Fn(&SignalInfo) -> bool) -> String {
    let known: Vec<&str> = SIGNALS.iter().filter(|info| is_known(info)).map(|info| info.name).collect();
    format!("unknown signal `{key}`: expected {}", known.join(", "))
}

/// Reads a limit. A value must be able to keep the limit and to exceed it.
fn limit(info: &SignalInfo, value: &Value) -> Result<Option<f64>, String> {
    let number = match value {
        Value::Boolean(false) => return Ok(None),
        Value::Float(number) => *number,
        Value::Integer(number) => *number as f64,
        _ => return Err("invalid limit: expected a number, or false for none".to_owned()),
    };
    let refused = |text: &str| Err(format!("invalid limit {number}: expected {text}"));
    match info.unit {
        Unit::Share if !(0.0..=1.0).contains(&number) => refused("a share from 0 to 1, or false for none"),
        Unit::Change if !(0.0..1e9).contains(&number) => refused("an increase of at least 0, or false for none"),
        Unit::Requests if number < 1.0 || number.fract() != 0.0 || number > 1e9 => {
            refused("a whole number from 1 to 1000000000")
        }
        _ => Ok(Some(number)),
    }
}

fn tolerance(table: ToleranceTable) -> Result<Tolerance, String> {
    let ToleranceTable { model, backend, accelerator, absolute, relative } = table;
    for (key, value) in [("absolute", absolute), ("relative", relative)] {
        if !value.is_finite() || value < 0.0 {
            return Err(format!("invalid {key} {value}: expected a finite number of at least 0"));
        }
    }
    Ok(Tolerance { model, backend, accelerator, absolute, relative })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Signal;

    #[test]
    fn a_complete_policy_is_the_default() {
        let policy = Policy::default();
        let read = Policy::parse(&policy.to_toml(), "default").expect("it is valid");
        assert_eq!(read, policy);
    }

    #[test]
    fn what_is_named_changes() {
        let text = "policy = 1\nname = \"n\"\n[limits]\nttft_p95 = 0.2\noutput_mismatch = false\n[required]\nroute = 1\n\
                    matched = 10\n[segments]\nby = [\"tenant\", \"model\"]\nmin_matched = 5\n[statistics]\nalpha = 0.01\n\
                    looks = 5\n[[tolerance]]\nbackend = \"vllm\"\nabsolute = 1e-3\n[owners]\nttft_p95 = \"me\"\n";
        let policy = Policy::parse(text, "p.toml").expect("it is valid");
        assert_eq!(policy.limit(Signal::TtftP95), Some(0.2));
        assert_eq!(policy.limit(Signal::OutputMismatch), None);
        assert_eq!((policy.limit(Signal::Route), policy.limit(Signal::Matched)), (Some(1.0), Some(10.0)));
        assert_eq!((policy.owner(Signal::TtftP95), policy.segment_by.as_slice()), ("me", &["model", "tenant"][..]));
        assert_eq!((policy.looks, policy.alpha, policy.min_segment, policy.name.as_str()), (5, 0.01, 5, "n"));
        assert!(policy.tolerance(Some("m"), Some("vllm"), None).is_some());
        assert!(policy.tolerance(Some("m"), Some("sglang"), None).is_none());
        let alpha = Policy::default().with_alpha(0.2).map(|policy| policy.alpha());
        assert_eq!(alpha, Ok(0.2));
    }

    #[test]
    fn policies_that_make_no_sense_are_refused() {
        for (text, needles) in [
            ("", &["missing field `policy`"][..]),
            ("policy = 2", &["field `policy`", "unknown version 2: expected 1"]),
            ("policy = 1\nlimit = 3", &["line 2", "unknown field `limit`"]),
            ("policy = 1\n[limits]\nttft_p96 = 1", &["field `limits.ttft_p96`", "unknown signal", "ttft_p95"]),
            ("policy = 1\n[limits]\nroute = 1", &["field `limits.route`", "unknown signal"]),
            ("policy = 1\n[limits]\nttft_p95 = -0.1", &["invalid limit -0.1: expected an increase"]),
            ("policy = 1\n[limits]\nttft_p95 = nan", &["invalid limit NaN"]),
            ("policy = 1\n[limits]\nttft_p95 = inf", &["invalid limit inf"]),
            ("policy = 1\n[limits]\noutput_mismatch = 1.5", &["expected a share from 0 to 1"]),
            ("policy = 1\n[limits]\noutput_mismatch = true", &["expected a number, or false"]),
            ("policy = 1\n[required]\nstream = 1.01", &["field `required.stream`", "expected a share"]),
            ("policy = 1\n[required]\nmatched = 0", &["whole number from 1"]),
            ("policy = 1\n[required]\nmatched = 1.5", &["whole number from 1"]),
            ("policy = 1\n[segments]\nby = [\"colour\"]", &["field `segments.by`", "unknown label `colour`"]),
            ("policy = 1\n[segments]\nmin_matched = 0", &["segments.min_matched"]),
            ("policy = 1\n[statistics]\nalpha = 0", &["statistics.alpha", "more than 0"]),
            ("policy = 1\n[statistics]\nalpha = 0.6", &["statistics.alpha"]),
            ("policy = 1\n[statistics]\nresamples = 10", &["statistics.resamples", "expected 100 to"]),
            ("policy = 1\n[statistics]\nlooks = 0", &["statistics.looks"]),
            ("policy = 1\n[[tolerance]]\nabsolute = -1", &["tolerance[0]", "invalid absolute -1"]),
            ("policy = 1\n[[tolerance]]\nabsolut = 1", &["line 3", "unknown field `absolut`"]),
            ("policy = 1\n[owners]\nnobody = \"x\"", &["owners.nobody", "unknown signal `nobody`"]),
            ("policy = ", &["line 1"]),
        ] {
            let error = Policy::parse(text, "p.toml").expect_err(text);
            assert!(error.starts_with("`p.toml`"), "{error}");
            assert!(needles.iter().all(|needle| error.contains(needle)), "{text}: {error}");
        }
        assert!(Policy::default().with_alpha(0.0).is_err());
    }
}
