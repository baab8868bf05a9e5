//! Metrics of requests, measured and simulated.

use vcr_compare::{Comparison, Metric, Pairs, Statistic};

use crate::measurements::data::Measurements;
use crate::measurements::measured::Measured;
use crate::simulate::{Simulated, Simulation};

pub(crate) fn measured_ns(metric: Metric, request: &Measured) -> Option<f64> {
    match metric {
        Metric::Ttft => request.ttft_ns.map(|ns| ns as f64),
        Metric::Itl => request.mean_itl_ns(),
        Metric::E2e => request.e2e_ns.map(|ns| ns as f64),
        Metric::Queue => request.queue_ns.map(|ns| ns as f64),
    }
}

pub(crate) fn simulated_ns(metric: Metric, request: &Simulated) -> Option<f64> {
    match metric {
        Metric::Ttft => request.ttft_ns.map(|ns| ns as f64),
        Metric::Itl => {
            let gaps = request.output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
            Some(request.e2e_ns?.checked_sub(request.ttft_ns?)? as f64 / f64::from(gaps))
        }
        Metric::E2e => request.e2e_ns.map(|ns| ns as f64),
        Metric::Queue => request.queue_ns.map(|ns| ns as f64),
    }
}

pub(crate) fn comparisons(measurements: &Measurements, simulation: &Simulation) -> Vec<Comparison> {
    if let Some(point) = measurements.point() {
        let of = |(metric, statistic, measured_ms): &(Metric, Statistic, f64)| {
            let times = simulation.requests.iter().filter_map(|request| simulated_ns(*metric, request)).collect();
            let simulated_ms = statistic.of(times) / 1e6;
            Comparison { metric: *metric, statistic: *statistic, measured_ms: *measured_ms, simulated_ms }
        };
        return point.reported.iter().map(of).collect();
    }
    let pairs = pairs(measurements, simulation);
    pairs.iter().flat_map(|pairs| Statistic::ALL.map(|statistic| pairs.compare(statistic))).collect()
}

pub(crate) fn pairs(measurements: &Measurements, simulation: &Simulation) -> Vec<Pairs> {
    let both = || measurements.requests().iter().zip(&simulation.requests).filter(|(measured, _)| measured.is_whole);
    let of = |metric: Metric| Pairs {
        metric,
        pairs: both().filter_map(|(m, s)| Some((measured_ns(metric, m)?, simulated_ns(metric, s)?))).collect(),
    };
    Metric::ALL.map(of).into_iter().filter(|pairs| !pairs.pairs.is_empty()).collect()
}
