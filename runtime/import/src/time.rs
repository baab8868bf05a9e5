//! Times of other tools as whole nanoseconds.

use crate::error::Problem;

/// Beyond this no time of a measurement can be: 292 years.
const MAX_NS: f64 = 9.2e18;

/// A duration in a unit of `ns_per_unit`, which must not be below zero.
pub(crate) fn duration_ns(field: &str, value: f64, ns_per_unit: f64) -> Result<u64, Problem> {
    let ns = (value * ns_per_unit).round();
    if ns.is_finite() && (0.0..MAX_NS).contains(&ns) {
        return Ok(ns as u64);
    }
    Err(Problem::new(field, format!("{value} is no duration; it must be a number from 0 on")))
}

/// Seconds on a clock that starts near zero, to the nanosecond.
pub(crate) fn clock_ns(field: &str, seconds: f64) -> Result<i128, Problem> {
    let ns = (seconds.fract() * 1e9).round();
    if seconds.is_finite() && seconds.abs() * 1e9 < MAX_NS {
        return Ok(seconds.trunc() as i128 * 1_000_000_000 + ns as i128);
    }
    Err(Problem::new(field, format!("{seconds} is no time in seconds")))
}

/// Seconds since 1970, to the microsecond: a double holds no more of them.
pub(crate) fn unix_ns(field: &str, seconds: f64) -> Result<i128, Problem> {
    let us = (seconds.fract() * 1e6).round();
    clock_ns(field, seconds)?;
    Ok(seconds.trunc() as i128 * 1_000_000_000 + us as i128 * 1000)
}

/// A time since 1970 as captures have it.
pub(crate) fn started_unix_ns(earliest: Option<i128>) -> Option<u64> {
    earliest.and_then(|ns| u64::try_from(ns).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_become_the_time_that_was_written() {
        assert_eq!(unix_ns("t", 1_700_000_005.045_2), Ok(1_700_000_005_045_200_000));
        assert_eq!(clock_ns("t", 15_823.144_060_012), Ok(15_823_144_060_012));
        assert_eq!(clock_ns("t", -1.5), Ok(-1_500_000_000));
        assert_eq!(duration_ns("t", 45.2, 1e6), Ok(45_200_000));
        for wrong in [f64::NAN, f64::INFINITY, 1e300] {
            assert!(clock_ns("t", wrong).is_err() && unix_ns("t", wrong).is_err());
            assert!(duration_ns("t", wrong, 1e6).is_err());
        }
        assert!(duration_ns("t", -0.1, 1e6).is_err());
    }
}
