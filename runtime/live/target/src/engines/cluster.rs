//! Runs clusters that the engines of `vcr play` cannot represent. Uses the engines, routers, links and autoscalers
//! of virtual time with the system's clock.

use std::time::Duration;

use vcr_cluster::observe::Observer;
use vcr_cluster::{Report, RunClock, RunConfig, TargetError, TargetReport, simulate_in_real_time};

use crate::drive::clock::Clock;

/// Carries out a run on a cluster in real time. `parts` names the parts of the cluster that need this.
pub(crate) fn run(run: RunConfig, parts: Vec<String>, observer: &mut dyn Observer) -> Result<Report, TargetError> {
    let target = TargetReport { name: "live".to_owned(), cluster_parts: parts, ..TargetReport::default() };
    let mut clock = SystemClock(Clock::start());
    Ok(simulate_in_real_time(run, observer, &mut clock, target)?)
}

struct SystemClock(Clock);

impl RunClock for SystemClock {
    fn now_ns(&mut self) -> u64 {
        self.0.now_ns()
    }

    fn wait_until(&mut self, at_ns: u64) {
        std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(self.0.now_ns())));
    }
}
