//! Signals: their definitions, default limits, and the action after a failure.

use serde::Serialize;

/// The response to a failed signal. Later variants take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// The release waits.
    Hold,
    /// The release is taken back.
    Rollback,
}

/// The signals, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// Share of compared answers that differ.
    OutputMismatch,
    /// Share of compared answers whose numeric outputs are outside the tolerance.
    NumericDrift,
    /// Increase of the share of failed requests.
    ErrorRateIncrease,
    /// Relative increase of the 95th percentile of latencies.
    LatencyP95,
    /// Relative increase of the 95th percentile of the time to the first token.
    TtftP95,
    /// Relative increase of the 95th percentile of token gaps.
    TokenGapP95,
    /// Increase of the 95th percentile of KV usage.
    MemoryPressure,
    /// Share of compared answers without output material in common.
    IncomparableOutputs,
    /// Number of matched requests.
    Matched,
    /// Number of matched requests, as a share of the side with fewer requests.
    MatchedShare,
    /// Share of the candidate's requests that have a route.
    Route,
    /// Share of the candidate's requests that have a scheduling policy.
    Scheduler,
    /// Share of the candidate's answers that have stream events or token gaps.
    Stream,
}

/// The unit of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A share from 0 to 1.
    Share,
    /// A change relative to the baseline.
    Change,
    /// A number of requests.
    Requests,
}

/// The description of a signal.
#[derive(Clone, Copy, Debug)]
pub struct SignalInfo {
    /// The signal.
    pub signal: Signal,
    /// The signal's key in policies and reports.
    pub name: &'static str,
    /// The response to a failure.
    pub response: Response,
    /// Whether the limit is a minimum.
    pub is_minimum: bool,
    /// The unit of the signal's value.
    pub unit: Unit,
    /// The limit if a policy names none.
    pub default: f64,
    /// The reason for the default limit.
    pub reason: &'static str,
    /// The owner if a policy names none.
    pub owner: &'static str,
    /// The next action after a failure.
    pub action: &'static str,
}

impl SignalInfo {
    /// The table of a policy file that contains the signal's limit.
    #[must_use]
    pub const fn table(&self) -> &'static str {
        if self.is_minimum { "required" } else { "limits" }
    }

    /// Formats a value for people.
    #[must_use]
    pub fn value_text(&self, value: f64) -> String {
        match self.unit {
            Unit::Share => format!("{} %", (value * 1e4).round() / 1e2),
            Unit::Change if value.is_infinite() => "from 0".to_owned(),
            Unit::Change => format!("{:+.2} %", value * 100.0),
            Unit::Requests => format!("{value}"),
        }
    }
}

impl Signal {
    /// The signal's description.
    #[must_use]
    pub const fn info(self) -> &'static SignalInfo {
        &SIGNALS[self as usize]
    }

    /// The signal's key in policies and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.info().name
    }
}

const ROLLBACK: SignalInfo = SignalInfo {
    signal: Signal::OutputMismatch,
    name: "",
    response: Response::Rollback,
    is_minimum: false,
    unit: Unit::Share,
    default: 0.0,
    reason: "",
    owner: "",
    action: "",
};
const HOLD: SignalInfo = SignalInfo { response: Response::Hold, ..ROLLBACK };
const REGRESSION: SignalInfo = SignalInfo { unit: Unit::Change, ..HOLD };
const REQUIRED: SignalInfo = SignalInfo { is_minimum: true, ..HOLD };

/// Descriptions of all signals, in order of precedence.
pub static SIGNALS: [SignalInfo; 13] = [
    SignalInfo {
        name: "output_mismatch",
        reason: "greedy decoding of the same model repeats its answers; allow a share where sampling is random",
        owner: "model-quality",
        action: "take the candidate back, then compare the first difference of the answers below",
        ..ROLLBACK
    },
    SignalInfo {
        signal: Signal::NumericDrift,
        name: "numeric_drift",
        reason: "a tolerance already limits the distance of numbers",
        owner: "model-quality",
        action: "take the candidate back, then check kernels, precision and quantization of the candidate",
        ..ROLLBACK
    },
    SignalInfo {
        signal: Signal::ErrorRateIncrease,
        name: "error_rate_increase",
        default: 0.005,
        reason: "retries of clients usually hide half a percentage point",
        owner: "serving",
        action: "take the candidate back, then look at the error classes of the requests below",
        ..ROLLBACK
    },
    SignalInfo {
        signal: Signal::LatencyP95,
        name: "latency_p95",
        default: 0.05,
        reason: "5 % is below what users notice and above the noise between hosts",
        owner: "serving",
        action: "compare queue depth and batch sizes of both sides for the requests below",
        ..REGRESSION
    },
    SignalInfo {
        signal: Signal::TtftP95,
        name: "ttft_p95",
        default: 0.05,
        reason: "as for latencies; changes of admission, prefill and caching show here first",
        owner: "scheduling",
        action: "compare admission, chunked prefill and cache hits of both sides for the requests below",
        ..REGRESSION
    },
    SignalInfo {
        signal: Signal::TokenGapP95,
        name: "token_gap_p95",
        default: 0.05,
        reason: "as for latencies; changes of batching and kernels show here first",
        owner: "scheduling",
        action: "compare batch widths and prefill interference of both sides for the requests below",
        ..REGRESSION
    },
    SignalInfo {
        signal: Signal::MemoryPressure,
        name: "memory_pressure",
        default: 0.05,
        reason: "five points of KV blocks are the room that keeps bursts from preempting",
        owner: "capacity",
        action: "check block size, prefix caching and KV memory of the candidate",
        ..HOLD
    },
    SignalInfo {
        signal: Signal::IncomparableOutputs,
        name: "incomparable_outputs",
        reason: "answers that cannot be compared prove nothing",
        owner: "release",
        action: "mirror the same output material on both sides: token ids, text or vectors",
        ..HOLD
    },
    SignalInfo {
        signal: Signal::Matched,
        name: "matched",
        unit: Unit::Requests,
        default: 200.0,
        reason: "a 95th percentile of fewer requests rests on less than ten of them",
        owner: "release",
        action: "send more of the same requests to both sides",
        ..REQUIRED
    },
    SignalInfo {
        signal: Signal::MatchedShare,
        name: "matched_share",
        default: 0.95,
        reason: "requests without a partner may be the failed ones",
        owner: "release",
        action: "look for requests that one side has not recorded or lost, and check that ids or contents agree; set \
                 required.matched_share where the candidate gets a sample",
        ..REQUIRED
    },
    SignalInfo {
        signal: Signal::Route,
        name: "route",
        reason: "only some routers report routes",
        owner: "routing",
        action: "record the route of each request on the candidate",
        ..REQUIRED
    },
    SignalInfo {
        signal: Signal::Scheduler,
        name: "scheduler",
        reason: "only some engines report their policy",
        owner: "scheduling",
        action: "record the scheduling policy of each request on the candidate",
        ..REQUIRED
    },
    SignalInfo {
        signal: Signal::Stream,
        name: "stream",
        reason: "clients that do not stream see no single tokens",
        owner: "serving",
        action: "record the arrival of each chunk on the candidate",
        ..REQUIRED
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_in_their_order_and_explained() {
        for (index, info) in SIGNALS.iter().enumerate() {
            assert_eq!(info.signal as usize, index, "{}", info.name);
            assert!(!info.name.is_empty() && !info.reason.is_empty() && !info.action.is_empty(), "{}", info.name);
            let name = serde_json::to_value(info.signal).expect("JSON");
            assert_eq!(name, info.name);
        }
        assert!(SIGNALS.windows(2).all(|pair| pair[0].response >= pair[1].response), "rollbacks come first");
    }
}
