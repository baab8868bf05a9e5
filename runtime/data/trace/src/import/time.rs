//! Converts the times of other tools to whole nanoseconds.

use crate::import::error::Problem;

/// Times on a clock are at most 126 years, and durations at most 31 years, so that the sum of an arrival and all
/// times of a request cannot overflow.
const MAX_CLOCK_NS: f64 = 4e18;
const MAX_DURATION_NS: f64 = 1e18;

/// Converts a duration whose unit has `ns_per_unit` nanoseconds. It must not be negative.
pub(crate) fn duration_ns(field: &str, value: f64, ns_per_unit: f64) -> Result<u64, Problem> {
    let ns = (value * ns_per_unit).round();
    if ns.is_finite() && (0.0..MAX_DURATION_NS).contains(&ns) {
        return Ok(ns as u64);
    }
    Err(Problem::new(field, format!("invalid duration {value}: expected 0 to 31 years")))
}

/// Converts a time on a clock whose unit has `ns_per_unit` nanoseconds. Exact to the nanosecond if a double is
/// precise enough.
pub(crate) fn clock_ns(field: &str, time: f64, ns_per_unit: u32) -> Result<i128, Problem> {
    let ns = (time.fract() * f64::from(ns_per_unit)).round();
    if time.is_finite() && time.abs() * f64::from(ns_per_unit) < MAX_CLOCK_NS {
        return Ok(time.trunc() as i128 * i128::from(ns_per_unit) + ns as i128);
    }
    Err(Problem::new(field, format!("invalid time {time}: expected one within 126 years of the start of its clock")))
}

/// Converts seconds since 1970, rounded to a microsecond, which is the precision of a double.
pub(crate) fn unix_ns(field: &str, seconds: f64) -> Result<i128, Problem> {
    let ns = clock_ns(field, seconds, 1_000_000_000)?;
    Ok((ns + 500).div_euclid(1000) * 1000)
}

/// Checks a time that is already in whole nanoseconds since 1970.
pub(crate) fn whole_unix_ns(field: &str, ns: u64) -> Result<i128, Problem> {
    let fits = (ns as f64) < MAX_CLOCK_NS;
    fits.then_some(i128::from(ns))
        .ok_or_else(|| Problem::new(field, format!("invalid time {ns} ns: expected one before 2096")))
}

pub(crate) fn started_unix_ns(earliest: Option<i128>) -> Option<u64> {
    earliest.and_then(|ns| u64::try_from(ns).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_become_the_time_that_was_written() {
        assert_eq!(unix_ns("t", 1_700_000_005.045_2), Ok(1_700_000_005_045_200_000));
        assert_eq!(clock_ns("t", 15_823.144_060_012, 1_000_000_000), Ok(15_823_144_060_012));
        assert_eq!(clock_ns("t", -1.5, 1_000_000_000), Ok(-1_500_000_000));
        assert_eq!(duration_ns("t", 45.2, 1e6), Ok(45_200_000));
        for wrong in [f64::NAN, f64::INFINITY, 1e300] {
            assert!(clock_ns("t", wrong, 1_000_000).is_err() && unix_ns("t", wrong).is_err());
            assert!(duration_ns("t", wrong, 1e6).is_err());
        }
        assert!(duration_ns("t", -0.1, 1e6).is_err());
    }
}
