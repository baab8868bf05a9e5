//! Limits on errors.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::error::FitError;
use crate::metric::{Metric, Statistic};

/// What a gate limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Subject {
    /// The relative error of a statistic.
    Statistic(Metric, Statistic),
    /// The mean absolute error of single requests.
    Mape(Metric),
    /// The correlation of single requests.
    Pearson(Metric),
    /// The relative error of the throughput.
    Throughput,
    /// The share of extrapolated step time.
    Outside,
}

/// A limit: `ttft p50 < 10%`, `itl pearson > 0.9`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    subject: Subject,
    is_upper: bool,
    limit: f64,
}

impl Gate {
    /// What it limits.
    pub(crate) fn subject(&self) -> Subject {
        self.subject
    }

    /// Whether a value keeps to the limit.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        if self.is_upper { value < self.limit } else { value > self.limit }
    }

    /// Reads the table `[gates]` of a TOML file: `"ttft p50" = "< 10%"`.
    ///
    /// # Errors
    /// When the file cannot be read, or an entry is no gate.
    pub fn read(path: &Path) -> Result<Vec<Self>, FitError> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            gates: BTreeMap<String, String>,
        }
        let text = std::fs::read_to_string(path).map_err(|source| FitError::Read { path: path.to_owned(), source })?;
        let file: File = toml::from_str(&text).map_err(|error| {
            FitError::Gates(format!(
                "{}: {error}; expected a table [gates] with entries such as \"ttft p50\" = \"< 10%\"",
                path.display()
            ))
        })?;
        let gates = file.gates.iter().map(|(subject, limit)| format!("{subject} {limit}").parse());
        gates.collect::<Result<_, String>>().map_err(|what| FitError::Gates(format!("{}: {what}", path.display())))
    }
}

impl FromStr for Gate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "invalid gate `{text}`: expected a metric (ttft, itl, e2e, queue) with a statistic (mean, p50, p90, \
                 p99, mape, pearson), `throughput` or `outside`, then < or > and a limit, such as `ttft p50 < 10%`"
            )
        };
        let is_upper = text.contains('<');
        let (subject, limit) = text.split_once(['<', '>']).ok_or_else(invalid)?;
        let limit = limit.trim();
        let (number, divisor) = limit.strip_suffix('%').map_or((limit, 1.0), |number| (number.trim(), 100.0));
        let limit = number.parse().ok().filter(|limit: &f64| limit.is_finite()).ok_or_else(invalid)?;
        let mut words = subject.split_whitespace();
        let subject = match (words.next(), words.next(), words.next()) {
            (Some("throughput"), None, None) => Subject::Throughput,
            (Some("outside"), None, None) => Subject::Outside,
            (Some(metric), Some(statistic), None) => {
                let metric = Metric::ALL.into_iter().find(|each| each.name() == metric).ok_or_else(invalid)?;
                match statistic {
                    "mape" => Subject::Mape(metric),
                    "pearson" => Subject::Pearson(metric),
                    name => {
                        let mut known = Statistic::ALL.into_iter();
                        Subject::Statistic(metric, known.find(|each| each.name() == name).ok_or_else(invalid)?)
                    }
                }
            }
            _ => return Err(invalid()),
        };
        Ok(Self { subject, is_upper, limit: limit / divisor })
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject {
            Subject::Statistic(metric, statistic) => write!(f, "{} {}", metric.name(), statistic.name())?,
            Subject::Mape(metric) => write!(f, "{} mape", metric.name())?,
            Subject::Pearson(metric) => write!(f, "{} pearson", metric.name())?,
            Subject::Throughput => f.write_str("throughput")?,
            Subject::Outside => f.write_str("outside")?,
        }
        let sign = if self.is_upper { '<' } else { '>' };
        match self.subject {
            Subject::Pearson(_) => write!(f, " {sign} {}", self.limit),
            _ => write!(f, " {sign} {} %", (self.limit * 1e6).round() / 1e4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_read_from_text_and_toml() {
        let gate = |text: &str| text.parse::<Gate>();
        assert!(gate("ttft p50 < 10%").expect("valid").holds(0.09));
        assert!(!gate("itl mean<0.05").expect("valid").holds(0.06));
        assert!(gate("e2e pearson > 0.9").expect("valid").holds(0.95));
        for text in [
            "ttft",
            "ttft p51 < 3%",
            "speed mean < 1",
            "ttft p50 < many",
            "ttft p50 99 < 1",
            "ttft p50 < nan",
            "itl mean < inf",
        ] {
            assert!(gate(text).expect_err("invalid").starts_with("invalid gate"), "{text}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("gates.toml");
        std::fs::write(&path, "[gates]\n\"ttft p50\" = \"< 10%\"\nthroughput = \"< 3%\"\n").expect("it is written");
        let gates = Gate::read(&path).expect("valid");
        let expected = ["throughput < 3%", "ttft p50 < 10%"].map(|text| gate(text).expect("valid"));
        assert_eq!(gates, expected);
    }
}
