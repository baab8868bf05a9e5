//! Values with units: `"250ms"`, `"64GB/s"`, `"128KiB"`, `"20/s"`, `"90%"`.
//!
//! Amounts are parsed as decimals and scaled once, so `"0.1ms"` is exactly 100,000 ns.

pub mod rule;

/// The reason why a text is not a valid value with a unit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The text does not begin with a number.
    #[error("`{text}` does not start with a number")]
    NoNumber {
        /// The given text.
        text: String,
    },
    /// The unit is missing.
    #[error("`{text}` has no unit; write for example `{example}`")]
    NoUnit {
        /// The given text.
        text: String,
        /// Example of a valid value.
        example: &'static str,
    },
    /// The unit is not known.
    #[error("unknown unit of {kind} `{unit}` in `{text}`: expected {known}")]
    UnknownUnit {
        /// The given text.
        text: String,
        /// The unknown unit.
        unit: String,
        /// Kind of the expected value.
        kind: &'static str,
        /// The valid units.
        known: &'static str,
    },
    /// The value is out of range.
    #[error("`{text}` is negative or too large")]
    OutOfRange {
        /// The given text.
        text: String,
    },
    /// The duration is above 0 but rounds to 0.
    #[error("`{text}` rounds to 0: the shortest duration is {shortest}")]
    TooShort {
        /// The given text.
        text: String,
        /// The shortest duration above 0.
        shortest: &'static str,
    },
}

const TIME_UNITS: &[(&str, f64)] = &[
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("min", 60e9),
    ("h", 3600e9),
    ("d", 86_400e9),
];

const BYTE_UNITS: &[(&str, f64)] = &[
    ("B", 1.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
];

/// Parses a duration to nanoseconds.
///
/// # Errors
/// Without a number, a known unit of time, or a value from 0 to 500 years, and for values that round to 0.
pub fn duration_ns(text: &str) -> Result<u64, UnitError> {
    duration(text, 1.0, "1ns")
}

/// Parses a duration to picoseconds, for costs per byte or token.
///
/// ```
/// assert_eq!(vcr_base::units::duration_ps("2.5ns"), Ok(2_500));
/// ```
///
/// # Errors
/// Without a number, a known unit of time, or a value from 0 to half a year, and for values that round to 0.
pub fn duration_ps(text: &str) -> Result<u64, UnitError> {
    duration(text, 1e3, "0.001ns")
}

fn duration(text: &str, per_ns: f64, shortest: &'static str) -> Result<u64, UnitError> {
    let (number, unit) = split(text)?;
    if unit.is_empty() {
        return Err(UnitError::NoUnit { text: text.to_owned(), example: "250ms" });
    }
    let scale = lookup(text, unit, TIME_UNITS, "time", "ns, us, ms, s, m, h, d")?;
    match whole(text, number * (scale * per_ns))? {
        0 if number > 0.0 => Err(UnitError::TooShort { text: text.to_owned(), shortest }),
        rounded => Ok(rounded),
    }
}

/// Parses a number of bytes. Decimal (`KB`) and binary (`KiB`) units differ.
///
/// # Errors
/// Without a number, a known unit of size, or a value in range.
pub fn bytes(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split(text)?;
    if unit.is_empty() {
        return Err(UnitError::NoUnit { text: text.to_owned(), example: "128KiB" });
    }
    whole(text, number * lookup(text, unit, BYTE_UNITS, "size", "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB")?)
}

/// Parses a bandwidth to bytes per second; `Gbps` and similar units count bits.
///
/// # Errors
/// Without a number, a known unit of bandwidth, or a value in range.
pub fn bandwidth_bytes_per_s(text: &str) -> Result<u64, UnitError> {
    const KNOWN: &str = "B/s, KB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s, GiB/s, TiB/s, Mbps, Gbps";
    let (number, unit) = split(text)?;
    let scale = match unit {
        "" => return Err(UnitError::NoUnit { text: text.to_owned(), example: "64GB/s" }),
        "Mbps" | "Mbit/s" => 1e6 / 8.0,
        "Gbps" | "Gbit/s" => 1e9 / 8.0,
        _ => match unit.strip_suffix("/s") {
            Some(size) => lookup(text, size, BYTE_UNITS, "bandwidth", KNOWN)?,
            None => lookup(text, "", BYTE_UNITS, "bandwidth", KNOWN).map_err(|_| UnitError::UnknownUnit {
                text: text.to_owned(),
                unit: unit.to_owned(),
                kind: "bandwidth",
                known: KNOWN,
            })?,
        },
    };
    whole(text, number * scale)
}

/// Parses a rate per second: `"20/s"`, `"90/min"`, `"600/h"`.
///
/// # Errors
/// Without a number or a known unit.
pub fn rate_per_s(text: &str) -> Result<f64, UnitError> {
    let (number, unit) = split(text)?;
    match unit {
        "" => Err(UnitError::NoUnit { text: text.to_owned(), example: "20/s" }),
        "/s" => Ok(number),
        "/m" | "/min" => Ok(number / 60.0),
        "/h" => Ok(number / 3600.0),
        other => Err(UnitError::UnknownUnit {
            text: text.to_owned(),
            unit: other.to_owned(),
            kind: "rate",
            known: "/s, /min, /h",
        }),
    }
}

/// Parses a ratio: a bare number or a percentage.
///
/// # Errors
/// Without a number, or with a unit other than `%`.
pub fn ratio(text: &str) -> Result<f64, UnitError> {
    let (number, unit) = split(text)?;
    match unit {
        "" => Ok(number),
        "%" => Ok(number / 100.0),
        other => {
            Err(UnitError::UnknownUnit { text: text.to_owned(), unit: other.to_owned(), kind: "share", known: "%" })
        }
    }
}

/// Parses a number without unit.
///
/// # Errors
/// Without a number, or with a unit.
pub fn number(text: &str) -> Result<f64, UnitError> {
    let (number, unit) = split(text)?;
    if unit.is_empty() {
        return Ok(number);
    }
    Err(UnitError::UnknownUnit { text: text.to_owned(), unit: unit.to_owned(), kind: "number", known: "none" })
}

/// Formats a number of bytes: `1.50 GiB`.
///
/// ```
/// assert_eq!(vcr_base::units::format_bytes(1.0), "1 B");
/// assert_eq!(vcr_base::units::format_bytes(1536.0), "1.50 KiB");
/// assert_eq!(vcr_base::units::format_bytes(2e12), "1.82 TiB");
/// ```
#[must_use]
pub fn format_bytes(bytes: f64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (bytes, "B");
    for larger in units {
        if value.abs() < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, larger);
    }
    if unit == "B" { format!("{value:.0} B") } else { format!("{value:.2} {unit}") }
}

/// Formats nanoseconds: `2m 44s` from a minute on, otherwise a number with one unit.
#[must_use]
pub fn format_ns(ns: f64) -> String {
    if ns.abs() >= 60e9 {
        return format_minutes(ns);
    }
    let (value, unit) = match ns.abs() {
        n if n >= 1e9 => (ns / 1e9, "s"),
        n if n >= 1e6 => (ns / 1e6, "ms"),
        n if n >= 1e3 => (ns / 1e3, "us"),
        _ => (ns, "ns"),
    };
    let decimals = if value.abs() >= 100.0 { 1 } else { 2 };
    format!("{value:.decimals$}{unit}")
}

/// Formats nanoseconds as a whole number of the largest unit that divides them: `90s`, `1500ms`.
///
/// ```
/// assert_eq!(vcr_base::units::exact_ns(90_000_000_000), "90s");
/// assert_eq!(vcr_base::units::exact_ns(1_500_000_000), "1500ms");
/// ```
#[must_use]
pub fn exact_ns(ns: u64) -> String {
    const UNITS: [(&str, u64); 5] =
        [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];
    let whole = UNITS.iter().find(|(_, of_ns)| ns > 0 && ns.is_multiple_of(*of_ns));
    whole.map_or_else(|| format!("{ns}ns"), |(unit, of_ns)| format!("{}{unit}", ns / of_ns))
}

/// Formats US dollars with two decimals, or four below one dollar.
#[must_use]
pub fn format_usd(usd: f64) -> String {
    let decimals = if usd.abs() >= 1.0 { 2 } else { 4 };
    format!("${usd:.decimals$}")
}

/// Formats a minute or more in the two largest units, without the second one if it is 0.
fn format_minutes(ns: f64) -> String {
    let sign = if ns < 0.0 { "-" } else { "" };
    let seconds = (ns.abs() / 1e9).round() as u64;
    let (whole, rest, names) = if seconds < 3600 {
        (seconds / 60, seconds % 60, ["m", "s"])
    } else {
        let minutes = (seconds + 30) / 60;
        (minutes / 60, minutes % 60, ["h", "m"])
    };
    let second = if rest > 0 { format!(" {rest}{}", names[1]) } else { String::new() };
    format!("{sign}{whole}{}{second}", names[0])
}

fn split(text: &str) -> Result<(f64, &str), UnitError> {
    let trimmed = text.trim();
    let end = trimmed
        .char_indices()
        .find(|&(at, c)| !(c.is_ascii_digit() || c == '.' || c == '_' || (at == 0 && (c == '-' || c == '+'))))
        .map_or(trimmed.len(), |(at, _)| at);
    let number: f64 =
        trimmed[..end].replace('_', "").parse().map_err(|_| UnitError::NoNumber { text: text.to_owned() })?;
    Ok((number, trimmed[end..].trim()))
}

fn lookup(
    text: &str,
    unit: &str,
    units: &[(&str, f64)],
    kind: &'static str,
    known: &'static str,
) -> Result<f64, UnitError> {
    let found = units.iter().find(|(name, _)| *name == unit);
    found.map(|(_, scale)| *scale).ok_or_else(|| UnitError::UnknownUnit {
        text: text.to_owned(),
        unit: unit.to_owned(),
        kind,
        known,
    })
}

fn whole(text: &str, value: f64) -> Result<u64, UnitError> {
    let rounded = value.round();
    // About half of the range of u64, so that sums of two values cannot overflow.
    if (0.0..9.2e18).contains(&rounded) {
        return Ok(rounded as u64);
    }
    Err(UnitError::OutOfRange { text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_exact() {
        assert_eq!(duration_ns("250ms"), Ok(250_000_000));
        assert_eq!(duration_ns("0.1ms"), Ok(100_000));
        assert_eq!(duration_ns(" 1.5 s "), Ok(1_500_000_000));
        assert_eq!(duration_ns("2m"), Ok(120_000_000_000));
        assert_eq!(duration_ns("7ns"), Ok(7));
    }

    #[test]
    fn times_are_written_for_people() {
        let texts =
            [0.0, 999.0, 2.5e6, 59.99e9, 60e9, 164.4e9, -90e9, 3599.6e9, 3600e9, 5370e9, 86_400e9].map(format_ns);
        let expected =
            ["0.00ns", "999.0ns", "2.50ms", "59.99s", "1m", "2m 44s", "-1m 30s", "1h", "1h", "1h 30m", "24h"];
        assert_eq!(texts, expected);
    }

    #[test]
    fn sizes_and_bandwidths_tell_decimal_from_binary() {
        assert_eq!(bytes("128KiB"), Ok(131_072));
        assert_eq!(bytes("1KB"), Ok(1000));
        assert_eq!(bandwidth_bytes_per_s("64GB/s"), Ok(64_000_000_000));
        assert_eq!(bandwidth_bytes_per_s("400Gbps"), Ok(50_000_000_000));
    }

    #[test]
    fn rates_and_shares() {
        assert_eq!(rate_per_s("90/min"), Ok(1.5));
        assert_eq!(ratio("90%"), Ok(0.9));
        assert_eq!(ratio("0.25"), Ok(0.25));
    }

    #[test]
    fn errors_say_what_to_write() {
        let text = |error: UnitError| error.to_string();
        assert_eq!(text(duration_ns("5").unwrap_err()), "`5` has no unit; write for example `250ms`");
        assert_eq!(
            text(duration_ns("5 parsec").unwrap_err()),
            "unknown unit of time `parsec` in `5 parsec`: expected ns, us, ms, s, m, h, d"
        );
        assert_eq!(text(duration_ns("soon").unwrap_err()), "`soon` does not start with a number");
        assert_eq!(duration_ns("0ns"), Ok(0));
        assert_eq!(text(duration_ns("0.3ns").unwrap_err()), "`0.3ns` rounds to 0: the shortest duration is 1ns");
        let shortest = "`0.0001ns` rounds to 0: the shortest duration is 0.001ns";
        assert_eq!(text(duration_ps("0.0001ns").unwrap_err()), shortest);
        assert_eq!(text(duration_ns("-1s").unwrap_err()), "`-1s` is negative or too large");
        assert!(bandwidth_bytes_per_s("64GB").is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".*") {
            let _ = (duration_ns(&text), bytes(&text), bandwidth_bytes_per_s(&text), rate_per_s(&text), ratio(&text));
        }

        #[test]
        fn whole_milliseconds_come_back(ms in 0u64..1_000_000_000) {
            prop_assert_eq!(duration_ns(&format!("{ms}ms")), Ok(ms * 1_000_000));
        }
    }
}
