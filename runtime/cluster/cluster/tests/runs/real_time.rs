//! Tests of runs by a clock: a clock that is never late changes nothing, and a late clock loses nothing.

use std::cell::Cell;

use proptest::prelude::*;
use vcr_cluster::metrics::{Counter, Trend};
use vcr_cluster::observe::{Observer, Unobserved};
use vcr_cluster::{RunClock, RunConfig, SimError, TargetReport, Topology, simulate_in_real_time};

use crate::runs::random::{Case, arb_case};
use crate::runs::{burst, disaggregated};
use crate::support::{MS, assert_conserved, config, mix, pool, run, synthetic};
use vcr_cluster::{Report, RouterConfig, simulate};

/// A clock that overshoots each wait by `late_ns`.
#[derive(Default)]
struct MadeUpClock {
    now_ns: u64,
    late_ns: u64,
}

impl RunClock for MadeUpClock {
    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn wait_until(&mut self, at_ns: u64) {
        assert!(at_ns > self.now_ns, "no wait for a past time");
        self.now_ns = at_ns + self.late_ns;
    }
}

fn by_clock(config: &RunConfig, late_ns: u64) -> Result<Report, SimError> {
    let mut clock = MadeUpClock { now_ns: 0, late_ns };
    let target = TargetReport { name: "live".to_owned(), ..TargetReport::default() };
    simulate_in_real_time(config.clone(), &mut Unobserved, &mut clock, target)
}

/// Runs with a clock that is never late equal runs in virtual time.
#[test]
fn a_clock_that_is_never_late_changes_no_cluster() {
    assert_same_by_clock(48, arb_case());
    assert_same_by_clock(16, arb_case().prop_map(Case::in_ticks));
}

fn assert_same_by_clock(cases: u32, drawn: impl Strategy<Value = Case>) {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases,
        source_file: Some(file!()),
        ..ProptestConfig::default()
    });
    runner
        .run(&drawn, |case| {
            let run_config = case.config();
            match simulate(run_config.clone(), &mut Unobserved) {
                Ok(report) => {
                    let timed = by_clock(&run_config, 0).expect("it runs in virtual time");
                    prop_assert_eq!(&report.fingerprint, &timed.fingerprint);
                    let late = by_clock(&run_config, MS / 7).expect("it runs in virtual time");
                    assert_conserved(&late);
                    prop_assert_eq!(late.unfinished_requests, 0);
                }
                Err(SimError::NothingFits { .. }) => {
                    let is_refused = matches!(by_clock(&run_config, 0), Err(SimError::NothingFits { .. }));
                    prop_assert!(is_refused);
                }
                Err(error) => prop_assert!(false, "{}", error),
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Lateness is measured: requests count from their due time, and steps take their real durations.
#[test]
fn a_late_clock_makes_steps_longer_and_requests_late() {
    let topology = Topology::Aggregated(pool("engines", 1, 4_000, RouterConfig::RoundRobin));
    let config = config(topology, vec![synthetic("burst", burst(8), mix(64.0, 16.0))]);
    let on_time = by_clock(&config, 0).expect("it is valid");
    let late = by_clock(&config, 2 * MS).expect("it is valid");
    let step_ms = |report: &Report| report.metrics.trend(Trend::StepTime).expect("there are steps").mean;
    assert!((step_ms(&late) - step_ms(&on_time) - 2.0).abs() < 0.5, "{} {}", step_ms(&late), step_ms(&on_time));
    let delays =
        |report: &Report| report.target.as_ref().and_then(|target| target.send_delay_ms).expect("they are known");
    assert_eq!((delays(&on_time).max, delays(&on_time).count), (0.0, 8));
    assert!(delays(&late).max >= 2.0, "{:?}", delays(&late));
    for (one, other) in on_time.requests.iter().zip(&late.requests) {
        assert_eq!(one.arrival_ns, other.arrival_ns, "they were due at the same times");
        assert!(other.end_ns > one.end_ns);
    }
}

/// Transfers share their link in real time, and the report has the link.
#[test]
fn transfers_share_a_link_by_a_clock() {
    let shared =
        config(disaggregated(2_000, Some(1_000_000_000)), vec![synthetic("burst", burst(40), mix(300.0, 20.0))]);
    let (planned, timed) = (run(&shared), by_clock(&shared, 0).expect("it is valid"));
    assert_eq!(planned.fingerprint, timed.fingerprint);
    assert!(timed.links[0].bytes > 0);
    assert_eq!(timed.target.expect("it has one").absent.len(), 0, "nothing is unknown");
}

/// An observer that ends a run once some requests have ended.
struct Enough<'a>(&'a Cell<u64>);

impl Observer for Enough<'_> {
    fn wants_stop(&self) -> bool {
        self.0.get() > 3
    }

    fn progress(&mut self, progress: &vcr_cluster::observe::Progress) {
        self.0.set(progress.ended);
    }
}

/// A stop is noticed even while no event occurs, and the report has the results so far.
#[test]
fn runs_by_a_clock_can_be_stopped() {
    let topology = Topology::Aggregated(pool("engines", 1, 4_000, RouterConfig::RoundRobin));
    let config = config(topology, vec![synthetic("burst", burst(200), mix(300.0, 60.0))]);
    let ended = Cell::new(0);
    let mut clock = MadeUpClock::default();
    let report = simulate_in_real_time(config, &mut Enough(&ended), &mut clock, TargetReport::default());
    let report = report.expect("a stopped run has a report");
    assert!(report.partial && report.unfinished_requests > 0);
    assert!(report.metrics.count(Counter::Completed) > 3);
}
