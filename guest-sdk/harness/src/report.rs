use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;

/// Result of `vcr guest check`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// Name of the guest.
    pub guest: String,
    /// Its world, such as `latency-model`.
    pub world: String,
    /// The version of the guest API that it was made for.
    pub api_version: String,
    /// SHA-256 of the component.
    pub sha256: String,
    /// Whether every check passed.
    pub passed: bool,
    /// Every check that was made.
    pub checks: Vec<Check>,
    /// Fuel that instantiating and configuring took.
    pub configure_fuel: Used,
    /// Bytes of the largest memory that an instance had.
    pub memory_bytes: Used,
    /// Cost of each function.
    pub calls: Vec<CallCost>,
}

/// One check.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// Its short name, such as `answers`.
    pub name: String,
    /// The property that was checked.
    pub claim: String,
    /// `passed`, `broken` or `guest failed`.
    pub outcome: String,
    /// The reason of a failure; none if it passed.
    pub reason: Option<String>,
}

/// Use of a limit.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
pub struct Used {
    /// So much was.
    pub used: u64,
    /// So much might have been.
    pub limit: u64,
    /// The one over the other.
    pub share: f64,
}

/// Cost of the calls of one function.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[non_exhaustive]
pub struct CallCost {
    /// The function as `wit/` names it, such as `price-step`.
    pub function: String,
    /// Number of calls.
    pub calls: u64,
    /// Things that these calls were about: steps, tokens, events, requests.
    pub items: u64,
    /// Fuel of the call that came nearest to its limit.
    pub fuel_most: Used,
    /// Fuel of a call on average.
    pub fuel_mean: f64,
    /// Bytes of the answer that came nearest to its limit.
    pub answer_bytes_most: Used,
    /// Time of a call, the median in nanoseconds of this machine.
    pub median_ns: u64,
}

/// One guest in the output of `vcr guest build --json`.
#[derive(Debug, Deserialize)]
pub(crate) struct Built {
    pub(crate) component: PathBuf,
}

impl Report {
    /// Cost of a function, by its name in `wit/`; none if it was not called.
    #[must_use]
    pub fn call(&self, function: &str) -> Option<&CallCost> {
        self.calls.iter().find(|cost| cost.function == function)
    }

    /// Asserts that every check passed.
    ///
    /// # Panics
    /// With every check that did not, and why.
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
