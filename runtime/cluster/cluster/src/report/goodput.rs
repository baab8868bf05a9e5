//! Goodput: the number of requests that completed within latency limits.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Report;
use crate::config::{RunConfig, Slo, WorkloadSource};
use crate::ledger::record::{Outcome, RequestRecord};

/// A latency of a request for which a limit can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SloMetric {
    /// Time from arrival to the first output token.
    Ttft,
    /// Mean gap between output tokens. A request with a single token has no gap and meets every limit.
    Tpot,
    /// Time from arrival to the last output token.
    E2e,
    /// Time from entering the queue to the first step with the request.
    Queue,
}

impl SloMetric {
    /// The latency of a completed request in nanoseconds; None if the request does not have this latency.
    fn of(self, record: &RequestRecord) -> Option<u64> {
        let since_arrival = |at_ns: Option<u64>| Some(at_ns? - record.arrival_ns);
        match self {
            Self::Ttft => since_arrival(record.first_token_ns),
            Self::E2e => since_arrival(record.last_token_ns),
            Self::Queue => Some(record.scheduled_ns? - record.queued_ns),
            Self::Tpot => {
                let gaps = u64::from(record.output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?);
                Some((record.last_token_ns? - record.first_token_ns?) / gaps)
            }
        }
    }
}

/// Number of requests that completed within all limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Goodput {
    /// Number of requests that arrived.
    pub arrived: u64,
    /// Number of requests that completed within all limits.
    pub good: u64,
}

/// The requests over which goodput is computed. They must match all given conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection<'a> {
    /// Name of the workload.
    pub workload: Option<&'a str>,
    /// Name of the SLO class.
    pub slo_class: Option<&'a str>,
    /// Tenant of the requests.
    pub tenant: Option<u64>,
}

/// SLOs of a workload's requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadSlos {
    /// Tenant of the requests.
    pub tenant: u64,
    /// SLOs by class of requests.
    pub slos: Vec<Option<Slo>>,
}

impl WorkloadSlos {
    pub(super) fn of(config: &RunConfig) -> Vec<Self> {
        let of_workload = |workload: &crate::config::WorkloadConfig| {
            let classes = match &workload.source {
                WorkloadSource::Synthetic { classes, .. } => classes.len() as u32,
                WorkloadSource::Trace { .. } | WorkloadSource::Generated(_) => 1,
            };
            let slos = (0..classes).map(|class| workload.slo_of(class).cloned()).collect();
            Self { tenant: workload.tenant, slos }
        };
        config.workloads.iter().map(of_workload).collect()
    }
}

impl Slo {
    pub(crate) fn is_kept(&self, record: &RequestRecord) -> bool {
        let limits = [(SloMetric::Ttft, self.ttft_ns), (SloMetric::Tpot, self.tpot_ns), (SloMetric::E2e, self.e2e_ns)];
        let is_kept = |(metric, limit_ns): (SloMetric, Option<u64>)| {
            limit_ns.is_none_or(|limit_ns| metric.of(record).is_none_or(|ns| ns <= limit_ns))
        };
        record.outcome == Outcome::Completed && limits.into_iter().all(is_kept)
    }
}

/// Number of requests that met their SLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SloCounts {
    /// Number of requests that arrived.
    pub requests: u64,
    /// Number of requests that met their SLO.
    pub good: u64,
    /// `good` divided by `requests`.
    pub ratio: f64,
    /// Requests that met their SLO per second of virtual time.
    pub rate_per_s: f64,
}

impl SloCounts {
    fn count(&mut self, is_good: bool) {
        self.requests += 1;
        self.good += u64::from(is_good);
    }

    fn finish(&mut self, seconds: f64) {
        self.ratio = self.good as f64 / self.requests.max(1) as f64;
        self.rate_per_s = if seconds > 0.0 { self.good as f64 / seconds } else { 0.0 };
    }
}

/// Counts of an SLO class, in total and by tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SloClassReport {
    /// Counts over all requests.
    #[serde(flatten)]
    pub all: SloCounts,
    /// Counts by tenant.
    pub tenants: BTreeMap<u64, SloCounts>,
}

impl Report {
    /// SLO of a request, if it has one.
    #[must_use]
    pub fn slo_of(&self, record: &RequestRecord) -> Option<&Slo> {
        self.workload_slos.get(record.workload as usize)?.slos.get(record.class as usize)?.as_ref()
    }

    pub(super) fn count_slos(&self) -> BTreeMap<String, SloClassReport> {
        let mut classes: BTreeMap<String, SloClassReport> = BTreeMap::new();
        if self.workload_slos.iter().all(|workload| workload.slos.iter().all(Option::is_none)) {
            return classes;
        }
        self.for_each_request(|record| {
            let Some(slo) = self.slo_of(record) else { return };
            let is_good = slo.is_kept(record);
            let class = classes.entry(slo.class.clone()).or_default();
            class.all.count(is_good);
            class.tenants.entry(self.workload_slos[record.workload as usize].tenant).or_default().count(is_good);
        });
        let seconds = self.duration_ms / 1e3;
        for class in classes.values_mut() {
            class.all.finish(seconds);
            class.tenants.values_mut().for_each(|tenant| tenant.finish(seconds));
        }
        classes
    }

    /// Counts the selected requests that completed and met every limit. Each limit is a function that tests a
    /// latency in nanoseconds. Without limits, counts the requests that met their SLO.
    #[must_use]
    pub fn goodput(&self, of: Selection<'_>, limits: &[(SloMetric, &dyn Fn(u64) -> bool)]) -> Goodput {
        let index = of.workload.map(|name| self.workload_names.iter().position(|known| known == name));
        let mut goodput = Goodput::default();
        self.for_each_request(|record| {
            let slo = self.slo_of(record);
            let is_asked = index.is_none_or(|index| index == Some(record.workload as usize))
                && of.slo_class.is_none_or(|class| slo.is_some_and(|slo| slo.class == class))
                && of.tenant.is_none_or(|tenant| self.workload_slos[record.workload as usize].tenant == tenant)
                && (!limits.is_empty() || slo.is_some());
            if !is_asked {
                return;
            }
            goodput.arrived += 1;
            let keeps_all = || limits.iter().all(|(metric, keeps)| metric.of(record).is_none_or(keeps));
            let is_good = match slo.filter(|_| limits.is_empty()) {
                Some(slo) => slo.is_kept(record),
                None => record.outcome == Outcome::Completed && keeps_all(),
            };
            goodput.good += u64::from(is_good);
        });
        goodput
    }
}
