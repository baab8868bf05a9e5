//! Promises as they are written: `"ttft{workload:chat}"`, `"p99 < 4s"`.

use std::fmt;

use vcr_cluster::metrics::{Counter, Gauge, MetricInfo, MetricKind, Trend, Unit};
use vcr_cluster::{MetricsReport, Report, report_name};

use crate::check::Check;
use crate::error::{Thrown, did_you_mean, nearest};
use vcr_units as units;

/// What a metric can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Statistic {
    P50,
    P75,
    P90,
    P95,
    P99,
    Mean,
    Min,
    Max,
    Std,
    Count,
    Rate,
    Value,
}

const STATISTICS: &[(&str, Statistic)] = &[
    ("p50", Statistic::P50),
    ("p75", Statistic::P75),
    ("p90", Statistic::P90),
    ("p95", Statistic::P95),
    ("p99", Statistic::P99),
    ("mean", Statistic::Mean),
    ("min", Statistic::Min),
    ("max", Statistic::Max),
    ("std", Statistic::Std),
    ("count", Statistic::Count),
    ("rate", Statistic::Rate),
    ("value", Statistic::Value),
    ("med", Statistic::P50),
    ("avg", Statistic::Mean),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Less,
    AtMost,
    Greater,
    AtLeast,
    Equal,
    NotEqual,
}

// Longer operators first, so that `<=` is not read as `<`.
const COMPARISONS: &[(&str, Comparison)] = &[
    ("<=", Comparison::AtMost),
    (">=", Comparison::AtLeast),
    ("==", Comparison::Equal),
    ("!=", Comparison::NotEqual),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

impl Comparison {
    fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Self::Less => left < right,
            Self::AtMost => left <= right,
            Self::Greater => left > right,
            Self::AtLeast => left >= right,
            Self::Equal => left == right,
            Self::NotEqual => left != right,
        }
    }
}

/// A metric, of the whole run or of one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Subject {
    metric: Metric,
    workload: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    Trend(Trend),
    Counter(Counter),
    Gauge(Gauge),
}

/// Something wrong with a promise as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    message: String,
    hint: Option<String>,
}

impl Malformed {
    fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), hint: None }
    }
}

impl From<Malformed> for Thrown {
    fn from(malformed: Malformed) -> Self {
        Self { hint: malformed.hint, ..Self::input(malformed.message) }
    }
}

/// A promise as it is written, before any run.
pub(crate) struct Promise<'a> {
    subject: Subject,
    statistic: Statistic,
    comparison: Comparison,
    limit: f64,
    metric_text: &'a str,
    condition_text: &'a str,
}

impl<'a> Promise<'a> {
    pub(crate) fn parse(metric_text: &'a str, condition_text: &'a str) -> Result<Self, Malformed> {
        let subject = Subject::parse(metric_text)?;
        let (statistic, comparison, limit_text) = parse_condition(condition_text)?;
        statistic.check_applies(subject.metric.info())?;
        let limit = parse_limit(limit_text, subject.metric.info().unit, statistic).map_err(Malformed::new)?;
        Ok(Self { subject, statistic, comparison, limit, metric_text, condition_text })
    }

    pub(crate) fn keep(&self, report: &Report) -> Result<Check, Malformed> {
        self.subject.check_workload(report)?;
        let observed = self.subject.observe(report, self.statistic);
        let unit = self.subject.metric.info().unit;
        Ok(Check {
            run: Some(report.name.clone()),
            subject: self.metric_text.to_owned(),
            condition: Some(self.condition_text.to_owned()),
            observed,
            observed_text: observed.map(|value| format_value(value, unit, self.statistic)),
            // A promise about samples that do not exist is broken, not kept.
            passed: observed.is_some_and(|value| self.comparison.holds(value, self.limit)),
        })
    }
}

/// Checks a promise that is written out in the script, before any run.
pub(crate) fn check_promise(metric: &str, condition: &str) -> Result<(), Thrown> {
    Promise::parse(metric, condition).map(|_| ()).map_err(Thrown::from)
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

impl Metric {
    fn all() -> impl Iterator<Item = Self> {
        let trends = Trend::ALL.iter().map(|&trend| Self::Trend(trend));
        let counters = Counter::ALL.iter().map(|&counter| Self::Counter(counter));
        trends.chain(counters).chain(Gauge::ALL.iter().map(|&gauge| Self::Gauge(gauge)))
    }

    fn info(self) -> MetricInfo {
        match self {
            Self::Trend(trend) => trend.info(),
            Self::Counter(counter) => counter.info(),
            Self::Gauge(gauge) => gauge.info(),
        }
    }
}

impl Subject {
    /// Reads `name` or `name{workload:NAME}`; the unit suffix of reports may be
    /// left on.
    fn parse(text: &str) -> Result<Self, Malformed> {
        let (name, workload) = match text.split_once('{') {
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
        let found = Metric::all().find(|metric| metric.info().name == name || report_name(metric.info()) == name);
        let Some(metric) = found else {
            let close = nearest(name, Metric::all().map(|metric| metric.info().name));
            let known: Vec<&str> = Metric::all().map(|metric| metric.info().name).collect();
            let hint = close.map_or_else(|| format!("metrics are {}", known.join(", ")), did_you_mean);
            return Err(Malformed { message: format!("there is no metric `{name}`"), hint: Some(hint) });
        };
        let subject = Self { metric, workload: workload.map(str::to_owned) };
        if subject.workload.is_some() && subject.is_of_engines() {
            return Err(Malformed::new(format!("`{name}` belongs to engines and cannot be told apart by workload")));
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

    fn is_of_engines(&self) -> bool {
        matches!(
            self.metric,
            Metric::Trend(Trend::StepTime | Trend::BatchSize) | Metric::Gauge(Gauge::Duration | Gauge::KvPeakUsage)
        ) || matches!(self.metric, Metric::Counter(counter) if counter.is_of_whole_run())
    }

    /// The value, in milliseconds for times; none without samples.
    fn observe(&self, report: &Report, statistic: Statistic) -> Option<f64> {
        let metrics: &MetricsReport = match &self.workload {
            Some(workload) => report.workloads.get(workload)?,
            None => &report.metrics,
        };
        match self.metric {
            Metric::Gauge(gauge) => metrics.gauges.get(&report_name(gauge.info())).copied(),
            Metric::Counter(counter) => match statistic {
                // Reports leave out occasional counters that are 0.
                Statistic::Rate => {
                    let rate = metrics.rates_per_s.get(counter.info().name).copied();
                    rate.or(counter.is_occasional().then_some(0.0))
                }
                _ => {
                    let count = metrics.counters.get(counter.info().name).map(|&count| count as f64);
                    count.or(counter.is_occasional().then_some(0.0))
                }
            },
            Metric::Trend(trend) => {
                let summary = metrics.trends.get(&report_name(trend.info()))?;
                Some(match statistic {
                    Statistic::P50 => summary.p50,
                    Statistic::P75 => summary.p75,
                    Statistic::P90 => summary.p90,
                    Statistic::P95 => summary.p95,
                    Statistic::P99 => summary.p99,
                    Statistic::Mean => summary.mean,
                    Statistic::Min => summary.min,
                    Statistic::Max => summary.max,
                    Statistic::Std => summary.std,
                    Statistic::Count | Statistic::Value => summary.count as f64,
                    Statistic::Rate => summary.count as f64 / (report.duration_ms / 1e3),
                })
            }
        }
    }
}

impl Statistic {
    fn parse(text: &str) -> Result<Self, Malformed> {
        // k6 writes percentiles as p(95).
        let plain = text.replace(['(', ')'], "");
        if let Some((_, statistic)) = STATISTICS.iter().find(|(name, _)| *name == plain) {
            return Ok(*statistic);
        }
        let names = || STATISTICS.iter().map(|(name, _)| *name);
        let list = "p50, p75, p90, p95, p99, mean, min, max, std, count, rate, value".to_owned();
        let hint = nearest(&plain, names()).map_or_else(|| format!("statistics are {list}"), did_you_mean);
        Err(Malformed { message: format!("there is no statistic `{text}`"), hint: Some(hint) })
    }

    fn check_applies(self, metric: MetricInfo) -> Result<(), Malformed> {
        let (applies, wanted) = match metric.kind {
            MetricKind::Trend => (self != Self::Value, "p50, p75, p90, p95, p99, mean, min, max, std, count, rate"),
            MetricKind::Counter => (matches!(self, Self::Count | Self::Rate), "count, rate"),
            MetricKind::Gauge => (self == Self::Value, "value"),
        };
        if applies {
            return Ok(());
        }
        let name = STATISTICS.iter().find(|(_, statistic)| *statistic == self).map_or("?", |(name, _)| *name);
        let message = format!("`{}` has no `{name}`", metric.name);
        Err(Malformed { message, hint: Some(format!("it can be asked for {wanted}")) })
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

fn parse_limit(text: &str, unit: Unit, statistic: Statistic) -> Result<f64, units::UnitError> {
    match (statistic, unit) {
        (Statistic::Count, _) => units::number(text),
        (Statistic::Rate, _) if text.contains('/') => units::rate_per_s(text),
        (Statistic::Rate, _) => units::number(text),
        (_, Unit::Time) => units::duration_ns(text).map(|ns| ns as f64 / 1e6),
        (_, Unit::Ratio) => units::ratio(text),
        (_, Unit::Count) => units::number(text),
    }
}

/// An observed value for people.
fn format_value(value: f64, unit: Unit, statistic: Statistic) -> String {
    match (statistic, unit) {
        (Statistic::Count, _) => format!("{value}"),
        (Statistic::Rate, _) => format!("{value:.2}/s"),
        (_, Unit::Time) => units::format_ns(value * 1e6),
        (_, Unit::Ratio) => format!("{:.2}%", value * 100.0),
        (_, Unit::Count) => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_with_and_without_spaces() {
        assert_eq!(parse_condition("p99 < 4s").unwrap(), (Statistic::P99, Comparison::Less, "4s"));
        assert_eq!(parse_condition("p(95)<=500ms").unwrap(), (Statistic::P95, Comparison::AtMost, "500ms"));
        assert_eq!(parse_condition("count==0").unwrap(), (Statistic::Count, Comparison::Equal, "0"));
    }

    #[test]
    fn malformed_conditions_say_what_to_write() {
        let hint = |text| parse_condition(text).unwrap_err();
        assert!(hint("fast").hint.unwrap().contains("p99 < 4s"));
        assert_eq!(hint("p98 < 4s").message, "there is no statistic `p98`");
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
