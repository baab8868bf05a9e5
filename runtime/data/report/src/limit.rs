//! The limit of an assertion, and its distance from the observed value.

use serde::Serialize;
use vcr_base::units;

/// The limit that an assertion sets for a metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limit {
    /// The metric's name without the suffix of its unit.
    pub metric: String,
    /// Name of the workload; None for the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The statistic, such as `p99`.
    pub statistic: String,
    /// Whether the limit is an upper limit; None for `==` and `!=`.
    pub is_upper: Option<bool>,
    /// The value of the limit: in milliseconds for times, a share for percentages.
    pub value: f64,
}

/// Operators; longer operators come first.
const OPERATORS: [(&str, Option<bool>); 6] =
    [("<=", Some(true)), (">=", Some(false)), ("==", None), ("!=", None), ("<", Some(true)), (">", Some(false))];

impl Limit {
    /// Reads an assertion's subject, such as `ttft{workload:chat}`, and its condition, such as `p99 < 4s`. None if
    /// the condition does not compare a metric with a number.
    #[must_use]
    pub fn of(subject: &str, condition: &str) -> Option<Self> {
        let (metric, rest) = subject.split_once('{').unwrap_or((subject, ""));
        let workload = rest.trim_end().strip_suffix('}').and_then(|inner| inner.trim().strip_prefix("workload:"));
        // Some selectors, such as those of goodput, select more than a workload.
        if workload.is_none() && !rest.is_empty() {
            return None;
        }
        let at = condition.find(['<', '>', '=', '!'])?;
        let (statistic, rest) = condition.split_at(at);
        let (operator, is_upper) = OPERATORS.iter().find(|(operator, _)| rest.starts_with(operator))?;
        let metric = metric.trim();
        Some(Self {
            metric: metric.strip_suffix("_ms").or(metric.strip_suffix("_usd")).unwrap_or(metric).to_owned(),
            workload: workload.map(|name| name.trim().to_owned()),
            statistic: statistic.trim().replace(['(', ')'], ""),
            is_upper: *is_upper,
            value: value(rest[operator.len()..].trim())?,
        })
    }

    /// Share of the limit that an observed value leaves; negative beyond the limit. None if the limit is zero, or
    /// neither an upper nor a lower limit.
    #[must_use]
    pub fn headroom(&self, observed: f64) -> Option<f64> {
        let beyond = (observed - self.value) / self.value.abs();
        let headroom = if self.is_upper? { -beyond } else { beyond };
        headroom.is_finite().then_some(headroom)
    }
}

/// Share of an assertion's limit that an observed value leaves, as in [`Limit::headroom`], whatever requests the
/// subject selects.
#[must_use]
pub fn headroom_of(subject: &str, condition: &str, observed: f64) -> Option<f64> {
    let metric = subject.split_once('{').map_or(subject, |(metric, _)| metric);
    Limit::of(metric, condition)?.headroom(observed)
}

fn value(text: &str) -> Option<f64> {
    let number = || units::number(text.strip_prefix('$').unwrap_or(text)).ok();
    let duration = || units::duration_ns(text).ok().map(|ns| ns as f64 / 1e6);
    let share = || units::ratio(text).ok().filter(|_| text.ends_with('%'));
    let rate = || units::rate_per_s(text).ok().filter(|_| text.contains('/'));
    share().or_else(rate).or_else(number).or_else(duration)
}

/// A headroom for people, such as `43 % left` or `25 % beyond`.
#[must_use]
pub fn headroom_text(headroom: f64) -> String {
    let words = if headroom < 0.0 { "beyond" } else { "left" };
    format!("{:.0} % {words}", headroom.abs() * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_conditions() {
        let limit = Limit::of("ttft_ms{workload: chat }", "p(99) <= 4s").expect("a limit");
        let expected = Limit {
            metric: "ttft".to_owned(),
            workload: Some("chat".to_owned()),
            statistic: "p99".to_owned(),
            is_upper: Some(true),
            value: 4000.0,
        };
        assert_eq!(limit, expected);
        let value = |condition| Limit::of("m", condition).map(|limit| limit.value);
        assert_eq!(value("value >= 95%"), Some(0.95));
        assert_eq!(value("rate > 120/m"), Some(2.0));
        assert_eq!(value("count == 12"), Some(12.0));
        assert_eq!(value("value < $2.50"), Some(2.5));
        assert_eq!(value("p99 < soon"), None);
        assert_eq!(value("is it so"), None);
        assert_eq!(Limit::of("goodput{ttft<1s}", "ratio > 90%"), None);
    }

    #[test]
    fn headroom_is_positive_on_the_right_side_of_a_limit() {
        let of = |condition, observed| Limit::of("m", condition).and_then(|limit| limit.headroom(observed));
        assert_eq!(of("p99 < 4s", 3000.0), Some(0.25));
        assert_eq!(of("p99 < 4s", 5000.0), Some(-0.25));
        assert_eq!(of("rate >= 10/s", 15.0), Some(0.5));
        assert_eq!(of("value == 100%", 1.0), None);
        assert_eq!(of("count > 0", 18.0), None);
        for subject in ["goodput{ttft<1s}", "goodput{class:chat,tenant:2}", "completed_ratio{workload:chat}", "m"] {
            assert_eq!(headroom_of(subject, "ratio > 80%", 1.0), Some((1.0 - 0.8) / 0.8), "{subject}");
        }
        let texts = [0.434, -0.25, -13.88, 41.2].map(headroom_text);
        assert_eq!(texts, ["43 % left", "25 % beyond", "1388 % beyond", "4120 % left"], "all count in one way");
    }
}
