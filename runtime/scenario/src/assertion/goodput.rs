//! `goodput{ttft<1s,tpot<50ms}`: requests that completed within latency limits.

use vcr_cluster::metrics::{Metric, Trend};
use vcr_cluster::{Report, SloMetric};
use vcr_units as units;

use crate::assertion::comparison::{COMPARISONS, Comparison};
use crate::assertion::malformed::Malformed;
use crate::assertion::statistic::Statistic;
use crate::script::suggestion::{did_you_mean, nearest};

/// The latencies by their names in vLLM's benchmark and Dynamo. In both the ITL of a request
/// is the mean of its gaps.
const LATENCIES: [(&str, SloMetric); 6] = [
    ("ttft", SloMetric::Ttft),
    ("tpot", SloMetric::Tpot),
    ("itl", SloMetric::Tpot),
    ("e2e", SloMetric::E2e),
    ("e2el", SloMetric::E2e),
    ("queue", SloMetric::Queue),
];

/// A limit on a latency of each request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slo {
    metric: SloMetric,
    comparison: Comparison,
    limit_ns: u64,
}

impl Slo {
    /// The metric that it is a limit of, if that can be unknown.
    pub(crate) fn needs(&self) -> Option<Metric> {
        (self.metric == SloMetric::Queue).then_some(Metric::Trend(Trend::Queue))
    }
}

/// Reads the part of `text` after `{`: limits, and optionally `workload:NAME`.
pub(crate) fn parse(text: &str, rest: &str) -> Result<(Option<String>, Vec<Slo>), Malformed> {
    let Some(inner) = rest.trim().strip_suffix('}') else {
        return Err(Malformed { message: format!("`{text}` has no closing `}}`"), hint: Some(form()) });
    };
    let mut workload = None;
    let mut slos = Vec::new();
    for part in inner.split(',').map(str::trim) {
        match part.strip_prefix("workload:") {
            Some(name) if workload.is_none() => workload = Some(name.trim().to_owned()),
            Some(_) => return Err(Malformed::new(format!("`{text}` names two workloads"))),
            None => slos.push(slo(part)?),
        }
    }
    if slos.is_empty() { Err(without_limits()) } else { Ok((workload, slos)) }
}

/// The error of a goodput without limits.
pub(crate) fn without_limits() -> Malformed {
    Malformed { message: "`goodput` needs latency limits".to_owned(), hint: Some(form()) }
}

fn form() -> String {
    "write the limits as in \"goodput{ttft<1s,tpot<50ms}\", for one workload \"goodput{workload:chat,ttft<1s}\""
        .to_owned()
}

fn slo(part: &str) -> Result<Slo, Malformed> {
    let malformed = || Malformed { message: format!("`{part}` is not a latency limit"), hint: Some(form()) };
    let at = part.find(['<', '>', '=', '!']).ok_or_else(malformed)?;
    let (name, rest) = (part[..at].trim(), &part[at..]);
    let found = COMPARISONS.iter().find(|(operator, _)| rest.starts_with(operator)).ok_or_else(malformed)?;
    let (operator, comparison) = *found;
    if !matches!(comparison, Comparison::Less | Comparison::AtMost) {
        return Err(Malformed::new(format!("invalid comparison `{operator}` in `{part}`: expected < or <=")));
    }
    let Some((_, metric)) = LATENCIES.iter().find(|(known, _)| *known == name) else {
        let names = || LATENCIES.iter().map(|(name, _)| *name);
        let close = nearest(name, names()).map(did_you_mean);
        let hint = close.unwrap_or_else(|| format!("limits are set for {}", names().collect::<Vec<_>>().join(", ")));
        return Err(Malformed { message: format!("requests have no latency `{name}`"), hint: Some(hint) });
    };
    let limit_ns = units::duration_ns(rest[operator.len()..].trim());
    let limit_ns = limit_ns.map_err(|error| Malformed::new(format!("invalid limit in `{part}`: {error}")))?;
    Ok(Slo { metric: *metric, comparison, limit_ns })
}

/// The requests that met all limits: their number, their number per second, or their share of
/// all that arrived.
pub(crate) fn observe(report: &Report, workload: Option<&str>, slos: &[Slo], statistic: Statistic) -> Option<f64> {
    let keeps: Vec<_> = slos
        .iter()
        .map(|slo| (slo.metric, move |ns: u64| slo.comparison.holds(ns as f64, slo.limit_ns as f64)))
        .collect();
    let limits: Vec<_> = keeps.iter().map(|(metric, keeps)| (*metric, keeps as &dyn Fn(u64) -> bool)).collect();
    let goodput = report.goodput(workload, &limits);
    let good = goodput.good as f64;
    match statistic {
        Statistic::Rate => Some(if report.duration_ms > 0.0 { good / (report.duration_ms / 1e3) } else { 0.0 }),
        Statistic::Ratio => (goodput.arrived > 0).then(|| good / goodput.arrived as f64),
        _ => Some(good),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<(Option<String>, Vec<Slo>), Malformed> {
        parse(text, text.split_once('{').unwrap().1)
    }

    #[test]
    fn limits_and_workloads_are_read_in_any_order() {
        let ttft = Slo { metric: SloMetric::Ttft, comparison: Comparison::Less, limit_ns: 1_000_000_000 };
        let itl = Slo { metric: SloMetric::Tpot, comparison: Comparison::AtMost, limit_ns: 50_000_000 };
        assert_eq!(parsed("goodput{ttft<1s,itl<=50ms}"), Ok((None, vec![ttft, itl])));
        assert_eq!(parsed("goodput{ itl <= 50ms, workload: chat }"), Ok((Some("chat".to_owned()), vec![itl])));
    }

    #[test]
    fn malformed_limits_say_what_to_write() {
        for (text, message) in [
            ("goodput{}", "`` is not a latency limit"),
            ("goodput{workload:chat}", "`goodput` needs latency limits"),
            ("goodput{ttft<1s", "`goodput{ttft<1s` has no closing `}`"),
            ("goodput{ttft>1s}", "invalid comparison `>` in `ttft>1s`: expected < or <="),
            ("goodput{tfft<1s}", "requests have no latency `tfft`"),
        ] {
            assert_eq!(parsed(text).unwrap_err().message, message, "{text}");
        }
        assert!(parsed("goodput{ttft<1}").unwrap_err().message.starts_with("invalid limit in `ttft<1`: "));
    }
}
