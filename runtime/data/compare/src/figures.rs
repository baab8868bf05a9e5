//! Summary figures of a side, one for each statistic of each metric, and their changes between two sides.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::metric::{Metric, Statistic};
use crate::request::Requests;

/// Values by metric and statistic; times are in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures(BTreeMap<String, BTreeMap<String, f64>>);

/// A figure and its values on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The metric.
    pub metric: String,
    /// The statistic.
    pub statistic: String,
    /// The value of the reference.
    pub reference: f64,
    /// The value of the compared side.
    pub compared: f64,
}

impl Change {
    /// The change relative to the reference; infinite if the reference is 0 and the compared value is not.
    #[must_use]
    pub fn relative(&self) -> f64 {
        let difference = self.compared - self.reference;
        if difference == 0.0 { 0.0 } else { difference / self.reference.abs() }
    }

    /// The relative change in the worse direction; negative for an improvement.
    #[must_use]
    pub fn regression(&self, is_higher_better: bool) -> f64 {
        if is_higher_better { -self.relative() } else { self.relative() }
    }
}

impl Figures {
    /// Adds a value if it is finite.
    pub fn add(&mut self, metric: &str, statistic: &str, value: f64) {
        if value.is_finite() {
            self.0.entry(metric.to_owned()).or_default().insert(statistic.to_owned(), value);
        }
    }

    /// Computes the figures of requests. The metrics have the names that run reports use.
    #[must_use]
    pub fn of_requests(requests: &Requests) -> Self {
        let mut figures = Self::default();
        let whole: Vec<_> = requests.all().iter().filter(|request| request.is_whole).collect();
        for metric in Metric::ALL {
            let times: Vec<f64> =
                whole.iter().filter_map(|request| request.time_ns(metric)).map(|ns| ns / 1e6).collect();
            let name = metric.name_in_runs();
            if times.is_empty() {
                continue;
            }
            figures.add(name, "count", times.len() as f64);
            for (statistic, name_of) in STATISTICS {
                figures.add(name, name_of, statistic.of(times.clone()));
            }
        }
        let sum = |of: fn(&crate::Request) -> u32| whole.iter().map(|request| f64::from(of(request))).sum::<f64>();
        let seconds = requests.duration_ns().filter(|ns| *ns > 0).map(|ns| ns as f64 / 1e9);
        let counters = [
            ("requests", requests.all().len() as f64),
            ("completed", whole.len() as f64),
            ("prompt_tokens", sum(|request| request.prompt_tokens)),
            ("cached_tokens", sum(|request| request.cached_tokens)),
            ("output_tokens", sum(|request| request.output_tokens)),
        ];
        for (name, total) in counters {
            figures.add(name, "count", total);
            if let Some(seconds) = seconds {
                figures.add(name, "rate", total / seconds);
            }
        }
        if let Some(seconds) = seconds {
            figures.add("duration", "value", seconds * 1e3);
        }
        if !whole.is_empty() {
            figures.add("completed_ratio", "value", whole.len() as f64 / requests.all().len() as f64);
            figures.add("prefix_hit_ratio", "value", counters[3].1 / counters[2].1.max(1.0));
        }
        figures
    }

    /// Whether there are no figures.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a metric's statistic.
    #[must_use]
    pub fn get(&self, metric: &str, statistic: &str) -> Option<f64> {
        self.0.get(metric)?.get(statistic).copied()
    }

    /// Lists the changes from `reference` to this side, for all figures that both have.
    #[must_use]
    pub fn changes_from(&self, reference: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (metric, statistics) in &self.0 {
            for (statistic, compared) in statistics {
                if let Some(reference) = reference.get(metric, statistic) {
                    let (metric, statistic) = (metric.clone(), statistic.clone());
                    changes.push(Change { metric, statistic, reference, compared: *compared });
                }
            }
        }
        changes
    }
}

/// The statistics computed from requests, with their names in reports.
const STATISTICS: [(Statistic, &str); 8] = [
    (Statistic::Mean, "mean"),
    (Statistic::Percentile(0), "min"),
    (Statistic::P50, "p50"),
    (Statistic::Percentile(75_000), "p75"),
    (Statistic::P90, "p90"),
    (Statistic::P95, "p95"),
    (Statistic::P99, "p99"),
    (Statistic::Percentile(100_000), "max"),
];

/// A limit on how much worse a figure may become, such as `ttft.p99=5%`.
#[derive(Clone, Debug, PartialEq)]
pub struct MaxRegression {
    /// The metric.
    pub metric: String,
    /// The statistic.
    pub statistic: String,
    /// The allowed worsening, relative to the reference.
    pub share: f64,
}

impl fmt::Display for MaxRegression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Binary fractions can add digits, for example 7.000000000000001; rounding removes them.
        let percent = (self.share * 1e8).round() / 1e6;
        write!(f, "{}.{}={percent}%", self.metric, self.statistic)
    }
}

impl FromStr for MaxRegression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("invalid limit `{text}`: expected METRIC.STATISTIC=PERCENT%, such as ttft.p99=5%");
        let (figure, limit) = text.split_once('=').ok_or_else(invalid)?;
        let (metric, statistic) = figure.split_once('.').ok_or_else(invalid)?;
        let percent: f64 = limit.trim().strip_suffix('%').and_then(|limit| limit.parse().ok()).ok_or_else(invalid)?;
        if metric.is_empty() || statistic.is_empty() || !(0.0..=1e6).contains(&percent) {
            return Err(invalid());
        }
        Ok(Self { metric: metric.to_owned(), statistic: statistic.to_owned(), share: percent / 100.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_with_a_figure_and_a_share() {
        let limit: MaxRegression = "ttft.p99.9=2.5%".parse().expect("valid");
        assert_eq!((limit.metric.as_str(), limit.statistic.as_str(), limit.share), ("ttft", "p99.9", 0.025));
        for text in ["ttft.p99.9=2.5%", "tpot.mean=7%", "output_tokens.rate=0%"] {
            assert_eq!(text.parse::<MaxRegression>().expect("valid").to_string(), text);
        }
        for wrong in ["ttft", "ttft=5%", "ttft.p99=5", "ttft.p99=-1%", ".p99=5%", "ttft.=5%", "ttft.p99=nan%"] {
            assert!(wrong.parse::<MaxRegression>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_change_is_a_regression_by_its_direction() {
        let mut sides = [Figures::default(), Figures::default()];
        sides[0].add("ttft", "p99", 100.0);
        sides[1].add("ttft", "p99", 110.0);
        sides[1].add("itl", "p99", f64::NAN);
        let changes = sides[1].changes_from(&sides[0]);
        assert_eq!(changes.len(), 1);
        assert!((changes[0].regression(false) - 0.1).abs() < 1e-9);
        assert!((changes[0].regression(true) + 0.1).abs() < 1e-9);
        let from_nothing = Change { reference: 0.0, compared: 1.0, ..changes[0].clone() };
        assert_eq!(from_nothing.regression(false), f64::INFINITY);
        assert_eq!(Change { compared: 0.0, ..from_nothing }.relative(), 0.0);
    }
}
