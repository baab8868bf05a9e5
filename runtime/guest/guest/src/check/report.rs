//! The report of a check, in plain values.

use crate::component::api_version::ApiVersion;
use crate::world::World;

/// The checks of a guest and their outcomes.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckReport {
    /// Name of the guest.
    pub guest: String,
    pub world: World,
    /// The version of the guest API that it was made for.
    pub api_version: ApiVersion,
    /// SHA-256 of the component, in lower-case hexadecimal digits.
    pub digest: String,
    /// Every check, in order. A failure of the guest or the machine is the last one.
    pub checks: Vec<Check>,
    /// The call that failed or whose answer was wrong, where there was one.
    pub failed_call: Option<FailedCall>,
    /// Fuel that instantiating and configuring took, and the limit.
    pub configure_fuel: Used,
    /// Bytes of the largest memory that an instance had, and the limit.
    pub memory_bytes: Used,
    /// The cost of each function, by name.
    pub calls: Vec<CallCost>,
}

/// The failed call of a check, which can be repeated by hand with
/// [`HandInstance`](crate::HandInstance). The guest's state then depended on all calls before it,
/// so the call may not fail alone.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedCall {
    /// The function as `wit/` names it.
    pub function: &'static str,
    /// Its parameters, with the names of `wit/`.
    pub input: serde_json::Value,
}

/// One claim about a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its short name: `answers`, `repeated`, ...
    pub name: &'static str,
    pub claim: &'static str,
    /// Whether it holds.
    pub outcome: Outcome,
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The claim holds.
    Passed,
    /// The claim does not hold.
    Broken {
        /// The place, and the observed value.
        reason: String,
    },
    /// The guest failed: it trapped, used up a limit or answered an error.
    GuestFailed {
        /// In which call, and how.
        reason: String,
    },
    /// This machine refused memory or another resource, which does not concern the guest.
    HostFailed {
        /// The call, and the refused resource.
        reason: String,
    },
}

/// The used share of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// The used amount.
    pub used: u64,
    /// The limit of the amount.
    pub limit: u64,
}

impl Used {
    /// The share that was used, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.limit == 0 { 0.0 } else { self.used as f64 / self.limit as f64 }
    }

    /// Keeps the larger share of a limit that varies from call to call.
    pub(super) fn keep_larger(&mut self, other: Self) {
        if other.share() > self.share() || self.limit == 0 {
            *self = other;
        }
    }
}

/// The cost of the calls of one function.
#[derive(Clone, Debug, PartialEq)]
pub struct CallCost {
    /// The function as `wit/` names it.
    pub function: &'static str,
    /// Number of calls.
    pub calls: u64,
    /// Things that these calls were about: steps, tokens, events, requests.
    pub items: u64,
    /// Fuel of the call that used the largest share of its limit.
    pub fuel_most: Used,
    /// Fuel of a call on average.
    pub fuel_mean: f64,
    /// Bytes of the answer that used the largest share of its limit.
    pub answer_bytes_most: Used,
    /// Time of a call on this machine, the median in nanoseconds, the way in and
    /// out of the guest included.
    pub median_ns: u64,
}

impl CheckReport {
    /// Whether every claim holds.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.checks.iter().all(|check| check.outcome == Outcome::Passed)
    }

    /// Whether a call failed, by the guest's or by this machine's fault.
    #[must_use]
    pub fn has_failed_call(&self) -> bool {
        let has_failed =
            |outcome: &Outcome| matches!(outcome, Outcome::GuestFailed { .. } | Outcome::HostFailed { .. });
        self.checks.iter().any(|check| has_failed(&check.outcome))
    }
}
