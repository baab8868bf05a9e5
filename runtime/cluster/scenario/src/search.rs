//! Bisection: searches the highest or lowest value that satisfies a condition.
//!
//! The search assumes that the condition changes only once between the ends of the range. For a load, this holds if
//! more load never helps: if a load satisfies the condition, every lower load does, too.

use serde::Serialize;

/// Maximum number of steps in a range. More steps mean that the tolerance is mistyped.
const MAX_STEPS: f64 = 1e12;

/// Goal of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// The highest value that satisfies the condition. Lower values are expected to satisfy it.
    Highest,
    /// The lowest value that satisfies the condition. Higher values are expected to satisfy it.
    Lowest,
}

/// The values that a search may try: `low`, further values in steps, and `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchRange {
    low: f64,
    high: f64,
    step: f64,
    is_whole: bool,
}

impl SearchRange {
    /// Whole numbers in steps of `tolerance` (default 1).
    ///
    /// # Errors
    /// The reason why there are no such values.
    pub fn whole(low: i64, high: i64, tolerance: Option<f64>) -> Result<Self, String> {
        let step = tolerance.unwrap_or(1.0);
        if step.fract() != 0.0 {
            return Err(format!("invalid tolerance {step}: expected a whole number, as both ends of the range are"));
        }
        Self { low: low as f64, high: high as f64, step, is_whole: true }.checked()
    }

    /// Fractions in steps of `tolerance`. The default is the largest step of at most a hundredth of the range that
    /// is 1, 2 or 5 times a power of ten.
    pub fn fractions(low: f64, high: f64, tolerance: Option<f64>) -> Result<Self, String> {
        let step = tolerance.unwrap_or_else(|| round_step((high - low) / 100.0));
        Self { low, high, step, is_whole: false }.checked()
    }

    fn checked(self) -> Result<Self, String> {
        let Self { low, high, step, .. } = self;
        if !(low.is_finite() && high.is_finite() && low < high) {
            return Err(format!("invalid range {low} to {high}: expected a start below the end"));
        }
        if !(step.is_finite() && step > 0.0) {
            return Err(format!("invalid tolerance {step}: expected a number above 0"));
        }
        if (high - low) / step > MAX_STEPS {
            return Err(format!("invalid tolerance {step}: expected at least {} of the range", 1.0 / MAX_STEPS));
        }
        Ok(self)
    }

    /// Index of the last value; the first is 0.
    fn last(&self) -> u64 {
        // Rounding errors of a step must not add a value before the end.
        ((self.high - self.low) / self.step - 1e-9).ceil().max(1.0) as u64
    }

    /// Value number `index`.
    #[must_use]
    pub fn value(&self, index: u64) -> f64 {
        if index >= self.last() {
            return self.high;
        }
        let value = self.low + index as f64 * self.step;
        // Rounds off the digits that binary fractions add, because names of runs contain values.
        format!("{value:.9}").parse().unwrap_or(value)
    }

    /// Whether all values are whole numbers.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }
}

/// The largest number of at most `most` that is 1, 2 or 5 times a power of ten.
fn round_step(most: f64) -> f64 {
    if !(most.is_finite() && most > 0.0) {
        return most;
    }
    let mut exponent = -12;
    while 10.0 * power_of_ten(exponent) <= most && exponent < 300 {
        exponent += 1;
    }
    let unit = power_of_ten(exponent);
    [5.0, 2.0, 1.0].map(|digit| digit * unit).into_iter().find(|step| *step <= most).unwrap_or(most)
}

/// Parses decimal notation, because the platform's power function may differ.
fn power_of_ten(exponent: i32) -> f64 {
    format!("1e{exponent}").parse().unwrap_or(f64::INFINITY)
}

/// A search in progress.
#[derive(Clone, Debug)]
pub struct Bisection {
    goal: Goal,
    range: SearchRange,
    /// Indices of the closest known values that satisfy the condition (`kept`) and that do not (`broken`).
    kept: Option<u64>,
    broken: Option<u64>,
    climbs: bool,
}

impl Bisection {
    /// A search that has not tried any value.
    #[must_use]
    pub fn new(goal: Goal, range: SearchRange) -> Self {
        Self { goal, range, kept: None, broken: None, climbs: false }
    }

    /// A search on a real server, which must not be overloaded. It doubles the value, starting from the lowest,
    /// until the condition fails. Then it bisects.
    #[must_use]
    pub fn climbing(goal: Goal, range: SearchRange) -> Self {
        Self { climbs: goal == Goal::Highest && range.low > 0.0, ..Self::new(goal, range) }
    }

    /// The end of the range that satisfies the condition if any value does, and the other end.
    fn ends(&self) -> (u64, u64) {
        match self.goal {
            Goal::Highest => (0, self.range.last()),
            Goal::Lowest => (self.range.last(), 0),
        }
    }

    /// Index of the value to try next; None if the search has ended.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        let (easy, hard) = self.ends();
        match (self.kept, self.broken) {
            (None, None) => Some(easy),
            // Even the easiest value fails.
            (None, Some(_)) => None,
            (Some(kept), None) if self.climbs && kept != hard => {
                let twice = (2.0 * self.range.value(kept) - self.range.low) / self.range.step;
                Some((twice.floor() as u64).clamp(kept + 1, hard))
            }
            (Some(kept), None) => (kept != hard).then_some(hard),
            (Some(kept), Some(broken)) => {
                let (low, high) = (kept.min(broken), kept.max(broken));
                (high - low > 1).then_some(low + (high - low) / 2)
            }
        }
    }

    /// Values to try in parallel at first: both ends of the range, because nearly every search tries them.
    #[must_use]
    pub fn begin(&self) -> Vec<u64> {
        let (easy, hard) = self.ends();
        if self.climbs { vec![easy] } else { vec![easy, hard] }
    }

    /// Records whether value number `index` satisfies the condition.
    pub fn note(&mut self, index: u64, holds: bool) {
        // If the easiest value fails, no other value matters.
        if self.kept.is_none() && self.broken.is_some() {
            return;
        }
        if holds {
            self.kept = Some(index);
        } else {
            self.broken = Some(index);
        }
    }

    /// The result so far.
    #[must_use]
    pub fn bracket(&self) -> Bracket {
        let value = |index: Option<u64>| index.map(|index| self.range.value(index));
        Bracket { kept: value(self.kept), broken: value(self.broken) }
    }
}

/// Result of a search: two neighbouring values, or one value if all values have the same result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bracket {
    /// The value that satisfies the condition; absent if no value does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<f64>,
    /// The neighbouring value that does not satisfy the condition; absent if all values do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken: Option<f64>,
}

/// A search of a script, in reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SearchReport {
    /// Name of the searched quantity.
    pub name: String,
    pub goal: Goal,
    /// The lowest value of the range.
    pub from: f64,
    /// The highest value of the range.
    pub to: f64,
    /// Maximum distance of the bracket's values.
    pub tolerance: f64,
    /// The result.
    #[serde(flatten)]
    pub bracket: Bracket,
    /// Number of runs of the search.
    pub runs: u64,
    /// The values that were tried, in order.
    pub probes: Vec<ProbeReport>,
}

/// A value that a search has tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProbeReport {
    pub value: f64,
    /// Whether the value satisfies the condition.
    pub passed: bool,
    /// The failed assertions, as text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
    /// Names of the value's runs that are in the report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<String>,
}

impl SearchReport {
    /// A search that has not tried any value.
    #[must_use]
    pub fn new(name: String, goal: Goal, range: SearchRange) -> Self {
        let SearchRange { low, high, step, .. } = range;
        let bracket = Bracket::default();
        Self { name, goal, from: low, to: high, tolerance: step, bracket, runs: 0, probes: Vec::new() }
    }

    /// Whether the search has made a run with this name.
    #[must_use]
    pub fn has_run(&self, name: &str) -> bool {
        self.probes.iter().any(|probe| probe.runs.iter().any(|run| run == name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Result of a search with the condition `holds`, and the number of values that it tried.
    fn found(goal: Goal, range: SearchRange, holds: impl Fn(f64) -> bool) -> (Bracket, usize) {
        let mut search = Bisection::new(goal, range);
        let mut tried = 0;
        while let Some(index) = search.next() {
            search.note(index, holds(range.value(index)));
            tried += 1;
        }
        (search.bracket(), tried)
    }

    #[test]
    fn every_limit_is_found() {
        let range = SearchRange::whole(1, 64, None).expect("valid");
        for limit in 1..=64 {
            let limit = f64::from(limit);
            let (bracket, tried) = found(Goal::Highest, range, |value| value <= limit);
            let beyond = (limit < 64.0).then_some(limit + 1.0);
            assert_eq!(bracket, Bracket { kept: Some(limit), broken: beyond });
            assert!(tried <= 8, "{tried}");
            let (bracket, tried) = found(Goal::Lowest, range, |value| value >= limit);
            let below = (limit > 1.0).then_some(limit - 1.0);
            assert_eq!(bracket, Bracket { kept: Some(limit), broken: below });
            assert!(tried <= 8, "{tried}");
        }
    }

    #[test]
    fn nothing_is_found_with_one_try() {
        for (goal, end) in [(Goal::Highest, 1.0), (Goal::Lowest, 9.0)] {
            let range = SearchRange::whole(1, 9, None).expect("valid");
            assert_eq!(found(goal, range, |_| false), (Bracket { kept: None, broken: Some(end) }, 1));
            let other = 10.0 - end;
            assert_eq!(found(goal, range, |_| true), (Bracket { kept: Some(other), broken: None }, 2));
        }
    }

    #[test]
    fn both_ends_at_once_change_nothing() {
        let range = SearchRange::whole(1, 9, None).expect("valid");
        for limit in 0..=9 {
            let holds = |value: f64| value <= f64::from(limit);
            let mut search = Bisection::new(Goal::Highest, range);
            for index in search.begin() {
                search.note(index, holds(range.value(index)));
            }
            while let Some(index) = search.next() {
                search.note(index, holds(range.value(index)));
            }
            assert_eq!(search.bracket(), found(Goal::Highest, range, holds).0, "{limit}");
        }
        // A condition that only the hardest value satisfies changes more than once.
        let mut search = Bisection::new(Goal::Highest, range);
        search.begin().into_iter().for_each(|index| search.note(index, range.value(index) == 9.0));
        assert_eq!((search.next(), search.bracket()), (None, Bracket { kept: None, broken: Some(1.0) }));
    }

    #[test]
    fn a_real_server_is_loaded_twice_as_much_each_time_until_it_breaks() {
        let range = SearchRange::whole(4, 1024, None).expect("valid");
        let tried = |limit: f64| {
            let mut search = Bisection::climbing(Goal::Highest, range);
            let mut tried = Vec::new();
            while let Some(index) = search.next() {
                tried.push(range.value(index));
                search.note(index, range.value(index) <= limit);
            }
            (tried, search.bracket())
        };
        let (values, bracket) = tried(20.0);
        assert_eq!(values, [4.0, 8.0, 16.0, 32.0, 24.0, 20.0, 22.0, 21.0]);
        assert_eq!(bracket, Bracket { kept: Some(20.0), broken: Some(21.0) });
        assert_eq!(tried(2.0).0, [4.0]);
        let (values, bracket) = tried(5000.0);
        assert_eq!((values.last(), bracket.kept), (Some(&1024.0), Some(1024.0)));
        let fractions = SearchRange::fractions(0.5, 9.0, Some(0.25)).expect("valid");
        let mut search = Bisection::climbing(Goal::Highest, fractions);
        search.note(0, true);
        assert_eq!(search.next().map(|index| fractions.value(index)), Some(1.0));
    }

    #[test]
    fn fractions_are_as_far_apart_as_they_should() {
        let range = SearchRange::fractions(1.0, 64.0, None).expect("valid");
        assert_eq!((range.step, range.value(0), range.value(1), range.value(126)), (0.5, 1.0, 1.5, 64.0));
        let range = SearchRange::fractions(0.0, 0.3, Some(0.1)).expect("valid");
        assert_eq!((0..=3).map(|index| range.value(index)).collect::<Vec<_>>(), [0.0, 0.1, 0.2, 0.3]);
        let (bracket, _) = found(Goal::Highest, range, |value| value < 0.25);
        assert_eq!(bracket, Bracket { kept: Some(0.2), broken: Some(0.3) });
    }

    #[test]
    fn ranges_without_values_are_refused() {
        assert!(SearchRange::whole(4, 4, None).expect_err("empty").contains("expected a start below the end"));
        assert!(SearchRange::whole(1, 4, Some(0.5)).expect_err("not whole").contains("expected a whole number"));
        assert!(SearchRange::fractions(1.0, 4.0, Some(0.0)).expect_err("none").contains("above 0"));
        assert!(SearchRange::fractions(1.0, f64::NAN, None).is_err());
        assert!(SearchRange::fractions(0.0, 1e9, Some(1e-9)).expect_err("too many").contains("invalid tolerance"));
    }
}
