//! Problems in the input of a model.

use std::fmt;

use vcr_base::random::{Distribution, DistributionProblem};

/// A problem of one field.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigProblem {
    /// The value is not a number, or infinite.
    #[error("invalid `{field}`: expected a finite number, got {value}")]
    NotFinite {
        /// The field.
        field: String,
        /// The value.
        value: f64,
    },
    /// The value is below 0.
    #[error("invalid `{field}`: expected at least 0, got {value}")]
    Negative {
        /// The field.
        field: String,
        /// The value.
        value: f64,
    },
    /// The value is 0 or less.
    #[error("invalid `{field}`: expected above 0, got {value}")]
    NotPositive {
        /// The field.
        field: String,
        /// The value.
        value: f64,
    },
    /// The value is below the smallest meaningful one.
    #[error("invalid `{field}`: expected at least {min}, got {value}")]
    TooSmall {
        /// The field.
        field: String,
        /// The value.
        value: f64,
        /// Minimum.
        min: f64,
    },
    /// The time is longer than the longest step.
    #[error("`{field}` is {value_ms} ms, more than the {limit_ms} ms a step may last; is it in the right unit?")]
    TooLong {
        /// The field.
        field: String,
        /// The value in milliseconds.
        value_ms: f64,
        /// The limit in milliseconds.
        limit_ms: f64,
    },
    /// The distribution cannot be drawn from.
    #[error("`{field}`: {problem}")]
    Distribution {
        /// The field.
        field: String,
        /// The problem, in milliseconds.
        problem: DistributionProblem,
    },
}

/// All problems of a model's input.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidConfig {
    /// The model's name.
    pub model: &'static str,
    /// All problems, in the order of the fields. Never empty.
    pub problems: Vec<ConfigProblem>,
}

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the `{}` latency model cannot be set up", self.model)?;
        for (index, problem) in self.problems.iter().enumerate() {
            let separator = if index == 0 { ": " } else { "; " };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for InvalidConfig {}

#[derive(Default)]
pub(crate) struct Problems(pub(crate) Vec<ConfigProblem>);

impl Problems {
    /// Checks that a number is finite, and returns whether it is.
    pub(crate) fn finite(&mut self, field: &str, value: f64) -> bool {
        if !value.is_finite() {
            let field = field.to_owned();
            self.0.push(ConfigProblem::NotFinite { field, value });
        }
        value.is_finite()
    }

    /// Checks that a number is finite and at least 0.
    pub(crate) fn not_negative(&mut self, field: &str, value: f64) {
        if self.finite(field, value) && value < 0.0 {
            let field = field.to_owned();
            self.0.push(ConfigProblem::Negative { field, value });
        }
    }

    /// Checks that a number is finite and above 0.
    pub(crate) fn positive(&mut self, field: &str, value: f64) {
        if self.finite(field, value) && value <= 0.0 {
            let field = field.to_owned();
            self.0.push(ConfigProblem::NotPositive { field, value });
        }
    }

    pub(crate) fn at_least(&mut self, field: &str, value: f64, min: f64) {
        if self.finite(field, value) && value < min {
            let field = field.to_owned();
            self.0.push(ConfigProblem::TooSmall { field, value, min });
        }
    }

    /// Checks that a number is a possible duration of a step.
    pub(crate) fn step_ms(&mut self, field: &str, value_ms: f64) {
        let limit_ms = crate::duration::STEP_NS_MAX as f64 / 1e6;
        self.not_negative(field, value_ms);
        if value_ms.is_finite() && value_ms > limit_ms {
            self.0.push(ConfigProblem::TooLong { field: field.to_owned(), value_ms, limit_ms });
        }
    }

    /// Checks that a distribution has only possible durations of a step.
    pub(crate) fn distribution_ms(&mut self, field: &str, distribution: &Distribution) {
        let limit_ms = crate::duration::STEP_NS_MAX as f64 / 1e6;
        let problems = distribution.problems(limit_ms).into_iter();
        self.0.extend(problems.map(|problem| ConfigProblem::Distribution { field: field.to_owned(), problem }));
    }

    /// Returns `value` if there were no problems.
    pub(crate) fn none_or<T>(self, model: &'static str, value: T) -> Result<T, InvalidConfig> {
        if self.0.is_empty() {
            Ok(value)
        } else {
            let problems = self.0;
            Err(InvalidConfig { model, problems })
        }
    }
}
