//! Converts milliseconds and seconds in files to nanoseconds.

use serde::de::{self, Deserialize, Deserializer, Visitor};
use std::fmt;

/// A signed time in whole nanoseconds, read from a JSON number of milliseconds.
///
/// The following rule gives the same result on every machine. An integer is multiplied by a million. Any other
/// number is taken as the nearest double. Its whole milliseconds are multiplied by a million as an integer. Its
/// fraction, which a double can hold exactly, is multiplied by a million as a double and rounded to the nearest
/// integer, halves away from zero. Times below 2^32 ms (49 days) with six decimals are therefore exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Millis {
    pub(crate) ns: i64,
}

const NS_PER_MS: i128 = 1_000_000;

impl Millis {
    /// `None` if the value is not finite, or is more than 292 years.
    pub(crate) fn from_f64(ms: f64) -> Option<Millis> {
        if !ms.is_finite() || ms.abs() > 9.3e12 {
            return None;
        }
        let whole = ms.trunc();
        let fraction_ns = ((ms - whole) * 1e6).round();
        Self::from_ns(whole as i128 * NS_PER_MS + fraction_ns as i128)
    }

    /// `None` if the value is more than 292 years.
    pub(crate) fn from_whole(ms: u64) -> Option<Millis> {
        Self::from_ns(i128::from(ms) * NS_PER_MS)
    }

    fn from_ns(ns: i128) -> Option<Millis> {
        i64::try_from(ns).ok().map(|ns| Millis { ns })
    }
}

/// Converts seconds to nanoseconds by the rule of [`Millis`]. Exact for times below 2^23 seconds (97 days) with
/// nine decimals. `None` if the value is not finite, or is more than 292 years.
pub(crate) fn ns_of_seconds(seconds: f64) -> Option<i64> {
    if !seconds.is_finite() || seconds.abs() > 9.3e9 {
        return None;
    }
    let whole = seconds.trunc();
    let fraction_ns = ((seconds - whole) * 1e9).round();
    i64::try_from(whole as i128 * 1_000_000_000 + fraction_ns as i128).ok()
}

/// A signed time in whole nanoseconds, read from a JSON number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seconds {
    pub(crate) ns: i64,
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        let ns = ns_of_seconds(seconds).ok_or_else(|| {
            de::Error::custom(format!("invalid time {seconds}: expected a number of seconds within 292 years of 0"))
        })?;
        Ok(Self { ns })
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MillisVisitor;
        impl Visitor<'_> for MillisVisitor {
            type Value = Millis;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of milliseconds within 292 years of 0")
            }
            fn visit_u64<E: de::Error>(self, ms: u64) -> Result<Millis, E> {
                Millis::from_whole(ms).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(ms), &self))
            }
            fn visit_i64<E: de::Error>(self, ms: i64) -> Result<Millis, E> {
                Millis::from_ns(i128::from(ms) * NS_PER_MS)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Signed(ms), &self))
            }
            fn visit_f64<E: de::Error>(self, ms: f64) -> Result<Millis, E> {
                Millis::from_f64(ms).ok_or_else(|| E::invalid_value(de::Unexpected::Float(ms), &self))
            }
        }
        deserializer.deserialize_any(MillisVisitor)
    }
}

/// Writes whole nanoseconds as an exact decimal number of milliseconds.
pub(crate) fn write_ms(out: &mut impl std::io::Write, ns: u64) -> std::io::Result<()> {
    let (whole, fraction) = (ns / 1_000_000, ns % 1_000_000);
    if fraction == 0 { write!(out, "{whole}") } else { write!(out, "{whole}.{fraction:06}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn halves_round_away_from_zero_and_nonsense_is_refused() {
        let ns = |ms| Millis::from_f64(ms).map(|m| m.ns);
        assert_eq!(ns(1.5), Some(1_500_000));
        assert_eq!(ns(-0.000_000_5), Some(-1));
        assert_eq!(ns(0.000_000_5), Some(1));
        assert_eq!(ns(0.000_000_4), Some(0));
        assert_eq!(ns(f64::NAN), None);
        assert_eq!(ns(f64::INFINITY), None);
        assert_eq!(ns(-1e300), None);
        assert_eq!(ns_of_seconds(61.114), Some(61_114_000_000));
        assert_eq!(ns_of_seconds(-0.000_000_000_5), Some(-1));
        assert_eq!(ns_of_seconds(f64::NAN).or(ns_of_seconds(1e300)), None);
    }

    proptest! {
        /// Exported times must be exact to the nanosecond when they are read again, for any trace of up to 49 days.
        #[test]
        fn written_times_read_back_exactly(ns in 0u64..(1u64 << 32) * 1_000_000) {
            let mut text = Vec::new();
            write_ms(&mut text, ns).unwrap();
            let millis: Millis = serde_json::from_slice(&text).unwrap();
            prop_assert_eq!(millis.ns, ns as i64);
        }
    }
}
