//! The report of a run on lanes: their parts, put together as if one thread had run them.

use super::lane::Lane;
use crate::config::{PoolConfig, RunConfig};
use crate::disaggregation::KvHandoffs;
use crate::error::SimError;
use crate::fleet::Fleet;
use crate::ledger::Ledger;
use crate::observe::RunSeries;
use crate::report::{Report, RunEnd, build};

/// # Errors
/// When not one request could ever run.
pub(super) fn report(
    run: &RunConfig,
    pool: &PoolConfig,
    lanes: Vec<Lane>,
    (workload_names, expects_requests): (Vec<String>, bool),
    is_stopped: bool,
) -> Result<Report, SimError> {
    let end_ns = lanes.iter().map(Lane::now_ns).max().unwrap_or(0);
    let mut ledger = Ledger::new(run.workloads.len(), 0, run.samples_steps, run.topology.overheads());
    let (mut ledgers, mut fleets, mut series) = (Vec::new(), Vec::<Fleet>::new(), Vec::<Option<RunSeries>>::new());
    for lane in lanes {
        let (ledger, fleet, own_series) = lane.close(end_ns);
        ledgers.push(ledger);
        fleets.push(fleet);
        series.push(own_series);
    }
    ledger.absorb(ledgers);
    let mut report = build(RunEnd {
        config: run,
        stopped_at_ns: is_stopped.then_some(end_ns),
        expects_requests,
        workload_names,
        ledger,
        fleet: Fleet::joined(pool, fleets.into_iter()),
        handoffs: &KvHandoffs::new(&run.topology),
        profile: None,
    })?;
    report.series = series.into_iter().collect::<Option<Vec<_>>>().and_then(RunSeries::joined);
    Ok(report)
}
