//! Finds the knee of a throughput curve: the load beyond which throughput rises less than before.
//!
//! Fits two lines, and compares them with a single line. The thresholds and results are those of guidellm's profile
//! `knee` (0.8).

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Knee {
    /// The load at which the two lines meet.
    pub(crate) load: f64,
    /// The lowest measured load that is at least `load`.
    pub(crate) measured: f64,
}

/// Minimum number of points.
pub(crate) const MIN_POINTS: usize = 5;
/// Maximum slope after the knee, as a share of the slope before it.
const MAX_TAIL_SLOPE: f64 = 0.25;
/// Minimum share by which two lines must reduce the squared error of one line.
const MIN_IMPROVEMENT: f64 = 0.5;
/// Minimum share of the highest throughput that the knee must reach.
const MIN_REACHED: f64 = 0.85;
/// Errors and slopes below this count as 0.
const NOTHING: f64 = 1e-12;

/// A line fitted by least squares.
struct Line {
    at_0: f64,
    slope: f64,
    error: f64,
}

impl Line {
    fn of(points: &[(f64, f64)]) -> Self {
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = points.iter().map(|(x, _)| (x - x_mean) * (x - x_mean)).sum();
        let common: f64 = points.iter().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
        let slope = if spread > 0.0 { common / spread } else { 0.0 };
        let at_0 = y_mean - slope * x_mean;
        let error = points.iter().map(|(x, y)| y - (at_0 + slope * x)).map(|residual| residual * residual).sum();
        Self { at_0, slope, error }
    }
}

/// Merges points with equal load into their mean, in order of load.
fn merged(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|one, other| one.0.total_cmp(&other.0));
    let groups = sorted.chunk_by(|one, other| one.0 == other.0);
    groups.map(|group| (group[0].0, group.iter().map(|(_, y)| y).sum::<f64>() / group.len() as f64)).collect()
}

/// Finds the knee of points of load and throughput, if there is one.
pub(crate) fn knee(points: &[(f64, f64)]) -> Option<Knee> {
    let points = merged(points);
    let ends =
        |values: Vec<f64>| values.iter().fold((f64::MAX, f64::MIN), |(low, high), y| (low.min(*y), high.max(*y)));
    let (x_low, x_high) = ends(points.iter().map(|point| point.0).collect());
    let (y_low, y_high) = ends(points.iter().map(|point| point.1).collect());
    if points.len() < MIN_POINTS || x_high <= x_low || y_high <= y_low {
        return None;
    }
    let in_unit = |(x, y): &(f64, f64)| ((x - x_low) / (x_high - x_low), (y - y_low) / (y_high - y_low));
    let unit: Vec<(f64, f64)> = points.iter().map(in_unit).collect();
    let whole = Line::of(&unit).error;
    if whole <= NOTHING {
        return None;
    }
    // The tail has three points, or two if there are only the minimum number of points.
    let end = if points.len() == MIN_POINTS { points.len() - 1 } else { points.len() - 2 };
    let split = |at: usize| {
        let (rise, tail) = (Line::of(&unit[..=at]), Line::of(&unit[at..]));
        let error = rise.error + tail.error;
        let is_knee = rise.slope > 0.0
            && tail.slope <= MAX_TAIL_SLOPE * rise.slope
            && error <= (1.0 - MIN_IMPROVEMENT) * whole
            && points[at].1 >= MIN_REACHED * y_high;
        is_knee.then_some((error, at, rise, tail))
    };
    let best = (2..end).filter_map(split).min_by(|one, other| one.0.total_cmp(&other.0));
    let (_, at, rise, tail) = best?;
    let turn = rise.slope - tail.slope;
    let meeting = if turn.abs() > NOTHING { (tail.at_0 - rise.at_0) / turn } else { unit[at].0 };
    let is_near = (unit[at - 1].0..=unit[at + 1].0).contains(&meeting);
    let load = x_low + if is_near { meeting } else { unit[at].0 } * (x_high - x_low);
    let almost = (x_high - x_low) * 1e-9;
    let measured = points.iter().map(|point| point.0).find(|x| *x >= load - almost).unwrap_or(x_high);
    Some(Knee { load, measured })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results equal those of guidellm 0.8.1 for the same points.
    #[test]
    fn the_knee_is_where_guidellm_finds_it() {
        let of = |loads: &[f64], throughputs: &[f64]| {
            let points: Vec<_> = loads.iter().copied().zip(throughputs.iter().copied()).collect();
            knee(&points).map(|knee| ((knee.load * 1e6).round() / 1e6, knee.measured))
        };
        let doubling = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
        let flat = [100.0, 200.0, 400.0, 790.0, 1500.0, 1550.0, 1560.0];
        assert_eq!(of(&doubling[..7], &flat), Some((16.006_353, 32.0)));
        let smooth = [100.0, 195.0, 380.0, 700.0, 1150.0, 1500.0, 1600.0, 1620.0];
        assert_eq!(of(&doubling, &smooth), Some((29.378_671, 32.0)));
        let in_turn = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(of(&in_turn[..5], &[100.0, 200.0, 300.0, 310.0, 312.0]), Some((3.014_184, 4.0)));
        let tens = [1.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0];
        let falls = [50.0, 500.0, 980.0, 1400.0, 1420.0, 1300.0, 1250.0];
        assert_eq!(of(&tens, &falls), Some((30.137_359, 40.0)));
        let twice = [100.0, 190.0, 210.0, 400.0, 790.0, 800.0, 805.0];
        assert_eq!(of(&[1.0, 2.0, 2.0, 4.0, 8.0, 16.0, 32.0], &twice), Some((8.009_449, 16.0)));
        assert_eq!(of(&in_turn, &[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]), None, "a line");
        assert_eq!(of(&in_turn, &[10.0, 20.0, 30.0, 40.0, 60.0, 90.0]), None, "it rises on");
        assert_eq!(of(&in_turn, &[5.0; 6]), None, "it never rises");
    }
}
