//! Assertions as they are written: `"ttft{workload:chat}"`, `"p99 < 4s"`.

mod comparison;
mod goodput;
mod malformed;
pub(crate) mod precheck;
mod statistic;

use serde::Serialize;
use vcr_cluster::metrics::{Metric, Scope};
use vcr_cluster::{MetricsReport, Report};

use crate::assertion::comparison::{COMPARISONS, Comparison};
use crate::assertion::goodput::Slo;
use crate::assertion::malformed::Malformed;
use crate::assertion::statistic::{Statistic, format_value, parse_limit};
use crate::script::error::Thrown;
use crate::script::suggestion::{did_you_mean, nearest};

/// A metric, of the whole run or of one workload.
#[derive(Clone, Debug, PartialEq)]
struct Subject {
    metric: Metric,
    workload: Option<String>,
    /// The limits of [`Metric::Goodput`].
    slos: Vec<Slo>,
}

/// The result of an assertion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AssertionResult {
    /// Name of the run it is about; absent for free conditions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The metric, or what must be true.
    pub subject: String,
    /// The condition on the metric, as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// The value that was compared, in milliseconds for times; absent when there
    /// were no samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<f64>,
    /// That value for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_text: Option<String>,
    /// Whether the assertion passed.
    pub passed: bool,
}

/// An assertion as it is written, before any run.
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
        statistic.check_applies(subject.metric.info())?;
        let limit = parse_limit(limit_text, subject.metric.info().unit, statistic).map_err(Malformed::new)?;
        Ok(Self { subject, statistic, comparison, limit, metric_text, condition_text })
    }

    pub(crate) fn evaluate(&self, report: &Report) -> Result<AssertionResult, Malformed> {
        self.subject.check_workload(report)?;
        let observed = self.subject.observe(report, self.statistic);
        let unit = self.subject.metric.info().unit;
        Ok(AssertionResult {
            run: Some(report.name.clone()),
            subject: self.metric_text.to_owned(),
            condition: Some(self.condition_text.to_owned()),
            observed,
            observed_text: observed.map(|value| format_value(value, unit, self.statistic)),
            // An assertion on samples that do not exist fails.
            passed: observed.is_some_and(|value| self.comparison.holds(value, self.limit)),
        })
    }
}

/// Checks an assertion that is written out in the script, before any run.
pub(crate) fn check_assertion(metric: &str, condition: &str) -> Result<(), Thrown> {
    Assertion::parse(metric, condition).map(|_| ()).map_err(Thrown::from)
}

/// Checks a metric and a statistic that are written out in the script.
pub(crate) fn check_value(metric: &str, statistic: &str) -> Result<(), Thrown> {
    let subject = Subject::parse(metric)?;
    Ok(Statistic::parse(statistic)?.check_applies(subject.metric.info())?)
}

/// A statistic of a metric of a run, in milliseconds for times.
pub(crate) fn value(report: &Report, metric: &str, statistic: &str) -> Result<f64, Malformed> {
    let subject = Subject::parse(metric)?;
    subject.check_workload(report)?;
    let statistic = Statistic::parse(statistic)?;
    statistic.check_applies(subject.metric.info())?;
    subject.observe(report, statistic).ok_or_else(|| Malformed::new(format!("`{metric}` has no samples in this run")))
}

impl Subject {
    /// Reads `name` or `name{workload:NAME}`; the unit suffix of reports may be
    /// left on.
    fn parse(text: &str) -> Result<Self, Malformed> {
        let (name, workload) = match text.split_once('{') {
            Some((name, rest)) if name.trim() == Metric::Goodput.info().name => {
                let (workload, slos) = goodput::parse(text, rest)?;
                return Ok(Self { metric: Metric::Goodput, workload, slos });
            }
            None => (text.trim(), None),
            Some((name, rest)) => {
                let inner = rest.trim().strip_suffix('}');
                let workload = inner.and_then(|inner| inner.trim().strip_prefix("workload:")).map(str::trim);
                let Some(workload) = workload else {
                    return Err(Malformed::new(format!("`{text}` is not of the form `metric{{workload:NAME}}`")));
                };
                (name.trim(), Some(workload))
            }
        };
        let is_named = |metric: &Metric| metric.info().name == name || metric.info().report_name() == name;
        let found = Metric::all().find(is_named);
        let Some(metric) = found else {
            let close = nearest(name, Metric::all().map(|metric| metric.info().name));
            let known: Vec<&str> = Metric::all().map(|metric| metric.info().name).collect();
            let hint = close.map_or_else(|| format!("metrics are {}", known.join(", ")), did_you_mean);
            return Err(Malformed { message: format!("there is no metric `{name}`"), hint: Some(hint) });
        };
        if metric == Metric::Goodput {
            return Err(goodput::without_limits());
        }
        let subject = Self { metric, workload: workload.map(str::to_owned), slos: Vec::new() };
        if subject.workload.is_some() && metric.info().scope == Scope::Run {
            return Err(Malformed::new(format!(
                "`{name}` is a metric of engines, which cannot be asked of one workload"
            )));
        }
        Ok(subject)
    }

    /// Fails when the run has no workload of that name.
    fn check_workload(&self, report: &Report) -> Result<(), Malformed> {
        let Some(workload) = &self.workload else { return Ok(()) };
        if report.workloads.contains_key(workload) {
            return Ok(());
        }
        let names = || report.workloads.keys().map(String::as_str);
        let close = nearest(workload, names());
        let hint = close.map_or_else(|| format!("it has {}", names().collect::<Vec<_>>().join(", ")), did_you_mean);
        let message = format!("the run `{}` has no workload `{workload}`", report.name);
        Err(Malformed { message, hint: Some(hint) })
    }

    /// The value, in milliseconds for times; none without samples.
    fn observe(&self, report: &Report, statistic: Statistic) -> Option<f64> {
        let metrics: &MetricsReport = match &self.workload {
            Some(workload) => report.workloads.get(workload)?,
            None => &report.metrics,
        };
        match self.metric {
            Metric::Gauge(gauge) => metrics.gauge(gauge),
            Metric::Counter(counter) => Some(match statistic {
                Statistic::Rate => metrics.rate_per_s(counter),
                _ => metrics.count(counter) as f64,
            }),
            Metric::Trend(trend) => {
                let summary = metrics.trend(trend)?;
                match statistic {
                    Statistic::Percentile(percent) => report.percentile(trend, self.workload.as_deref(), percent),
                    Statistic::Mean => Some(summary.mean),
                    Statistic::Min => Some(summary.min),
                    Statistic::Max => Some(summary.max),
                    Statistic::Std => Some(summary.std),
                    Statistic::Count | Statistic::Value | Statistic::Ratio => Some(summary.count as f64),
                    Statistic::Rate => Some(summary.count as f64 / (report.duration_ms / 1e3)),
                }
            }
            Metric::Goodput => goodput::observe(report, self.workload.as_deref(), &self.slos, statistic),
        }
    }
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

    #[test]
    fn every_metric_has_one_name() {
        let mut names: Vec<&str> = Metric::all().map(|metric| metric.info().name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
