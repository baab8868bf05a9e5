//! Converts the milliseconds of formulas to the whole nanoseconds of a step.

use std::ops::Range;
use std::time::Duration;

use vcr_core::latency::LatencyError;

/// The longest step of any model: a day. A longer step means a formula outside its range or a wrong unit, and the
/// simulation would seem to hang.
pub const STEP_NS_MAX: u64 = 24 * 3600 * 1_000_000_000;

/// Rounds a price to the nearest nanosecond.
///
/// # Errors
/// If it is not a number, negative, or above [`STEP_NS_MAX`].
pub(crate) fn whole_ns(model: &str, part: &str, ms: f64) -> Result<u64, LatencyError> {
    divided_ns(model, part, ms, 1.0)
}

/// Rounds a price to the nearest nanosecond, divides it by a speed and rounds again, each time through seconds in a
/// double, as std's `Duration` and Dynamo do. Dynamo's published runs at double speed differ in the last digit with
/// any other method. IEEE 754 defines every part of it.
///
/// # Errors
/// As [`whole_ns`].
#[inline]
pub(crate) fn divided_ns(model: &str, part: &str, ms: f64, ratio: f64) -> Result<u64, LatencyError> {
    let is_plain = ratio == 1.0 && PLAIN_MS.contains(&ms);
    match is_plain.then(|| plainly_rounded(ms)).flatten() {
        Some(ns) => Ok(ns),
        None => through_durations(model, part, ms, ratio),
    }
}

/// The range in which [`plainly_rounded`] works: up to half an hour.
const PLAIN_MS: Range<f64> = 0.0..1.8e6;

#[cold]
fn through_durations(model: &str, part: &str, ms: f64, ratio: f64) -> Result<u64, LatencyError> {
    let whole = Duration::try_from_secs_f64(ms / 1e3);
    let divided = whole.and_then(|whole| Duration::try_from_secs_f64(whole.as_secs_f64() / ratio));
    match divided {
        Ok(duration) if duration.as_nanos() <= u128::from(STEP_NS_MAX) => Ok(duration.as_nanos() as u64),
        _ => Err(out_of_range(model, part, ms / ratio)),
    }
}

/// The result of the conversion through `Duration` at speed 1 for [`PLAIN_MS`]. None if the result is uncertain,
/// because the time is about halfway between two nanoseconds.
///
/// A whole number of nanoseconds survives the conversion to seconds and back, so only the first rounding matters. The
/// product below and the seconds that it stands for are each wrong by at most 2^-12 ns.
#[inline]
pub(crate) fn plainly_rounded(ms: f64) -> Option<u64> {
    const WHOLE: f64 = (1u64 << 52) as f64;
    let ns = ms * 1e6;
    debug_assert!(PLAIN_MS.contains(&ms), "{ms} ms");
    // Doubles from 2^52 on are whole numbers. A sum beyond it is rounded, and its lowest bits are the result.
    let rounded = ns + WHOLE;
    let rest = ns - (rounded - WHOLE);
    (rest.abs() < 0.499).then(|| rounded.to_bits() - WHOLE.to_bits())
}

/// Rounds a price in nanoseconds to a whole number, as the guest boundary does.
///
/// # Errors
/// As [`whole_ns`].
pub(crate) fn rounded_ns(model: &str, ns: f64) -> Result<u64, LatencyError> {
    if (0.0..=STEP_NS_MAX as f64).contains(&ns) {
        return Ok(ns.round() as u64);
    }
    Err(out_of_range(model, "whole", ns / 1e6))
}

fn out_of_range(model: &str, part: &str, ms: f64) -> LatencyError {
    LatencyError {
        model: model.to_owned(),
        reason: format!(
            "the {part} of a step comes out at {ms} ms, which is not between 0 and a day; check the model's \
             input against the sizes of this engine"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_way_gives_what_the_long_one_does() {
        let long = |ms: f64| {
            let whole = Duration::try_from_secs_f64(ms / 1e3).unwrap();
            Duration::try_from_secs_f64(whole.as_secs_f64() / 1.0).unwrap().as_nanos() as u64
        };
        let mut state = 1u64;
        for _ in 0..200_000 {
            state = vcr_core::seed::mix(state);
            let ms = (state >> 11) as f64 / (1u64 << 53) as f64 * 10f64.powi((state % 8) as i32 - 1);
            assert_eq!(divided_ns("m", "p", ms, 1.0).unwrap(), long(ms), "{ms}");
        }
        for ns in 0..2000 {
            let ms = f64::from(ns) / 2.0 / 1e6;
            assert_eq!(divided_ns("m", "p", ms, 1.0).unwrap(), long(ms), "{ms}");
        }
    }

    #[test]
    fn only_durations_of_up_to_a_day_pass() {
        let day_ms = STEP_NS_MAX as f64 / 1e6;
        assert_eq!(whole_ns("m", "p", day_ms).ok(), Some(STEP_NS_MAX));
        assert_eq!(whole_ns("m", "p", 0.000_000_6).ok(), Some(1));
        assert_eq!(whole_ns("m", "p", -0.0).ok(), Some(0));
        for ms in [day_ms + 1.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(whole_ns("m", "p", ms).is_err(), "{ms}");
        }
        assert!(divided_ns("m", "p", 1.0, 1e-300).is_err());
        assert_eq!(divided_ns("m", "p", 1.0, 1e300).ok(), Some(0));
    }
}
