//! Autoscaling during a replay, in place of Dynamo's planner.

use serde_json::{Map, Value};
use vcr_cluster::{TargetMetric, TargetPolicy};

use crate::keys::{Keys, parse};
use crate::problem::{DynamoError, Findings};

/// The policy of an autoscaler.
#[derive(Clone, Debug, PartialEq)]
pub enum AutoscalePolicy {
    /// A built-in policy.
    Target(TargetPolicy),
    Guest {
        /// Path or reference of the guest.
        reference: String,
        config: Map<String, Value>,
    },
}

/// A checked configuration of an autoscaler.
#[derive(Clone, Debug, PartialEq)]
pub struct AutoscaleArgs {
    /// The autoscaling policy.
    pub policy: AutoscalePolicy,
    /// Nanoseconds between two decisions.
    pub interval_ns: u64,
    /// Minimum number of workers of each pool.
    pub min_workers: u32,
    /// Maximum number of workers of each pool.
    pub max_workers: u32,
}

impl AutoscaleArgs {
    /// Reads the JSON text `text`. `place` names its origin in errors. `is_guest` returns whether a policy's name
    /// refers to a guest.
    pub fn read(place: &str, text: &str, is_guest: impl Fn(&str) -> bool) -> Result<Self, DynamoError> {
        let mut findings = Findings::default();
        let map = parse(place, text, &mut findings);
        if !findings.problems.is_empty() {
            return Err(DynamoError(findings.problems));
        }
        let mut keys = Keys::new(place, "", map, &mut findings);
        let policy = match keys.guest("policy", is_guest) {
            Some(reference) => guest(reference, &mut keys),
            None => target(&mut keys),
        };
        let interval_s = keys.between("interval_s", 0.001, 1e9);
        let max_workers = keys.count("max");
        let min_workers = keys.count("min").unwrap_or(1);
        for (key, is_given) in [("interval_s", interval_s.is_some()), ("max", max_workers.is_some())] {
            if !is_given && !keys.has_problem(key) {
                keys.problem(key, "is required");
            }
        }
        keys.finish(|_| None);
        let args = Self {
            policy,
            interval_ns: (interval_s.unwrap_or(1.0) * 1e9).round() as u64,
            min_workers,
            max_workers: max_workers.unwrap_or(min_workers),
        };
        findings.finish(true, args).map(|(args, _)| args)
    }
}

/// Reads a guest, whose settings are in its own configuration.
fn guest(reference: String, keys: &mut Keys<'_>) -> AutoscalePolicy {
    let config = keys.object("config").unwrap_or_default();
    for key in ["target", "scale_down_delay_ticks"] {
        if keys.value(key).is_some() {
            keys.problem(key, "is for a built-in policy; a guest takes it in its `config`");
        }
    }
    AutoscalePolicy::Guest { reference, config }
}

/// Reads a built-in policy.
fn target(keys: &mut Keys<'_>) -> AutoscalePolicy {
    let names = TargetMetric::ALL.map(|metric| (metric.name(), metric));
    let guests = ", or a guest: the path of a .wasm file, or an oci:// reference";
    let metric = keys.choice_or("policy", &names, guests);
    let target = keys.at_least("target", 0.0);
    let scale_down_delay_ticks = keys.whole("scale_down_delay_ticks").unwrap_or(0);
    if keys.value("config").is_some() {
        keys.problem("config", "is for a guest; this policy has a `target`");
    }
    for (key, is_given) in [("policy", metric.is_some()), ("target", target.is_some())] {
        if !is_given && !keys.has_problem(key) {
            keys.problem(key, "is required");
        }
    }
    let policy = TargetPolicy {
        metric: metric.unwrap_or(TargetMetric::Requests),
        target: target.unwrap_or(1.0),
        scale_down_delay_ticks: u32::try_from(scale_down_delay_ticks).unwrap_or(u32::MAX),
    };
    if let Err((key, text)) = policy.check() {
        keys.problem(key, text);
    }
    AutoscalePolicy::Target(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AutoscaleArgs, DynamoError> {
        AutoscaleArgs::read("--autoscale", text, |word| word.ends_with(".wasm"))
    }

    #[test]
    fn a_whole_configuration_is_read() {
        let text = r#"{"policy": "target_prefill_tokens", "target": 8192, "interval_s": 0.5, "min": 2, "max": 16,
            "scale_down_delay_ticks": 3}"#;
        let policy = TargetPolicy { metric: TargetMetric::PrefillTokens, target: 8192.0, scale_down_delay_ticks: 3 };
        let policy = AutoscalePolicy::Target(policy);
        let expected = AutoscaleArgs { policy, interval_ns: 500_000_000, min_workers: 2, max_workers: 16 };
        assert_eq!(read(text), Ok(expected));
    }

    #[test]
    fn a_guest_has_a_configuration_of_its_own() {
        let text = r#"{"policy": "mine.wasm", "config": {"target": 3}, "interval_s": 1, "max": 4}"#;
        let config = serde_json::json!({"target": 3}).as_object().cloned().expect("an object");
        let policy = AutoscalePolicy::Guest { reference: "mine.wasm".to_owned(), config };
        assert_eq!(read(text).map(|args| args.policy), Ok(policy));
        let text = r#"{"policy": "mine.wasm", "target": 3, "interval_s": 1, "max": 4}"#;
        let wrong = read(text).expect_err("a target is none of a guest's").to_string();
        assert!(wrong.contains("`target`: is for a built-in policy"), "{wrong}");
        let text = r#"{"policy": "target_requests", "target": 3, "config": {}, "interval_s": 1, "max": 4}"#;
        let wrong = read(text).expect_err("there is no guest").to_string();
        assert!(wrong.contains("`config`: is for a guest"), "{wrong}");
    }

    #[test]
    fn everything_wrong_is_named_once() {
        let error_text = |text| read(text).expect_err("it is wrong").to_string();
        let missing = error_text("{}");
        assert_eq!(missing.lines().count(), 4, "{missing}");
        assert!(missing.contains("--autoscale, `max`: is required"), "{missing}");
        let wrong = error_text(r#"{"policy": "best", "target": 0, "interval_s": 0, "min": 0, "max": 3, "maxx": 4}"#);
        assert_eq!(wrong.lines().count(), 5, "{wrong}");
        for part in ["\"target_requests\"", "`target`: expected a finite number above 0", "did you mean `max`?"] {
            assert!(wrong.contains(part), "{part} in {wrong}");
        }
        assert!(error_text("[]").starts_with("--autoscale: expected a JSON object"));
    }
}
