//! Operators: each converts the rows of its table to times for the shapes of a model.

pub(crate) mod attention;
pub(crate) mod collective;
pub(crate) mod experts;
pub(crate) mod gemm;

use crate::tables::Source;

/// A row is an outlier if its time exceeds that of a larger size by more than this ratio. Nearly all rows are within a
/// quarter. Some take 2 to 18 times as long, which is an error of measurement: work on fewer rows can be padded.
const OUTLIER: f64 = 1.5;

/// Sizes and times in nanoseconds, in order of the sizes. Never empty.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    sizes: Vec<f64>,
    times_ns: Vec<f64>,
}

impl Rows {
    /// Takes rows in any order. For equal sizes, the first row applies. None if there are no rows.
    pub(crate) fn new(rows: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let mut rows: Vec<(f64, f64)> = rows.into_iter().collect();
        rows.sort_by(|one, other| one.0.total_cmp(&other.0));
        rows.dedup_by(|later, earlier| later.0 == earlier.0);
        let (sizes, times_ns) = rows.into_iter().unzip();
        let rows = Self { sizes, times_ns };
        (!rows.sizes.is_empty()).then_some(rows)
    }

    /// Removes rows that take much longer than a larger row. Interpolation between the other rows replaces them.
    pub(crate) fn without_outliers(self) -> Self {
        let mut least = f64::INFINITY;
        let mut kept: Vec<(f64, f64)> = Vec::with_capacity(self.sizes.len());
        for (&size, &ns) in self.sizes.iter().zip(&self.times_ns).rev() {
            if ns <= OUTLIER * least {
                kept.push((size, ns));
            }
            least = least.min(ns);
        }
        let (sizes, times_ns) = kept.into_iter().rev().unzip();
        Self { sizes, times_ns }
    }

    pub(crate) fn sizes(&self) -> &[f64] {
        &self.sizes
    }

    /// Whether a size is at or between rows.
    pub(crate) fn covers(&self, size: f64) -> bool {
        self.sizes[0] <= size && size <= self.sizes[self.sizes.len() - 1]
    }

    /// The time at a size. Beyond the rows, the time is the limit divided by the median utilisation of the `tail` rows
    /// at that end.
    pub(crate) fn price(&self, size: f64, tail: usize, limit: impl Fn(f64) -> f64) -> (f64, Source) {
        let (count, after) = (self.sizes.len(), self.sizes.partition_point(|&row| row <= size));
        if after > 0 && self.sizes[after - 1] == size {
            return (self.times_ns[after - 1], Source::Measured);
        }
        if self.covers(size) {
            let (low, high) = (self.sizes[after - 1], self.sizes[after]);
            let (below, above) = (self.times_ns[after - 1], self.times_ns[after]);
            return (below + (above - below) * (size - low) / (high - low), Source::Interpolated);
        }
        let end = if after == 0 { 0..tail.min(count) } else { count - tail.min(count)..count };
        let mut utilisations: Vec<f64> = end
            .map(|row| limit(self.sizes[row]) / self.times_ns[row])
            .filter(|utilisation| utilisation.is_finite() && *utilisation > 0.0)
            .collect();
        utilisations.sort_by(f64::total_cmp);
        let nearest = self.times_ns[if after == 0 { 0 } else { count - 1 }];
        let half = utilisations.len() / 2;
        let ns = match utilisations.len() {
            0 => nearest,
            len if len % 2 == 1 => limit(size) / utilisations[half],
            _ => limit(size) / ((utilisations[half - 1] + utilisations[half]) / 2.0),
        };
        (ns, Source::Extrapolated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_exact_lines_between_them_and_utilisation_beyond() {
        let rows = Rows::new([(4.0, 40.0), (1.0, 10.0), (8.0, 100.0), (8.0, 7.0)]).unwrap();
        let limit = |size: f64| 5.0 * size;
        assert_eq!(rows.price(4.0, 1, limit), (40.0, Source::Measured));
        assert_eq!(rows.price(6.0, 1, limit), (70.0, Source::Interpolated));
        // At size 8, the hardware needs 40 of 100 ns, so at size 16 the time is 80 / 0.4.
        assert_eq!(rows.price(16.0, 1, limit), (200.0, Source::Extrapolated));
        // The median utilisation of the last three rows is 0.5.
        assert_eq!(rows.price(16.0, 3, limit), (160.0, Source::Extrapolated));
    }

    #[test]
    fn a_row_that_takes_much_longer_than_a_larger_one_is_left_out() {
        let rows = Rows::new([(1.0, 32.0), (2.0, 33.0), (4.0, 13.0), (8.0, 19.0), (16.0, 60.0), (32.0, 25.0)]);
        let rows = rows.unwrap().without_outliers();
        assert_eq!(rows.sizes(), [4.0, 8.0, 32.0]);
        let limit = |size: f64| size;
        assert_eq!(rows.price(16.0, 1, limit), (21.0, Source::Interpolated));
        // The noise of a measurement is not an outlier.
        let noisy = Rows::new([(1.0, 14.0), (2.0, 10.0), (4.0, 12.0)]).unwrap().without_outliers();
        assert_eq!(noisy.sizes(), [1.0, 2.0, 4.0]);
    }
}
