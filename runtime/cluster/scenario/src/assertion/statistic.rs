//! Statistics of metrics: percentiles, means, counts, rates, ratios.

use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_base::units;
use vcr_cluster::metrics::{MetricInfo, MetricKind, Unit};

use crate::assertion::malformed::Malformed;
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Statistic {
    /// A percentile, from 0 to 100.
    Percentile(f64),
    Mean,
    Min,
    Max,
    Std,
    Count,
    Rate,
    Value,
    Ratio,
}

const STATISTICS: &[(&str, Statistic)] = &[
    ("mean", Statistic::Mean),
    ("min", Statistic::Min),
    ("max", Statistic::Max),
    ("std", Statistic::Std),
    ("count", Statistic::Count),
    ("rate", Statistic::Rate),
    ("value", Statistic::Value),
    ("ratio", Statistic::Ratio),
    ("med", Statistic::Percentile(50.0)),
    ("avg", Statistic::Mean),
];

/// Percentiles to suggest for a mistyped name.
const USUAL_PERCENTILES: [&str; 5] = ["p50", "p75", "p90", "p95", "p99"];

impl Statistic {
    pub(crate) fn parse(text: &str) -> Result<Self, Malformed> {
        // k6 writes percentiles as p(95).
        let plain = text.replace(['(', ')'], "");
        if let Some((_, statistic)) = STATISTICS.iter().find(|(name, _)| *name == plain) {
            return Ok(*statistic);
        }
        if let Some(percent) = plain.strip_prefix('p').filter(|rest| looks_like_number(rest)) {
            let percent = percent.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
            return percent.map(Self::Percentile).ok_or_else(|| {
                Malformed::new(format!("invalid percentile `{text}`: expected p0 to p100, such as p99.9"))
            });
        }
        let names = STATISTICS.iter().map(|(name, _)| *name).chain(USUAL_PERCENTILES);
        let list = "p50, p99.9 or any percentile, mean, min, max, std, count, rate, value, ratio";
        let hint = nearest(&plain, names).map_or_else(|| format!("statistics are {list}"), did_you_mean);
        Err(Malformed { message: format!("there is no statistic `{text}`"), hint: Some(hint) })
    }

    /// Fails if the metric does not have this statistic.
    pub(crate) fn check_applies(self, metric: MetricInfo) -> Result<(), Malformed> {
        let (applies, wanted) = match metric.kind {
            MetricKind::Trend => (
                !matches!(self, Self::Value | Self::Ratio),
                "percentiles such as p50 or p99.9, mean, min, max, std, count, rate",
            ),
            MetricKind::Counter => (matches!(self, Self::Count | Self::Rate), "count, rate"),
            MetricKind::Gauge => (self == Self::Value, "value"),
            MetricKind::Goodput => (matches!(self, Self::Count | Self::Rate | Self::Ratio), "count, rate, ratio"),
        };
        if applies {
            return Ok(());
        }
        let message = format!("`{}` has no `{}`", metric.name, self.name());
        Err(Malformed { message, hint: Some(format!("it has {wanted}")) })
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Percentile(percent) => format!("p{percent}"),
            _ => STATISTICS.iter().find(|(_, statistic)| *statistic == self).map_or("?", |(name, _)| *name).to_owned(),
        }
    }
}

fn looks_like_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.')
        && text.chars().all(|c| c.is_ascii_digit() || "-.".contains(c))
}

/// Parses the limit of a condition; the result is in milliseconds for times.
pub(crate) fn parse_limit(text: &str, unit: Unit, statistic: Statistic) -> Result<f64, Malformed> {
    let limit = match (statistic, unit) {
        (Statistic::Count, _) => units::number(text),
        (Statistic::Rate, _) if text.contains('/') => units::rate_per_s(text),
        (Statistic::Rate, _) => units::number(text),
        (_, Unit::Time) => units::duration_ns(text).map(|ns| ns as f64 / 1e6),
        (_, Unit::Ratio) => units::ratio(text),
        (_, Unit::Count) => units::number(text),
        (_, Unit::Usd) => units::number(text.trim().strip_prefix('$').unwrap_or(text)),
    };
    let limit = limit.map_err(Malformed::new)?;
    let is_share = unit == Unit::Ratio && !matches!(statistic, Statistic::Count | Statistic::Rate);
    if is_share && limit > 1.0 {
        let text = text.trim();
        let message = format!("invalid limit `{text}`: expected a share of at most 1 or 100%");
        return Err(Malformed { message, hint: (!text.ends_with('%')).then(|| did_you_mean(&format!("{text}%"))) });
    }
    Ok(limit)
}

pub(crate) fn format_value(value: f64, unit: Unit, statistic: Statistic) -> String {
    match (statistic, unit) {
        (Statistic::Count, _) => format!("{value}"),
        (Statistic::Rate, _) => format!("{value:.2}/s"),
        (_, Unit::Time) => units::format_ns(value * 1e6),
        (_, Unit::Ratio) => format!("{:.2}%", value * 100.0),
        (_, Unit::Count) => format!("{value:.2}"),
        (_, Unit::Usd) => units::format_usd(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_no_limit_above_1() {
        let of = |text, statistic| parse_limit(text, Unit::Ratio, statistic);
        assert_eq!(of("99%", Statistic::Value), of("0.99", Statistic::Value));
        assert_eq!(of("1", Statistic::Ratio), Ok(1.0));
        assert_eq!(of("99", Statistic::Count), Ok(99.0));
        let error = of("99", Statistic::Value).unwrap_err();
        assert_eq!(error.message, "invalid limit `99`: expected a share of at most 1 or 100%");
        assert_eq!(error.hint.as_deref(), Some("did you mean `99%`?"));
        assert_eq!(of("150%", Statistic::Ratio).unwrap_err().hint, None);
    }

    #[test]
    fn any_percentile_is_a_statistic() {
        for (text, percent) in
            [("p0", 0.0), ("p50", 50.0), ("med", 50.0), ("p(99.9)", 99.9), ("p99.99", 99.99), ("p100", 100.0)]
        {
            assert_eq!(Statistic::parse(text).unwrap(), Statistic::Percentile(percent), "{text}");
        }
        for text in ["p101", "p(101)", "p-1", "p100.1", "p1.2.3"] {
            let message = Statistic::parse(text).unwrap_err().message;
            assert_eq!(message, format!("invalid percentile `{text}`: expected p0 to p100, such as p99.9"));
        }
        for text in ["p", "px", "p1e1", "pinf", "q99", ""] {
            let message = Statistic::parse(text).unwrap_err().message;
            assert_eq!(message, format!("there is no statistic `{text}`"));
        }
    }
}
