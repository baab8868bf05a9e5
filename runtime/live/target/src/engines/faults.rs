//! Applies the planned faults of a run to live engines.

use std::collections::VecDeque;

use vcr_cluster::observe::{Incident, RunSeries};
use vcr_cluster::{FaultConfig, FaultKind, PoolRole, RunConfig};
use vcr_live::{Command, FaultRule};

use super::series::EngineSeries;
use super::steps::RunSteps;
use crate::drive::Plan;
use crate::drive::clock::Clock;

#[derive(Clone, Debug, PartialEq)]
struct Change {
    at_ns: u64,
    pool: PoolRole,
    engine: u16,
    kind: ChangeKind,
}

#[derive(Clone, Debug, PartialEq)]
enum ChangeKind {
    Crash {
        restart_after_ns: Option<u64>,
    },
    /// Each step takes this many times as long.
    Slow(f64),
}

pub(crate) struct FaultPlan {
    engines: EngineSeries,
    steps: RunSteps,
    changes: VecDeque<Change>,
}

impl FaultPlan {
    /// Plans the faults of a run. A fault of an engine affects all its ranks.
    pub(crate) fn new(engines: EngineSeries, steps: &RunSteps, run: &RunConfig) -> Self {
        let ranks = |role: PoolRole| run.topology.pool(role).map_or(1, |pool| pool.data_parallel.size);
        Self { engines, steps: steps.clone(), changes: changes(&run.faults, ranks).into() }
    }

    pub(crate) fn take_series(&mut self) -> Option<RunSeries> {
        self.engines.take()
    }
}

/// Whether crashed engines of a pool restart.
pub(crate) fn restarts(faults: &[FaultConfig], role: PoolRole) -> bool {
    let comes_back = |fault: &FaultConfig| matches!(fault.kind, FaultKind::Crash { restart_after_ns: Some(_) });
    faults.iter().any(|fault| fault.pool == role && comes_back(fault))
}

/// The faults as changes in order of time. The end of a slow-down is a change, too.
fn changes(faults: &[FaultConfig], ranks: impl Fn(PoolRole) -> u32) -> Vec<Change> {
    let mut changes = Vec::new();
    let each_rank = |fault: &FaultConfig| {
        let count = ranks(fault.pool);
        fault.engine * count..(fault.engine + 1) * count
    };
    let of_ranks = faults.iter().flat_map(|fault| each_rank(fault).map(move |rank| (fault, rank)));
    for (fault, rank) in of_ranks {
        let (at_ns, pool, engine) = (fault.at_ns, fault.pool, rank as u16);
        match fault.kind {
            FaultKind::Crash { restart_after_ns } => {
                changes.push(Change { at_ns, pool, engine, kind: ChangeKind::Crash { restart_after_ns } });
            }
            FaultKind::SlowDown { factor, duration_ns } => {
                changes.push(Change { at_ns, pool, engine, kind: ChangeKind::Slow(factor) });
                if let Some(duration_ns) = duration_ns {
                    let at_ns = at_ns.saturating_add(duration_ns);
                    changes.push(Change { at_ns, pool, engine, kind: ChangeKind::Slow(1.0) });
                }
            }
        }
    }
    changes.sort_by_key(|change| change.at_ns);
    changes
}

impl Plan for FaultPlan {
    fn begin(&mut self, clock: Clock) {
        self.steps.begin(clock);
    }

    fn next_ns(&self) -> Option<u64> {
        self.changes.front().map(|change| change.at_ns)
    }

    fn act(&mut self, now_ns: u64) {
        while let Some(change) = self.changes.pop_front_if(|change| change.at_ns <= now_ns) {
            let command = match change.kind {
                ChangeKind::Slow(factor) => Command::SetTimeScale(1.0 / factor),
                ChangeKind::Crash { restart_after_ns } => {
                    let restart = restart_after_ns.map_or(String::new(), |ns| format!(",restart={ns}ns"));
                    let rule: Result<FaultRule, _> = format!("crash:count=1{restart}").parse();
                    Command::AddFault(rule.expect("the rule is well-formed"))
                }
            };
            let incident = match change.kind {
                ChangeKind::Crash { .. } => Incident::Crash,
                ChangeKind::Slow(1.0) => Incident::SlowDownEnd,
                ChangeKind::Slow(_) => Incident::SlowDown,
            };
            let engine = self.engines.incident(now_ns, change.pool, change.engine, incident);
            self.steps.incident(engine, now_ns, incident);
            self.engines.pool(change.pool).map(|handle| handle.command(Some(change.engine), &command));
        }
    }

    fn sample(&mut self, now_ns: u64) {
        self.engines.sample(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_downs_end() {
        let fault = |at_ns, kind| FaultConfig { at_ns, pool: PoolRole::Aggregated, engine: 1, kind };
        let slow = fault(5, FaultKind::SlowDown { factor: 3.0, duration_ns: Some(10) });
        let crash = fault(7, FaultKind::Crash { restart_after_ns: Some(2) });
        let kinds: Vec<(u64, ChangeKind)> =
            changes(&[slow, crash], |_| 1).into_iter().map(|change| (change.at_ns, change.kind)).collect();
        let crash = ChangeKind::Crash { restart_after_ns: Some(2) };
        assert_eq!(kinds, [(5, ChangeKind::Slow(3.0)), (7, crash), (15, ChangeKind::Slow(1.0))]);
    }

    #[test]
    fn faults_happen_to_all_ranks_of_an_engine() {
        let kind = FaultKind::Crash { restart_after_ns: None };
        let fault = FaultConfig { at_ns: 5, pool: PoolRole::Aggregated, engine: 1, kind };
        let ranks: Vec<u16> = changes(&[fault], |_| 3).into_iter().map(|change| change.engine).collect();
        assert_eq!(ranks, [3, 4, 5]);
    }
}
