//! `goodput{ttft<1s,tpot<50ms}`: requests that completed within latency limits.

use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_base::units;
use vcr_cluster::metrics::{Metric, Trend};
use vcr_cluster::{Report, Selection, SloMetric};

use crate::assertion::comparison::{COMPARISONS, Comparison};
use crate::assertion::malformed::Malformed;
use crate::assertion::statistic::Statistic;
/// Latencies, by their names in vLLM's benchmark.
const LATENCIES: [(&str, SloMetric); 5] = [
    ("ttft", SloMetric::Ttft),
    ("tpot", SloMetric::Tpot),
    ("e2e", SloMetric::E2e),
    ("e2el", SloMetric::E2e),
    ("queue", SloMetric::Queue),
];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slo {
    metric: SloMetric,
    comparison: Comparison,
    limit_ns: u64,
}

/// The requests that a goodput covers, and the limits of their latencies.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GoodputOf {
    pub(crate) workload: Option<String>,
    pub(crate) class: Option<String>,
    pub(crate) tenant: Option<u64>,
    /// The limits; empty if the workload's SLO applies.
    slos: Vec<Slo>,
}

impl GoodputOf {
    /// Metrics with limits that a report may lack.
    pub(crate) fn needs(&self) -> impl Iterator<Item = Metric> {
        let slos = self.slos.iter().filter(|slo| slo.metric == SloMetric::Queue);
        slos.map(|_| Metric::Trend(Trend::Queue))
    }
}

/// Parses the part of `text` after `{`: limits, and optionally `workload:NAME`, `class:NAME` and `tenant:NUMBER`.
pub(crate) fn parse(text: &str, rest: &str) -> Result<GoodputOf, Malformed> {
    let Some(inner) = rest.trim().strip_suffix('}') else {
        return Err(Malformed { message: format!("`{text}` has no closing `}}`"), hint: Some(form()) });
    };
    let twice = |what: &str| Malformed::new(format!("`{text}` names two {what}"));
    let mut of = GoodputOf::default();
    for part in inner.split(',').map(str::trim) {
        let (key, value) = part.split_once(':').map_or((part, ""), |(key, value)| (key.trim(), value.trim()));
        match key {
            "workload" if of.workload.is_some() => return Err(twice("workloads")),
            "workload" => of.workload = Some(value.to_owned()),
            "class" if of.class.is_some() => return Err(twice("classes")),
            "class" => of.class = Some(value.to_owned()),
            "tenant" if of.tenant.is_some() => return Err(twice("tenants")),
            "tenant" => {
                let number = value.parse().map_err(|_| {
                    Malformed::new(format!("invalid tenant `{value}` in `{text}`: expected a whole number"))
                })?;
                of.tenant = Some(number);
            }
            _ => of.slos.push(slo(part)?),
        }
    }
    let has_slo = of.class.is_some() || of.tenant.is_some();
    if of.slos.is_empty() && !has_slo { Err(without_limits()) } else { Ok(of) }
}

pub(crate) fn without_limits() -> Malformed {
    Malformed { message: "`goodput` needs latency limits".to_owned(), hint: Some(form()) }
}

fn form() -> String {
    "write the limits as in \"goodput{ttft<1s,tpot<50ms}\", for one workload \"goodput{workload:chat,ttft<1s}\", \
     for the SLO class \"goodput{class:interactive}\""
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
        // Elsewhere, `itl` means every single gap, but a limit applies to one value per request.
        let mean_gap = (name == "itl").then(|| "the mean gap between the tokens of a request is `tpot`".to_owned());
        let close = mean_gap.or_else(|| nearest(name, names()).map(did_you_mean));
        let hint = close.unwrap_or_else(|| format!("limits are set for {}", names().collect::<Vec<_>>().join(", ")));
        return Err(Malformed { message: format!("requests have no latency `{name}`"), hint: Some(hint) });
    };
    let limit_ns = units::duration_ns(rest[operator.len()..].trim());
    let limit_ns = limit_ns.map_err(|error| Malformed::new(format!("invalid limit in `{part}`: {error}")))?;
    Ok(Slo { metric: *metric, comparison, limit_ns })
}

/// The requests that met all limits: their number, their number per second, or their share of all requests that
/// arrived.
pub(crate) fn observe(report: &Report, of: &GoodputOf, statistic: Statistic) -> Option<f64> {
    let keeps: Vec<_> = of
        .slos
        .iter()
        .map(|slo| (slo.metric, move |ns: u64| slo.comparison.holds(ns as f64, slo.limit_ns as f64)))
        .collect();
    let limits: Vec<_> = keeps.iter().map(|(metric, keeps)| (*metric, keeps as &dyn Fn(u64) -> bool)).collect();
    let selection = Selection { workload: of.workload.as_deref(), slo_class: of.class.as_deref(), tenant: of.tenant };
    let goodput = report.goodput(selection, &limits);
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

    fn parsed(text: &str) -> Result<GoodputOf, Malformed> {
        parse(text, text.split_once('{').unwrap().1)
    }

    #[test]
    fn limits_and_workloads_are_read_in_any_order() {
        let ttft = Slo { metric: SloMetric::Ttft, comparison: Comparison::Less, limit_ns: 1_000_000_000 };
        let tpot = Slo { metric: SloMetric::Tpot, comparison: Comparison::AtMost, limit_ns: 50_000_000 };
        let all = GoodputOf { slos: vec![ttft, tpot], ..GoodputOf::default() };
        assert_eq!(parsed("goodput{ttft<1s,tpot<=50ms}"), Ok(all));
        let of_chat = GoodputOf { workload: Some("chat".to_owned()), slos: vec![tpot], ..GoodputOf::default() };
        assert_eq!(parsed("goodput{ tpot <= 50ms, workload: chat }"), Ok(of_chat));
        let of_class = GoodputOf { class: Some("gold".to_owned()), tenant: Some(3), ..GoodputOf::default() };
        assert_eq!(parsed("goodput{class:gold, tenant: 3}"), Ok(of_class));
    }

    #[test]
    fn malformed_limits_say_what_to_write() {
        for (text, message) in [
            ("goodput{}", "`` is not a latency limit"),
            ("goodput{workload:chat}", "`goodput` needs latency limits"),
            ("goodput{ttft<1s", "`goodput{ttft<1s` has no closing `}`"),
            ("goodput{ttft>1s}", "invalid comparison `>` in `ttft>1s`: expected < or <="),
            ("goodput{class:a,class:b}", "`goodput{class:a,class:b}` names two classes"),
            ("goodput{tenant:x}", "invalid tenant `x` in `goodput{tenant:x}`: expected a whole number"),
            ("goodput{tfft<1s}", "requests have no latency `tfft`"),
        ] {
            assert_eq!(parsed(text).unwrap_err().message, message, "{text}");
        }
        assert!(parsed("goodput{ttft<1}").unwrap_err().message.starts_with("invalid limit in `ttft<1`: "));
    }
}
