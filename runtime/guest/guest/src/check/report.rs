//! The report of a check.

use crate::component::api_version::ApiVersion;
use crate::world::World;

/// The checks of a guest and their outcomes.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckReport {
    /// Name of the guest.
    pub guest: String,
    pub world: World,
    /// Version of the guest API that the guest was built for.
    pub api_version: ApiVersion,
    /// SHA-256 of the component, in lower-case hexadecimal digits.
    pub digest: String,
    /// All checks, in order. A failure of the guest or the machine ends the list.
    pub checks: Vec<Check>,
    /// The call that failed or gave an invalid answer, if any.
    pub failed_call: Option<FailedCall>,
    /// Fuel used to instantiate and configure the guest, and its limit.
    pub configure_fuel: Used,
    /// Largest memory of an instance in bytes, and its limit.
    pub memory_bytes: Used,
    /// Cost of each function, by name.
    pub calls: Vec<CallCost>,
}

/// The failed call of a check. [`HandInstance`](crate::HandInstance) can repeat it, but the call may succeed then,
/// because the guest's state also depends on all earlier calls.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedCall {
    /// Name of the function in `wit/`.
    pub function: &'static str,
    /// Parameters, with the names of `wit/`.
    pub input: serde_json::Value,
}

/// A claim about a guest, and whether it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Short name: `answers`, `repeated`, ...
    pub name: &'static str,
    pub claim: &'static str,
    /// Whether the claim holds.
    pub outcome: Outcome,
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The claim holds.
    Passed,
    /// The claim does not hold.
    Broken {
        /// The place where the claim fails, and the observed value.
        reason: String,
    },
    /// The guest trapped, exceeded a limit or returned an error.
    GuestFailed {
        /// The call and the error.
        reason: String,
    },
    /// This machine refused memory or another resource, which is not the guest's fault.
    HostFailed {
        /// The call, and the refused resource.
        reason: String,
    },
}

/// A limit and the amount used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Amount used.
    pub used: u64,
    /// Largest amount allowed.
    pub limit: u64,
}

impl Used {
    /// The used fraction of the limit, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.limit == 0 { 0.0 } else { self.used as f64 / self.limit as f64 }
    }

    /// Keeps the larger fraction of a limit that varies from call to call.
    pub(super) fn keep_larger(&mut self, other: Self) {
        if other.share() > self.share() || self.limit == 0 {
            *self = other;
        }
    }
}

/// Cost of the calls of one function.
#[derive(Clone, Debug, PartialEq)]
pub struct CallCost {
    /// Name of the function in `wit/`.
    pub function: &'static str,
    /// Number of calls.
    pub calls: u64,
    /// Number of steps, tokens, events or requests in all calls.
    pub items: u64,
    /// Fuel of the call that used the largest fraction of its limit.
    pub fuel_most: Used,
    /// Mean fuel of a call.
    pub fuel_mean: f64,
    /// Size in bytes of the answer that used the largest fraction of its limit.
    pub answer_bytes_most: Used,
    /// Median time of a call on this machine in nanoseconds, including the switch into the guest and back.
    pub median_ns: u64,
}

impl CheckReport {
    /// Whether every claim holds.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.checks.iter().all(|check| check.outcome == Outcome::Passed)
    }

    /// Whether a call failed, through the guest or this machine.
    #[must_use]
    pub fn has_failed_call(&self) -> bool {
        let has_failed =
            |outcome: &Outcome| matches!(outcome, Outcome::GuestFailed { .. } | Outcome::HostFailed { .. });
        self.checks.iter().any(|check| has_failed(&check.outcome))
    }
}
