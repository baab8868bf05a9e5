//! Checks measured points and interpolates them.

use super::error::{PointsFault, PointsProblem};

/// A named list of numbers that is not checked yet.
#[derive(Clone, Debug)]
pub struct Column {
    /// Name of the column in errors.
    pub name: String,
    /// The numbers.
    pub values: Vec<f64>,
}

impl Column {
    fn problem(&self, fault: PointsFault) -> PointsProblem {
        let array = self.name.clone();
        PointsProblem { array, fault }
    }

    /// Reports values that are negative or not finite, and a wrong length.
    fn check(&self, expected: Option<(usize, String)>, problems: &mut Vec<PointsProblem>) {
        let count = self.values.len();
        if let Some((expected, why)) = expected
            && expected != count
        {
            problems.push(self.problem(PointsFault::WrongLength { count, expected, why }));
        }
        let bad = |value: &f64| !value.is_finite() || *value < 0.0;
        if let Some(index) = self.values.iter().position(bad) {
            let value = self.values[index];
            problems.push(self.problem(PointsFault::BadValue { index, value }));
        }
    }

    /// Also reports an axis that is too short or does not increase.
    fn check_axis(&self, min: usize, problems: &mut Vec<PointsProblem>) {
        let before = problems.len();
        self.check(None, problems);
        let count = self.values.len();
        if count < min {
            problems.push(self.problem(PointsFault::TooFew { count, min }));
        }
        // A NaN has already been reported.
        if problems.len() == before
            && let Some(index) = self.values.windows(2).position(|pair| pair[0] >= pair[1])
        {
            problems.push(self.problem(PointsFault::NotIncreasing {
                index: index + 1,
                value: self.values[index + 1],
                before: self.values[index],
            }));
        }
    }
}

/// Prefill time as a function of new tokens: straight lines between measured points. The first and the last line
/// continue beyond the points, but never below 0.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefillCurve(Series);

impl PrefillCurve {
    /// Checks the points: at least two, strictly increasing token counts, all values finite and at least 0. Times are
    /// in milliseconds.
    ///
    /// # Errors
    /// Every problem, with the names of the columns.
    pub fn new(new_tokens: Column, ttft_ms: Column) -> Result<PrefillCurve, Vec<PointsProblem>> {
        let mut problems = Vec::new();
        new_tokens.check_axis(2, &mut problems);
        let expected = (new_tokens.values.len(), format!("as in `{}`", new_tokens.name));
        ttft_ms.check(Some(expected), &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        let points = new_tokens.values.into_iter().zip(ttft_ms.values).collect();
        Ok(PrefillCurve(Series::with_end_segments(points)))
    }

    /// The prefill time of a step, in milliseconds.
    #[must_use]
    pub fn ttft_ms(&self, new_tokens: f64) -> f64 {
        self.0.at(new_tokens).max(0.0)
    }
}

/// Decode time as a function of occupied KV tokens and mean context length.
///
/// The points form one series for each measured context length. A lookup interpolates linearly over KV tokens in the
/// two series around the wanted context length, and then linearly between the two results. Beyond the measured
/// contexts, the line through the two nearest results continues. On a full grid this is the usual bilinear
/// interpolation. Results are never below 0.
///
/// Beyond the measured KV tokens, a grid continues its first and last line, as Dynamo does. A profiler's sweep covers
/// other loads at every context length, so the ends matter more and single points are noisy. Its series continue with
/// their mean slope from the first to the last point. A context length measured only once uses the mean slope of the
/// nearest context length with two points.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodeSurface {
    /// One series for each context length, in increasing order. Never empty.
    rows: Vec<(f64, Series)>,
}

impl DecodeSurface {
    /// Checks a full grid. For each of `active_kv_tokens` (at least two), `itl_ms` holds the times at every one of
    /// `context_tokens` (at least one). Both axes must increase strictly. Times are in milliseconds.
    ///
    /// # Errors
    /// Every problem, with the names of the columns.
    pub fn grid(
        active_kv_tokens: Column,
        context_tokens: Column,
        itl_ms: Column,
    ) -> Result<DecodeSurface, Vec<PointsProblem>> {
        let mut problems = Vec::new();
        active_kv_tokens.check_axis(2, &mut problems);
        context_tokens.check_axis(1, &mut problems);
        let contexts = context_tokens.values.len();
        let why = format!("one per `{}` and `{}`", active_kv_tokens.name, context_tokens.name);
        let expected = active_kv_tokens.values.len() * contexts;
        itl_ms.check(Some((expected, why)), &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        let row = |column: usize| {
            let times = itl_ms.values.iter().skip(column).step_by(contexts);
            let kv = active_kv_tokens.values.iter();
            Series::with_end_segments(kv.copied().zip(times.copied()).collect())
        };
        let contexts = context_tokens.values.iter().copied().enumerate();
        Ok(DecodeSurface { rows: contexts.map(|(index, context)| (context, row(index))).collect() })
    }

    /// Checks a profiler's sweep: three columns of equal length, one point per row, in any order. At least one context
    /// length needs two points. Times are in milliseconds.
    ///
    /// # Errors
    /// Every problem, with the names of the columns.
    pub fn swept(
        active_kv_tokens: Column,
        context_tokens: Column,
        itl_ms: Column,
    ) -> Result<DecodeSurface, Vec<PointsProblem>> {
        let mut problems = Vec::new();
        let count = itl_ms.values.len();
        let expected = || Some((count, format!("as in `{}`", itl_ms.name)));
        active_kv_tokens.check(expected(), &mut problems);
        context_tokens.check(expected(), &mut problems);
        itl_ms.check(None, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }

        let mut points: Vec<(f64, (f64, f64))> = (0..count)
            .map(|i| {
                let point = (active_kv_tokens.values[i], itl_ms.values[i]);
                (context_tokens.values[i], point)
            })
            .collect();
        // The sort is stable. The remaining values are finite and have a total order.
        points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.0.total_cmp(&b.1.0)));
        for pair in points.windows(2) {
            let [(context_tokens, (kv, _)), next] = [pair[0], pair[1]];
            if context_tokens == next.0 && kv == next.1.0 {
                problems.push(
                    active_kv_tokens.problem(PointsFault::DuplicatePoint { context_tokens, active_kv_tokens: kv }),
                );
            }
        }
        let rows: Vec<(f64, Vec<(f64, f64)>)> = points
            .chunk_by(|a, b| a.0 == b.0)
            .map(|row| (row[0].0, row.iter().map(|(_, point)| *point).collect()))
            .collect();
        if rows.iter().all(|(_, series)| series.len() < 2) {
            problems.push(itl_ms.problem(PointsFault::NoSeries));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let slopes = mean_slopes(&rows);
        Ok(DecodeSurface {
            rows: rows
                .into_iter()
                .zip(slopes)
                .map(|((context, points), slope)| (context, Series::with_slope(points, slope)))
                .collect(),
        })
    }

    /// The decode time of a step, in milliseconds.
    #[must_use]
    pub fn itl_ms(&self, active_kv_tokens: f64, mean_context_tokens: f64) -> f64 {
        if let [(_, only)] = &self.rows[..] {
            return only.at(active_kv_tokens).max(0.0);
        }
        let above =
            self.rows.partition_point(|(context, _)| *context <= mean_context_tokens).clamp(1, self.rows.len() - 1);
        let [(low_context, low), (high_context, high)] = [&self.rows[above - 1], &self.rows[above]];
        line((*low_context, low.at(active_kv_tokens)), (*high_context, high.at(active_kv_tokens)), mean_context_tokens)
            .max(0.0)
    }
}

/// The mean slope of each row. A row with one point takes the slope of the nearest row with several points, or of the
/// shorter context if two rows are equally near.
fn mean_slopes(rows: &[(f64, Vec<(f64, f64)>)]) -> Vec<f64> {
    let own: Vec<(f64, f64)> = rows
        .iter()
        .filter(|(_, points)| points.len() > 1)
        .map(|(context, points)| {
            let (first, last) = (points[0], points[points.len() - 1]);
            (*context, (last.1 - first.1) / (last.0 - first.0))
        })
        .collect();
    let nearest = |context: f64| {
        own.iter()
            .min_by(|a, b| (a.0 - context).abs().total_cmp(&(b.0 - context).abs()))
            .map_or(0.0, |(_, slope)| *slope)
    };
    rows.iter().map(|(context, _)| nearest(*context)).collect()
}

/// Points joined by straight lines, with a slope beyond each end.
#[derive(Clone, Debug, PartialEq)]
struct Series {
    /// Points, strictly increasing in their first number. Never empty.
    points: Vec<(f64, f64)>,
    slope_before: f64,
    slope_after: f64,
}

impl Series {
    fn with_end_segments(points: Vec<(f64, f64)>) -> Series {
        let slope = |a: (f64, f64), b: (f64, f64)| (b.1 - a.1) / (b.0 - a.0);
        let last = points.len() - 1;
        Series { slope_before: slope(points[0], points[1]), slope_after: slope(points[last - 1], points[last]), points }
    }

    /// Continues both ends with the same slope.
    fn with_slope(points: Vec<(f64, f64)>, slope: f64) -> Series {
        Series { points, slope_before: slope, slope_after: slope }
    }

    fn at(&self, x: f64) -> f64 {
        let (first, last) = (self.points[0], self.points[self.points.len() - 1]);
        if x <= first.0 {
            return first.1 + self.slope_before * (x - first.0);
        }
        if x >= last.0 {
            return last.1 + self.slope_after * (x - last.0);
        }
        let above = self.points.partition_point(|point| point.0 <= x);
        line(self.points[above - 1], self.points[above], x)
    }
}

/// The value at `x` of the straight line through `a` and `b`.
fn line(a: (f64, f64), b: (f64, f64), x: f64) -> f64 {
    a.1 + (b.1 - a.1) * ((x - a.0) / (b.0 - a.0))
}
