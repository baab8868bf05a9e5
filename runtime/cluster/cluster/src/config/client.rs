//! A client's behaviour besides waiting: timeouts, cancellations, retries.

use vcr_base::random::Distribution;

/// How the clients of a workload behave. By default they wait for ever.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientConfig {
    /// A client gives up without a first token so long after it has sent.
    pub first_token_timeout_ns: Option<u64>,
    /// A client gives up without the whole answer so long after it has sent.
    pub timeout_ns: Option<u64>,
    /// A client gives up, for good, so long after it has sent for the first time.
    pub deadline_ns: Option<u64>,
    /// Clients that change their minds.
    pub cancel: Option<CancelConfig>,
    /// Whether and how clients try again.
    pub retry: Option<RetryConfig>,
    /// An open loop starts no session while this many are in flight.
    pub max_in_flight: Option<u64>,
    /// Sessions that may not start.
    pub when_full: WhenFull,
}

/// What becomes of a session that is due while as many are in flight as may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is dropped.
    #[default]
    Drop,
    /// It starts when another one ends.
    Delay,
}

/// When clients lose interest in an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct CancelConfig {
    /// The share of requests whose client does, from 0 to 1.
    pub share: f64,
    /// Milliseconds after it has sent.
    pub after_ms: Option<Distribution>,
    /// Output tokens (rounded, at least 1).
    pub after_tokens: Option<Distribution>,
}

/// How clients try again what timed out, failed or was refused by a router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryConfig {
    /// Attempts in all, the first included.
    pub max_attempts: u32,
    /// Wait before the second attempt.
    pub backoff_ns: u64,
    /// Factor of each further wait.
    pub factor: f64,
    /// The longest wait.
    pub max_backoff_ns: u64,
    /// The share of a wait that is left to chance, from 0 to 1.
    pub jitter: f64,
}

impl ClientConfig {
    /// Whether a client does anything but wait once it has sent.
    #[must_use]
    pub fn is_patient(&self) -> bool {
        *self == Self { max_in_flight: self.max_in_flight, when_full: self.when_full, ..Self::default() }
    }

    /// Every problem of it.
    pub(super) fn check(&self, problem: &mut dyn FnMut(&str)) {
        let times = [
            ("timeout", self.timeout_ns),
            ("first_token_timeout", self.first_token_timeout_ns),
            ("deadline", self.deadline_ns),
            ("max_in_flight", self.max_in_flight),
        ];
        for (name, _) in times.iter().filter(|(_, value)| *value == Some(0)) {
            problem(&format!("invalid `{name}`: expected above 0; leave it out for none"));
        }
        if let Some(cancel) = &self.cancel {
            if !(0.0..=1.0).contains(&cancel.share) {
                problem("invalid `share` of `cancel`: expected 0 to 1");
            }
            if cancel.after_ms.is_none() && cancel.after_tokens.is_none() {
                problem("`cancel` needs `after`, `after_tokens`, or both");
            }
        }
        if let Some(retry) = &self.retry {
            if retry.max_attempts == 0 {
                problem("invalid `max_attempts` of `retry`: expected at least 1");
            }
            if !(retry.factor.is_finite() && retry.factor >= 1.0) {
                problem("invalid `factor` of `retry`: expected a finite number of at least 1");
            }
            if !(0.0..=1.0).contains(&retry.jitter) {
                problem("invalid `jitter` of `retry`: expected 0 to 1");
            }
        }
    }
}
