//! Assertions as scripts write them: `"ttft{workload:chat}"`, `"p99 < 4s"`.

pub(crate) mod compared;
mod comparison;
pub(crate) mod decided;
pub(crate) mod draws;
mod goodput;
pub(crate) mod malformed;
pub(crate) mod precheck;
mod statistic;
mod subject;

use serde::{Deserialize, Serialize};
use vcr_cluster::{Report, quantile};

use crate::assertion::comparison::{COMPARISONS, Comparison};
use crate::assertion::draws::{Draws, Watched};
use crate::assertion::malformed::Malformed;
use crate::assertion::statistic::{Statistic, format_value, parse_limit};
use crate::assertion::subject::Subject;
use crate::script::error::Thrown;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AssertionResult {
    /// Name of the run that is checked; absent for free conditions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The metric, or the condition.
    pub subject: String,
    /// The condition on the metric, as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// The value that was compared, in milliseconds for times; absent without samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<f64>,
    /// The observed value as text with its unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_text: Option<String>,
    /// The share of draws in which the condition must hold, if the script requires one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// The share of draws in which it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_share: Option<f64>,
    /// Whether the assertion passed.
    pub passed: bool,
}

impl AssertionResult {
    /// A check from outside the script. `observed` is text with a unit.
    #[must_use]
    pub fn beside_the_script(
        run: Option<String>,
        subject: String,
        condition: String,
        observed: String,
        passed: bool,
    ) -> Self {
        Self {
            run,
            subject,
            condition: Some(condition),
            observed: None,
            observed_text: Some(observed),
            confidence: None,
            held_share: None,
            passed,
        }
    }

    /// The assertion and the observed value, in one line.
    #[must_use]
    pub fn text(&self) -> String {
        let observed = match (&self.observed_text, &self.condition) {
            (Some(text), _) => format!(" ({text})"),
            (None, Some(_)) => " (no samples)".to_owned(),
            (None, None) => String::new(),
        };
        let run = self.run.as_ref().map(|run| format!("{run}: ")).unwrap_or_default();
        let condition = self.condition.as_ref().map(|condition| format!(" {condition}")).unwrap_or_default();
        format!("{run}{}{condition}{observed}", self.subject)
    }
}

/// An assertion as written, before any run.
pub(crate) struct Assertion<'a> {
    subject: Subject,
    statistic: Statistic,
    comparison: Comparison,
    limit: f64,
    metric_text: &'a str,
    condition_text: &'a str,
}

impl<'a> Assertion<'a> {
    pub(crate) fn parse(metric_text: &'a str, condition_text: &'a str) -> Result<Self, Malformed> {
        let subject = Subject::parse(metric_text)?;
        let (statistic, comparison, limit_text) = parse_condition(condition_text)?;
        statistic.check_applies(subject.info())?;
        let limit = parse_limit(limit_text, subject.info().unit, statistic)?;
        Ok(Self { subject, statistic, comparison, limit, metric_text, condition_text })
    }

    pub(crate) fn evaluate(&self, report: &Report) -> Result<AssertionResult, Malformed> {
        self.subject.check_workload(report)?;
        self.subject.check_known(report)?;
        let observed = self.subject.observe(report, self.statistic);
        let unit = self.subject.info().unit;
        Ok(AssertionResult {
            run: Some(report.name.clone()),
            subject: self.metric_text.to_owned(),
            condition: Some(self.condition_text.to_owned()),
            observed,
            observed_text: observed.map(|value| format_value(value, unit, self.statistic)),
            confidence: None,
            held_share: None,
            // An assertion on missing samples fails.
            passed: self.holds(observed),
        })
    }

    /// Evaluates whether the assertion holds in at least the share `confidence` of the draws of a run.
    pub(crate) fn evaluate_in_draws(
        &self,
        report: &Report,
        draws: &Draws,
        confidence: f64,
    ) -> Result<AssertionResult, Malformed> {
        let result = self.evaluate(report)?;
        let values = draws.observe(&self.subject, self.statistic)?;
        let held = values.iter().filter(|value| self.holds(**value)).count();
        let share = held as f64 / values.len() as f64;
        let observed = result.observed_text.as_deref().unwrap_or("no samples");
        Ok(AssertionResult {
            observed_text: Some(format!("{observed}; holds in {:.1} % of {} draws", share * 100.0, values.len())),
            confidence: Some(confidence),
            held_share: Some(share),
            passed: share >= confidence,
            ..result
        })
    }

    fn holds(&self, observed: Option<f64>) -> bool {
        observed.is_some_and(|value| self.comparison.holds(value, self.limit))
    }
}

/// Checks an assertion of the script before any run. Returns the statistic that draws must compute for it, if any.
fn check_assertion(metric: &str, condition: &str) -> Result<Option<Watched>, Thrown> {
    let Assertion { subject, statistic, .. } = Assertion::parse(metric, condition)?;
    Ok(Watched::of(subject, statistic, metric))
}

/// Checks a metric and a statistic that are literals in the script, like [`check_assertion`].
fn check_value(metric: &str, statistic: &str) -> Result<Option<Watched>, Thrown> {
    let (subject, statistic) = parse_value(metric, statistic)?;
    Ok(Watched::of(subject, statistic, metric))
}

/// A statistic of a metric of a run, in milliseconds for times.
pub(crate) fn value(report: &Report, metric: &str, statistic: &str) -> Result<f64, Malformed> {
    let (subject, statistic) = parse_value(metric, statistic)?;
    subject.check_workload(report)?;
    subject.check_known(report)?;
    subject.observe(report, statistic).ok_or_else(|| without_samples(metric))
}

/// Checks that a report has a statistic of a metric.
pub(crate) fn check_names(report: &Report, metric: &str, statistic: &str) -> Result<(), Malformed> {
    let (subject, _) = parse_value(metric, statistic)?;
    subject.check_workload(report)?;
    subject.check_known(report)
}

/// Whether the target of a run knows a metric.
pub(crate) fn is_known(report: &Report, metric: &str) -> Result<bool, Malformed> {
    let subject = Subject::parse(metric)?;
    subject.check_workload(report)?;
    Ok(subject.why_absent(report).is_none())
}

/// The value that the share `share` of a run's draws do not exceed.
pub(crate) fn quantile_of_draws(
    report: &Report,
    draws: &Draws,
    metric: &str,
    statistic: &str,
    share: f64,
) -> Result<f64, Malformed> {
    let (subject, statistic) = parse_value(metric, statistic)?;
    subject.check_workload(report)?;
    let mut values: Vec<f64> = draws.observe(&subject, statistic)?.into_iter().flatten().collect();
    quantile(&mut values, share).ok_or_else(|| without_samples(metric))
}

fn without_samples(metric: &str) -> Malformed {
    Malformed::new(format!("`{metric}` has no samples in this run"))
}

fn parse_value(metric: &str, statistic: &str) -> Result<(Subject, Statistic), Malformed> {
    let subject = Subject::parse(metric)?;
    let statistic = Statistic::parse(statistic)?;
    statistic.check_applies(subject.info())?;
    Ok((subject, statistic))
}

/// Splits `p99 < 4s` into its parts.
fn parse_condition(text: &str) -> Result<(Statistic, Comparison, &str), Malformed> {
    let form = || Malformed {
        message: format!("`{text}` is not a condition"),
        hint: Some("write a statistic, a comparison and a limit, such as \"p99 < 4s\"".to_owned()),
    };
    let at = text.find(['<', '>', '=', '!']).ok_or_else(form)?;
    let (left, rest) = text.split_at(at);
    let (operator, comparison) =
        COMPARISONS.iter().find(|(operator, _)| rest.starts_with(operator)).ok_or_else(form)?;
    let limit = rest[operator.len()..].trim();
    if left.trim().is_empty() || limit.is_empty() {
        return Err(form());
    }
    Ok((Statistic::parse(left.trim())?, *comparison, limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_with_and_without_spaces() {
        let percentile = Statistic::Percentile;
        assert_eq!(parse_condition("p99 < 4s").unwrap(), (percentile(99.0), Comparison::Less, "4s"));
        assert_eq!(parse_condition("p(95)<=500ms").unwrap(), (percentile(95.0), Comparison::AtMost, "500ms"));
        assert_eq!(parse_condition("p99.9 < 1s").unwrap(), (percentile(99.9), Comparison::Less, "1s"));
        assert_eq!(parse_condition("count==0").unwrap(), (Statistic::Count, Comparison::Equal, "0"));
    }

    #[test]
    fn malformed_conditions_say_what_to_write() {
        let hint = |text| parse_condition(text).unwrap_err();
        assert!(hint("fast").hint.unwrap().contains("p99 < 4s"));
        assert_eq!(hint("p101 < 4s").message, "invalid percentile `p101`: expected p0 to p100, such as p99.9");
        assert_eq!(hint("q98 < 4s").message, "there is no statistic `q98`");
        assert!(hint("p99 <").message.contains("is not a condition"));
        assert!(hint("< 4s").message.contains("is not a condition"));
    }
}
