//! Subject of an assertion: a metric of the whole run or of one workload.

use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_cluster::metrics::{Metric, MetricInfo, Scope};
use vcr_cluster::{MetricsReport, Report, TrendReport};

use crate::assertion::goodput::{self, GoodputOf};
use crate::assertion::malformed::Malformed;
use crate::assertion::statistic::Statistic;
/// A metric of the whole run or of one workload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Subject {
    metric: Metric,
    workload: Option<String>,
    /// The requests and limits of [`Metric::Goodput`].
    goodput: GoodputOf,
}

impl Subject {
    /// Parses `name` or `name{workload:NAME}`. The unit suffix that reports use is optional.
    pub(crate) fn parse(text: &str) -> Result<Self, Malformed> {
        let (name, workload) = match text.split_once('{') {
            Some((name, rest)) if name.trim() == Metric::Goodput.info().name => {
                let goodput = goodput::parse(text, rest)?;
                return Ok(Self { metric: Metric::Goodput, workload: goodput.workload.clone(), goodput });
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
        let found = Metric::named(name);
        let Some(metric) = found else {
            let close = nearest(name, Metric::all().map(|metric| metric.info().name));
            let known: Vec<&str> = Metric::all().map(|metric| metric.info().name).collect();
            let hint = close.map_or_else(|| format!("metrics are {}", known.join(", ")), did_you_mean);
            return Err(Malformed { message: format!("unknown metric `{name}`"), hint: Some(hint) });
        };
        if metric == Metric::Goodput {
            return Err(goodput::without_limits());
        }
        let subject = Self { metric, workload: workload.map(str::to_owned), goodput: GoodputOf::default() };
        if subject.workload.is_some() && metric.info().scope == Scope::Run {
            return Err(Malformed::new(format!(
                "`{name}` is a metric of engines, which cannot be asked of one workload"
            )));
        }
        Ok(subject)
    }

    /// Fails if the run has no such workload or SLO class.
    pub(crate) fn check_workload(&self, report: &Report) -> Result<(), Malformed> {
        if let Some(class) = &self.goodput.class
            && !report.slo_classes.contains_key(class)
        {
            let names = || report.slo_classes.keys().map(String::as_str);
            let close = nearest(class, names());
            let known = || match names().collect::<Vec<_>>().join(", ") {
                none if none.is_empty() => format!(
                    "no request has an SLO: give a workload `slo: #{{ class: \"{class}\", ttft: \"1s\" }}`, or write limits, \
                     as in \"goodput{{ttft<1s}}\""
                ),
                some => format!("its requests have the classes {some}"),
            };
            let message = format!("the run `{}` has no SLO class `{class}`", report.name);
            return Err(Malformed { message, hint: Some(close.map_or_else(known, did_you_mean)) });
        }
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

    /// Fails if the run or its target does not know the metric.
    pub(crate) fn check_known(&self, report: &Report) -> Result<(), Malformed> {
        let Some(reason) = self.why_absent(report) else { return Ok(()) };
        let (name, run) = (self.info().name, &report.name);
        let target = report.target.as_ref().map(|target| format!(" on the target `{}`", target.name));
        let on_target = target.unwrap_or_default();
        Err(Malformed {
            message: format!("`{name}` of the run `{run}` is not known{on_target}: {reason}"),
            hint: Some(format!("ask before: if has(result, \"{name}\") {{ ... }}")),
        })
    }

    /// The reason why the run or its target does not know the metric; None if it is known.
    pub(crate) fn why_absent<'a>(&self, report: &'a Report) -> Option<&'a str> {
        let of_workload = self.workload.is_some();
        let mut needed = self.goodput.needs().chain([self.metric]);
        needed.find_map(|metric| report.why_absent(metric, of_workload))
    }

    pub(crate) fn info(&self) -> MetricInfo {
        self.metric.info()
    }

    /// Whether reports list this statistic of the metric, so that samples and requests are not needed.
    pub(crate) fn is_listed(&self, statistic: Statistic) -> bool {
        match statistic {
            Statistic::Percentile(percent) => LISTED_PERCENTILES.contains(&percent),
            _ => self.metric != Metric::Goodput,
        }
    }

    /// The value, in milliseconds for times; None without samples.
    pub(crate) fn observe(&self, report: &Report, statistic: Statistic) -> Option<f64> {
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
                    Statistic::Percentile(percent) => listed_percentile(&summary, percent)
                        .or_else(|| report.percentile(trend, self.workload.as_deref(), percent)),
                    Statistic::Mean => Some(summary.mean),
                    Statistic::Min => Some(summary.min),
                    Statistic::Max => Some(summary.max),
                    Statistic::Std => Some(summary.std),
                    Statistic::Count | Statistic::Value | Statistic::Ratio => Some(summary.count as f64),
                    Statistic::Rate => Some(summary.count as f64 / (report.duration_ms / 1e3)),
                }
            }
            Metric::Goodput => goodput::observe(report, &self.goodput, statistic),
        }
    }
}

/// The percentiles that reports list.
const LISTED_PERCENTILES: [f64; 7] = [0.0, 50.0, 75.0, 90.0, 95.0, 99.0, 100.0];

fn listed_percentile(summary: &TrendReport, percent: f64) -> Option<f64> {
    let TrendReport { min, p50, p75, p90, p95, p99, max, .. } = *summary;
    let listed = LISTED_PERCENTILES.into_iter().zip([min, p50, p75, p90, p95, p99, max]);
    listed.into_iter().find(|(of, _)| *of == percent).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_one_name() {
        let mut names: Vec<&str> = Metric::all().map(|metric| metric.info().name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
