//! Objectives such as `ttft.p95 < 2s`: assertions of scenarios written as one text.

use serde::{Deserialize, Serialize};
use vcr_report::Limit;
use vcr_scenario::AssertionResult;

/// Added if no objective limits failed requests.
const COMPLETED: &str = "completed_ratio.value >= 99%";
/// Metrics that limit failed requests.
const ABOUT_COMPLETION: [&str; 3] = ["completed_ratio", "goodput", "completed"];
/// Metrics that grow with the number of replicas.
const COSTS: [&str; 4] = ["cost", "cost_per_hour", "cost_per_million_output_tokens", "gpus"];
/// Metrics that do not fall when replicas are added.
const CARRIED: [&str; 7] =
    ["completed", "completed_ratio", "generated_tokens", "goodput", "output_tokens", "prompt_tokens", "requests"];

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Objective {
    /// The metric, such as `ttft` or `goodput{ttft<1s}`.
    pub(crate) subject: String,
    /// The condition, such as `p95 < 2s`.
    pub(crate) condition: String,
}

impl Objective {
    /// Parses `METRIC.STATISTIC COMPARISON LIMIT`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let invalid =
            || format!("invalid objective `{text}`: expected METRIC.STATISTIC and a limit, such as 'ttft.p95 < 2s'");
        let start = text.find('{').map_or(Some(0), |_| text.rfind('}')).ok_or_else(invalid)?;
        let dot = start + text[start..].find('.').ok_or_else(invalid)?;
        let (subject, condition) = (text[..dot].trim(), text[dot + 1..].trim());
        let is_limit = condition.contains(['<', '>', '=']);
        if subject.is_empty() || !is_limit || text.contains(['"', '\\', '\n']) {
            return Err(invalid());
        }
        Ok(Self { subject: subject.to_owned(), condition: condition.to_owned() })
    }

    /// Parses all objectives. Adds one on completed requests if none limits failed requests.
    pub(crate) fn all(texts: &[String]) -> Result<Vec<Self>, String> {
        let mut all = texts.iter().map(|text| Self::parse(text)).collect::<Result<Vec<_>, _>>()?;
        let metric = |one: &Self| one.subject.split('{').next().unwrap_or_default().trim().to_owned();
        if !all.iter().any(|one| ABOUT_COMPLETION.contains(&metric(one).as_str())) {
            all.push(Self::parse(COMPLETED)?);
        }
        Ok(all)
    }

    pub(crate) fn text(&self) -> String {
        format!("{}.{}", self.subject, self.condition)
    }

    /// Whether it is about an SLO class, which requests have from the workloads of a scenario.
    pub(crate) fn selects_class(&self) -> bool {
        let parts = self.subject.split_once('{').map_or("", |(_, parts)| parts);
        parts.split(',').any(|part| part.split_once(':').is_some_and(|(key, _)| key.trim() == "class"))
    }

    /// Its limit, if it compares a metric with a number. A goodput's limit has only the metric's
    /// name.
    pub(crate) fn limit(&self) -> Option<Limit> {
        limit_of(&self.subject, &self.condition)
    }

    /// Whether more replicas can violate it: an upper limit of a cost, or a lower limit of, for example, a hit ratio.
    pub(crate) fn hurts(&self) -> bool {
        self.limit().is_some_and(|limit| match limit.is_upper {
            Some(true) => COSTS.contains(&limit.metric.as_str()),
            Some(false) => !CARRIED.contains(&limit.metric.as_str()),
            None => false,
        })
    }

    /// The percentile that it limits; 100 for the maximum.
    pub(crate) fn percentile(&self) -> Option<f64> {
        let limit = self.limit()?;
        match limit.statistic.as_str() {
            "max" => Some(100.0),
            "min" => Some(0.0),
            "med" => Some(50.0),
            statistic => statistic.strip_prefix('p')?.parse().ok(),
        }
    }
}

fn limit_of(subject: &str, condition: &str) -> Option<Limit> {
    let subject = if subject.trim_start().starts_with("goodput") { "goodput" } else { subject };
    Limit::of(subject, condition)
}

/// Two objectives that no run can keep together.
pub(crate) fn contradiction(all: &[Objective]) -> Option<(&Objective, &Objective)> {
    let bounds = |is_upper: bool| {
        all.iter().filter_map(move |one| {
            let limit = one.limit().filter(|limit| limit.is_upper == Some(is_upper))?;
            Some((one, limit))
        })
    };
    bounds(false).find_map(|(lower, low)| {
        let excludes = |(upper, high): &(&Objective, Limit)| {
            // A higher percentile is never smaller.
            let is_above = match (lower.percentile(), upper.percentile()) {
                (Some(low), Some(high)) => low <= high,
                _ => low.statistic == high.statistic,
            };
            let is_same = (&low.metric, &low.workload) == (&high.metric, &high.workload);
            let is_goodput = low.metric == "goodput" && lower.subject != upper.subject;
            is_same && !is_goodput && is_above && low.value >= high.value
        };
        bounds(true).find(excludes).map(|(upper, _)| (lower, upper))
    })
}

/// Distance of the observed value from the limit, as a fraction of the limit; positive if the objective is kept. For
/// a lower limit of a share, such as 99 % of requests, it is a fraction of the allowed failures.
pub(crate) fn headroom(result: &AssertionResult) -> f64 {
    /// Headroom of a metric without samples: worse than any sample.
    const NOTHING: f64 = -1e9;
    let of = |observed: f64| {
        let condition = result.condition.as_deref()?;
        let limit = limit_of(&result.subject, condition)?;
        let is_share = condition.ends_with('%') && limit.is_upper == Some(false) && limit.value < 1.0;
        if is_share { Some((observed - limit.value) / (1.0 - limit.value)) } else { limit.headroom(observed) }
    };
    match result.observed.map(of) {
        Some(Some(headroom)) if result.passed => headroom.max(0.0),
        Some(Some(headroom)) => headroom.min(-1e-9),
        // If the limit is 0 or has no direction, there is no distance.
        Some(None) if result.passed => 1.0,
        Some(None) => -1.0,
        None => NOTHING,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objective(text: &str) -> Objective {
        Objective::parse(text).expect("an objective")
    }

    #[test]
    fn metrics_are_apart_from_conditions() {
        let parts = |text| {
            let Objective { subject, condition } = objective(text);
            (subject, condition)
        };
        let text = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        assert_eq!(parts("ttft.p95 < 2s"), text("ttft", "p95 < 2s"));
        assert_eq!(parts("itl.p99.9<60ms"), text("itl", "p99.9<60ms"));
        assert_eq!(parts("ttft{workload:a.b}.p50 < 1.5s"), text("ttft{workload:a.b}", "p50 < 1.5s"));
        assert_eq!(parts("goodput{ttft<1.5s}.ratio >= 95%"), text("goodput{ttft<1.5s}", "ratio >= 95%"));
        for wrong in ["", "ttft", "ttft < 2s", "ttft.p95", ".p95 < 2s", "ttft{.p95 < 2s", "ttft.p95 < \"2s\""] {
            assert!(Objective::parse(wrong).expect_err("no objective").starts_with("invalid objective"), "{wrong}");
        }
    }

    #[test]
    fn lost_requests_are_an_objective_unless_one_is_about_them() {
        let count = |texts: &[&str]| {
            Objective::all(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).expect("valid").len()
        };
        assert_eq!(count(&["ttft.p95 < 2s"]), 2);
        assert_eq!(count(&["goodput{ttft<1s}.ratio > 90%"]), 1);
        assert_eq!(count(&["ttft.p95 < 2s", "completed_ratio.value == 100%"]), 2);
    }

    #[test]
    fn costs_and_shares_are_hurt_by_replicas() {
        let hurts = |text| objective(text).hurts();
        assert!(hurts("cost_per_hour.value < $5") && hurts("gpus.value <= 4") && hurts("kv_peak_usage.value > 50%"));
        assert!(!hurts("ttft.p95 < 2s") && !hurts("goodput{ttft<1s}.ratio > 90%") && !hurts("failed.count == 0"));
    }

    #[test]
    fn objectives_that_exclude_each_other_are_found() {
        let excludes = |one, other| contradiction(&[objective(one), objective(other)]).is_some();
        assert!(excludes("ttft.p95 < 1s", "ttft.p95 > 2s"));
        assert!(excludes("ttft.p50 > 2s", "ttft.p95 < 1s"), "the median is at most the 95th percentile");
        assert!(!excludes("ttft.p95 > 2s", "ttft.p50 < 1s"));
        assert!(!excludes("ttft.p95 < 1s", "itl.p95 > 2s"));
        assert!(!excludes("goodput{ttft<1s}.ratio > 90%", "goodput{ttft<9s}.ratio < 10%"));
    }

    #[test]
    fn headroom_is_a_share_of_the_limit() {
        let result = |condition: &str, observed: Option<f64>, passed: bool| AssertionResult {
            run: None,
            subject: "ttft".to_owned(),
            condition: Some(condition.to_owned()),
            observed,
            observed_text: None,
            confidence: None,
            held_share: None,
            passed,
        };
        assert_eq!(headroom(&result("p95 < 2s", Some(500.0), true)), 0.75);
        assert_eq!(headroom(&result("p95 < 2s", Some(3_000.0), false)), -0.5);
        assert_eq!(headroom(&result("count == 0", Some(0.0), true)), 1.0);
        assert_eq!(headroom(&result("ratio >= 75%", Some(1.0), true)), 1.0, "nothing of the quarter is lost");
        assert_eq!(headroom(&result("ratio >= 75%", Some(0.5), false)), -1.0);
        assert!(headroom(&result("p95 < 2s", Some(2_000.0), false)) < 0.0);
        assert!(headroom(&result("p95 < 2s", None, false)) < -100.0);
    }
}
