//! A time as a function of the tokens of a step.

use crate::tables::{Priced, Source};

/// Every curve has a knot at each doubling, so that it follows the growth beyond a table's rows up to two million
/// tokens.
const DOUBLINGS: u32 = 22;

/// A time as a function of the tokens of a step: exact at its knots, linear between them.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    knots: Vec<f64>,
    at: Vec<Priced>,
    /// The times at the start and the end of each piece between two knots. The sums come from the knots; the sources
    /// come from points between them.
    between: Vec<(Priced, Priced)>,
}

impl Curve {
    /// Creates a curve with the times of `price` at `knots` and beyond them.
    pub(crate) fn new(knots: &[f64], price: impl Fn(f64) -> (f64, Source)) -> Self {
        let doublings = (0..DOUBLINGS).map(|power| f64::from(1u32 << power));
        let mut knots: Vec<f64> = knots.iter().copied().filter(|&knot| knot >= 1.0).chain(doublings).collect();
        sort(&mut knots);
        let priced: Vec<(f64, Source)> = knots.iter().map(|&knot| price(knot)).collect();
        let between = knots.windows(2).zip(priced.windows(2)).map(|(knots, priced)| {
            let source = price((knots[0] + knots[1]) / 2.0).1.max(Source::Interpolated);
            (Priced::new(priced[0].0, source), Priced::new(priced[1].0, source))
        });
        let between = between.collect();
        Self { at: priced.iter().map(|&(ns, source)| Priced::new(ns, source)).collect(), knots, between }
    }

    /// The time at `tokens`. Beyond the last knot, the last line continues.
    #[inline]
    pub(crate) fn price(&self, tokens: f64) -> Priced {
        let after = self.knots.partition_point(|&knot| knot <= tokens);
        let before = after.saturating_sub(1);
        if self.knots[before] == tokens || tokens < self.knots[0] {
            return self.at[before];
        }
        let before = before.min(self.between.len() - 1);
        let (start, end) = &self.between[before];
        let weight = (tokens - self.knots[before]) / (self.knots[before + 1] - self.knots[before]);
        start.lerp(end, weight)
    }

    pub(crate) fn sum<'a>(curves: impl IntoIterator<Item = (&'a Self, f64)>) -> Self {
        let curves: Vec<(&Self, f64)> = curves.into_iter().collect();
        let knots = union(curves.iter().map(|(curve, _)| *curve));
        let total = |price: &dyn Fn(&Self) -> Priced| {
            let mut total = Priced::default();
            for (curve, count) in &curves {
                total += price(curve) * *count;
            }
            total
        };
        let at = knots.iter().map(|&knot| total(&|curve| curve.price(knot))).collect();
        let between = knots
            .windows(2)
            .map(|pair| (total(&|curve| curve.limit(pair, pair[0])), total(&|curve| curve.limit(pair, pair[1]))));
        Self { between: between.collect(), at, knots }
    }

    /// The greater of two curves, for operators that run at the same time.
    pub(crate) fn max(one: &Self, other: &Self) -> Self {
        let mut knots = union([one, other]);
        let gap = |knot: f64| one.price(knot).ns() - other.price(knot).ns();
        let crossings: Vec<f64> = knots
            .windows(2)
            .filter_map(|pair| {
                let (start, end) = (gap(pair[0]), gap(pair[1]));
                (start * end < 0.0).then(|| pair[0] + (pair[1] - pair[0]) * start / (start - end))
            })
            .collect();
        knots.extend(crossings);
        sort(&mut knots);
        let greater = |at: f64| if gap(at) >= 0.0 { one } else { other };
        let at = knots.iter().map(|&knot| greater(knot).price(knot)).collect();
        let between = knots.windows(2).map(|pair| {
            let curve = greater((pair[0] + pair[1]) / 2.0);
            (curve.limit(pair, pair[0]), curve.limit(pair, pair[1]))
        });
        Self { between: between.collect(), at, knots }
    }

    /// The time at one end of a piece. This curve has no knots inside the piece, which determines the sources.
    fn limit(&self, piece: &[f64], end: f64) -> Priced {
        let middle = (piece[0] + piece[1]) / 2.0;
        let before = self.knots.partition_point(|&knot| knot <= middle).saturating_sub(1).min(self.between.len() - 1);
        let weight = (end - self.knots[before]) / (self.knots[before + 1] - self.knots[before]);
        let (start, stop) = &self.between[before];
        start.lerp(stop, weight)
    }
}

fn union<'a>(curves: impl IntoIterator<Item = &'a Curve>) -> Vec<f64> {
    let mut knots: Vec<f64> = curves.into_iter().flat_map(|curve| curve.knots.iter().copied()).collect();
    sort(&mut knots);
    knots
}

fn sort(knots: &mut Vec<f64>) {
    knots.sort_by(f64::total_cmp);
    knots.dedup();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Curve {
        Curve::new(&[1.0, 3.0, 8.0], |tokens| {
            let source = if tokens > 8.0 {
                Source::Extrapolated
            } else if [1.0, 3.0, 8.0].contains(&tokens) {
                Source::Measured
            } else {
                Source::Interpolated
            };
            (10.0 * tokens, source)
        })
    }

    #[test]
    fn knots_are_measured_and_lines_between_them_are_not() {
        let curve = steps();
        assert_eq!(curve.price(3.0), Priced::new(30.0, Source::Measured));
        assert_eq!(curve.price(5.0).of(Source::Interpolated), 50.0);
        assert_eq!(curve.price(20.0).of(Source::Extrapolated), 200.0);
        assert!((curve.price(1e7).ns() - 1e8).abs() < 1.0);
    }

    #[test]
    fn sums_and_maxima_keep_sources_apart() {
        let curve = steps();
        let flat = Curve::new(&[], |_| (45.0, Source::Formula));
        let sum = Curve::sum([(&curve, 2.0), (&flat, 1.0)]);
        assert_eq!(sum.price(3.0).shares(), [60.0 / 105.0, 0.0, 0.0, 45.0 / 105.0]);
        assert_eq!(sum.price(5.0).of(Source::Interpolated), 100.0);
        let max = Curve::max(&curve, &flat);
        assert_eq!(max.price(3.0), Priced::new(45.0, Source::Formula));
        assert_eq!(max.price(4.25).ns(), 45.0);
        assert!((max.price(4.75).of(Source::Interpolated) - 47.5).abs() < 1e-9);
    }
}
