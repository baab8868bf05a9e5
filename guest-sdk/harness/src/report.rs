use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;

/// Result of `vcr guest check`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// Name of the guest.
    pub guest: String,
    /// World of the guest, such as `latency-model`.
    pub world: String,
    /// Version of the guest API that the guest was built for.
    pub api_version: String,
    /// SHA-256 of the component.
    pub sha256: String,
    /// Whether every check passed.
    pub passed: bool,
    /// All checks.
    pub checks: Vec<Check>,
    /// Fuel used to instantiate and configure the guest.
    pub configure_fuel: Used,
    /// Largest memory of an instance, in bytes.
    pub memory_bytes: Used,
    /// Cost of each function.
    pub calls: Vec<CallCost>,
}

/// The result of one check of a guest.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// Short name, such as `answers`.
    pub name: String,
    /// The property that was checked.
    pub claim: String,
    /// `passed`, `broken` or `guest failed`.
    pub outcome: String,
    /// Reason of the failure; none if the check passed.
    pub reason: Option<String>,
}

/// Use of a limit.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
pub struct Used {
    /// Amount used.
    pub used: u64,
    /// Largest amount allowed.
    pub limit: u64,
    /// `used` divided by `limit`.
    pub share: f64,
}

/// Cost of the calls of one function.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[non_exhaustive]
pub struct CallCost {
    /// Name of the function in `wit/`, such as `price-step`.
    pub function: String,
    /// Number of calls.
    pub calls: u64,
    /// Number of steps, tokens, events or requests in all calls.
    pub items: u64,
    /// Fuel of the call that used the largest share of its limit.
    pub fuel_most: Used,
    /// Mean fuel of a call.
    pub fuel_mean: f64,
    /// Size in bytes of the answer that used the largest share of its limit.
    pub answer_bytes_most: Used,
    /// Median time of a call on this machine, in nanoseconds.
    pub median_ns: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Built {
    pub(crate) component: PathBuf,
}

impl Report {
    /// Cost of a function, by its name in `wit/`; none if the function was not called.
    #[must_use]
    pub fn call(&self, function: &str) -> Option<&CallCost> {
        self.calls.iter().find(|cost| cost.function == function)
    }

    /// Asserts that every check passed.
    ///
    /// # Panics
    /// When a check failed. The message lists the failed checks with their reasons.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.passed, "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "guest `{}` ({}, guest API {})", self.guest, self.world, self.api_version)?;
        for check in &self.checks {
            write!(f, "\n  {}: {} - {}", check.name, check.outcome, check.claim)?;
            if let Some(reason) = &check.reason {
                write!(f, "\n    {reason}")?;
            }
        }
        Ok(())
    }
}
