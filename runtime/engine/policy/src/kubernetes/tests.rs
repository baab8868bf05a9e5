use alloc::vec;
use alloc::vec::Vec;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn config(controller: Controller) -> ControllerConfig {
    ControllerConfig {
        controller,
        sync_ns: 15 * SECOND,
        scrape_ns: 15 * SECOND,
        window_ns: 0,
        tolerance: 0.1,
        up_window_ns: 0,
        down_window_ns: 300 * SECOND,
        min_engines: 1,
        max_engines: 100,
    }
}

fn waiting(engine: u32, waiting: u64) -> EngineGauges {
    EngineGauges { engine, is_ready: true, waiting, ..EngineGauges::default() }
}

/// The desired number of engines at each tick, given the engines at each tick.
fn answers(config: ControllerConfig, ticks: &[Vec<EngineGauges>], starting: u32, in_front: u64) -> Vec<u32> {
    let mut scaler = KubernetesScaler::new(config).expect("it is valid");
    let tick = |(index, engines): (usize, &Vec<EngineGauges>)| {
        let in_engines: u64 = engines.iter().map(|gauges| gauges.waiting).sum();
        let view = PoolView {
            // A real clock is late.
            now_ns: (index as u64 + 1) * config.tick_ns() + 17,
            up_engines: engines.len() as u32,
            starting_engines: starting,
            waiting_requests: in_engines + in_front,
            ..PoolView::default()
        };
        scaler.scrape(&view, engines);
        scaler.desired(&view)
    };
    ticks.iter().enumerate().map(tick).collect()
}

fn hpa(target: f64) -> ControllerConfig {
    config(Controller::Hpa { metric: Metric::Waiting, target })
}

fn all(engines: u32, each: u64) -> Vec<EngineGauges> {
    (0..engines).map(|engine| waiting(engine, each)).collect()
}

#[test]
fn hpa_keeps_the_mean_at_the_target() {
    assert_eq!(answers(hpa(10.0), &[all(2, 20)], 0, 0), [4]);
    assert_eq!(answers(hpa(100.0), &[all(10, 109)], 0, 0), [10], "within the tolerance of 10 %");
    assert_eq!(answers(hpa(10.0), &[all(10, 12)], 0, 0), [12]);
    assert_eq!(answers(hpa(10.0), &[vec![]], 0, 7), [0], "nothing without engines");
}

/// Pods without metrics count as idle when scaling up, and as at the target when scaling down.
#[test]
fn hpa_assumes_the_metrics_of_starting_engines() {
    // Two of 25 and two of 0: 50 / 4 = 12.5, so 5 engines, not 5 plus the 2 that start.
    assert_eq!(answers(hpa(10.0), &[all(2, 25)], 2, 0), [5]);
    // The ratio is 1.5 for the two engines alone, and 0.75 with two idle ones. So the number stays.
    assert_eq!(answers(hpa(10.0), &[all(2, 15)], 2, 0), [4]);
    // Two of 5 and two of 10: 7.5 on average.
    let quick = ControllerConfig { down_window_ns: 0, ..hpa(10.0) };
    assert_eq!(answers(quick, &[all(2, 5)], 2, 0), [3]);
}

#[test]
fn hpa_adds_at_most_four_or_as_many_again_and_waits_before_it_removes() {
    assert_eq!(answers(hpa(1.0), &[all(1, 100)], 0, 0), [5]);
    assert_eq!(answers(hpa(1.0), &[all(8, 100)], 0, 0), [16]);
    // Scaling down comes 300 s after the last recommendation of four.
    let mut ticks = vec![all(4, 10); 2];
    ticks.extend(vec![all(4, 2); 21]);
    let answered = answers(hpa(10.0), &ticks, 0, 0);
    assert_eq!((answered[20], answered[21]), (4, 1), "{answered:?}");
    // For scaling up, the smallest recommendation in a window of 30 s counts.
    let slow = ControllerConfig { up_window_ns: 30 * SECOND, ..hpa(10.0) };
    assert_eq!(answers(slow, &[all(2, 10), all(2, 30), all(2, 20)], 0, 0), [2, 2, 4]);
}

/// HPA decides every 15 s. The metrics are scraped every 10 s and averaged over 30 s.
#[test]
fn samples_are_averaged_over_the_window() {
    let config = ControllerConfig { scrape_ns: 10 * SECOND, window_ns: 30 * SECOND, ..hpa(10.0) };
    assert_eq!(config.tick_ns(), 5 * SECOND);
    // The scrapes at 10, 20 and 30 s see 0, 30 and 60: 30 on average.
    let mut ticks = vec![all(1, 99), all(1, 0), all(1, 99), all(1, 30), all(1, 99), all(1, 60)];
    assert_eq!(answers(config, &ticks, 0, 0), [1, 1, 1, 1, 1, 3]);
    ticks.truncate(3);
    assert_eq!(answers(config, &ticks, 0, 0)[2], 1, "0 waiting: no fewer than one");
}

#[test]
fn keda_shares_the_total_out_and_comes_from_none() {
    let keda = |metric| Controller::Keda {
        metric,
        threshold: 10.0,
        activation: 0.0,
        polling_ns: 30 * SECOND,
        cooldown_ns: 60 * SECOND,
    };
    let of_engines = config(keda(Metric::Waiting));
    assert_eq!(answers(of_engines, &[vec![waiting(0, 41), waiting(1, 0)]], 0, 0), [5]);
    // KEDA looks every 30 s while there are no engines.
    let in_front = config(keda(Metric::GatewayQueue));
    assert_eq!(answers(in_front, &[vec![], vec![], vec![]], 0, 12), [0, 1, 0]);
    // The trigger is last active at 15 s, so all engines are removed at 75 s.
    let to_none = ControllerConfig { min_engines: 0, ..of_engines };
    let ticks: Vec<_> = [1, 0, 0, 0, 0, 0].into_iter().map(|each| all(1, each)).collect();
    assert_eq!(answers(to_none, &ticks, 0, 0), [1, 1, 1, 1, 0, 0]);
}

/// Between one engine and the maximum, HPA decides with its stabilization: the cooldown has ended at 75 s.
#[test]
fn keda_leaves_scaling_down_to_hpa() {
    let controller = Controller::Keda {
        metric: Metric::Waiting,
        threshold: 10.0,
        activation: 0.0,
        polling_ns: 30 * SECOND,
        cooldown_ns: 60 * SECOND,
    };
    let mut ticks = vec![all(4, 10)];
    ticks.extend(vec![all(4, 0); 21]);
    let answered = answers(config(controller), &ticks, 0, 0);
    assert_eq!((answered[19], answered[20]), (4, 1), "{answered:?}");
}

#[test]
fn wva_adds_or_removes_one_by_its_spare_capacity() {
    let wva = ControllerConfig {
        window_ns: 60 * SECOND,
        down_window_ns: 0,
        ..config(Controller::Wva { analysis_ns: 15 * SECOND, thresholds: Thresholds::default() })
    };
    let usage = |engine, kv_usage| EngineGauges { engine, is_ready: true, kv_usage, ..EngineGauges::default() };
    // The mean spare KV is 0.05, which is below 0.1.
    assert_eq!(answers(wva, &[vec![usage(0, 0.75), usage(1, 0.75)]], 0, 0), [3]);
    assert_eq!(answers(wva, &[vec![usage(0, 0.75), usage(1, 0.75)]], 1, 0), [3], "one starts already");
    // A queue of 3 leaves 2 spare, which is below 3.
    assert_eq!(answers(wva, &[all(2, 3)], 0, 0), [3]);
    // A saturated engine does not count, and the other engine has room.
    assert_eq!(answers(wva, &[vec![usage(0, 0.9), usage(1, 0.3)]], 0, 0), [2]);
    // Two engines at 0.3 give one at 0.6, with 0.2 to spare. Two at 0.4 would leave nothing to spare.
    assert_eq!(answers(wva, &[vec![usage(0, 0.3), usage(1, 0.3)]], 0, 0), [1]);
    assert_eq!(answers(wva, &[vec![usage(0, 0.4), usage(1, 0.4)]], 0, 0), [2]);
    // The peak within a minute counts. With a window of 0, the latest sample counts.
    let ticks = [all(2, 3), all(3, 0)];
    assert_eq!(answers(wva, &ticks, 0, 0), [3, 3]);
    assert_eq!(answers(ControllerConfig { window_ns: 0, ..wva }, &ticks, 0, 0), [3, 2]);
    // One engine more than twelve is within HPA's tolerance: 13 / 12 is 1.083.
    assert_eq!(answers(wva, &[all(12, 3)], 0, 0), [12]);
    assert_eq!(answers(wva, &[all(9, 3)], 0, 0), [10]);
}

#[test]
fn bad_numbers_are_named() {
    let name = |config: ControllerConfig| config.check().expect_err("it is bad").0;
    assert_eq!(name(hpa(0.0)), "target");
    assert_eq!(name(ControllerConfig { sync_ns: 0, ..hpa(1.0) }), "interval");
    assert_eq!(name(ControllerConfig { scrape_ns: 1_500_000, ..hpa(1.0) }), "scrape");
    assert_eq!(name(ControllerConfig { tolerance: -1.0, ..hpa(1.0) }), "tolerance");
    assert_eq!(name(config(Controller::Hpa { metric: Metric::GatewayQueue, target: 1.0 })), "metric");
    let thresholds = Thresholds { kv_spare: f64::NAN, ..Thresholds::default() };
    assert_eq!(name(config(Controller::Wva { analysis_ns: SECOND, thresholds })), "kv_spare_trigger");
}
