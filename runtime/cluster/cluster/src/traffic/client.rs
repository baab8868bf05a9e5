//! Decisions of a request's client: when to cancel, and whether to retry.
//!
//! The decisions depend only on numbers, so they are the same in virtual and in real time.

use vcr_base::random::Stream;
use vcr_core::seed;

use crate::config::{ClientConfig, RetryConfig, whole};
use crate::ledger::record::{GiveUp, Outcome};

const NS_PER_MS: f64 = 1e6;

/// One attempt of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Number of earlier attempts.
    pub number: u32,
    /// When the first attempt was sent.
    pub first_sent_ns: u64,
    /// When this attempt is sent.
    pub sent_ns: u64,
}

/// The waiting time of an attempt's client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    first_token_ns: Option<u64>,
    /// The earliest cancellation for any reason other than the first token.
    whole: Option<(u64, GiveUp)>,
    cancel_tokens: Option<u32>,
}

impl Patience {
    /// The time and reason of the client's next cancellation.
    #[must_use]
    pub fn ends(&self, has_first_token: bool) -> Option<(u64, GiveUp)> {
        let first = self.first_token_ns.filter(|_| !has_first_token).map(|at_ns| (at_ns, GiveUp::FirstToken));
        first.into_iter().chain(self.whole).min()
    }

    /// Limits the wait to `cancels_at_ns`, if given.
    #[must_use]
    pub(crate) fn at_most(self, cancels_at_ns: Option<u64>) -> Self {
        let cancelled = cancels_at_ns.map(|at_ns| (at_ns, GiveUp::Cancelled));
        Self { whole: self.whole.into_iter().chain(cancelled).min(), ..self }
    }

    /// Number of tokens after which the client cancels.
    #[must_use]
    pub fn cancel_tokens(&self) -> Option<u32> {
        self.cancel_tokens
    }
}

impl ClientConfig {
    /// The time at which the client of an attempt cancels without a retry.
    #[must_use]
    pub fn last_ns(&self, attempt: Attempt) -> Option<u64> {
        self.deadline_ns.map(|limit_ns| attempt.first_sent_ns.saturating_add(limit_ns))
    }

    /// The waiting time of an attempt's client. `request_seed` must be the same for all attempts of a request.
    #[must_use]
    pub fn patience(&self, request_seed: u64, attempt: Attempt) -> Patience {
        let sent = |limit_ns: Option<u64>| limit_ns.map(|limit_ns| attempt.sent_ns.saturating_add(limit_ns));
        let (cancel_ns, cancel_tokens) = self.changes_mind(request_seed, attempt.first_sent_ns);
        let whole = [
            sent(self.timeout_ns).map(|at_ns| (at_ns, GiveUp::Timeout)),
            self.last_ns(attempt).map(|at_ns| (at_ns, GiveUp::Deadline)),
            cancel_ns.map(|at_ns| (at_ns, GiveUp::Cancelled)),
        ];
        Patience {
            first_token_ns: sent(self.first_token_timeout_ns),
            whole: whole.into_iter().flatten().min(),
            cancel_tokens,
        }
    }

    /// The time of the next attempt after a failed one, if the client retries.
    #[must_use]
    pub fn next_attempt_ns(&self, request_seed: u64, attempt: Attempt, outcome: Outcome, ended_ns: u64) -> Option<u64> {
        let retry = self.retry?;
        let may_help = match outcome {
            Outcome::Failed(_) | Outcome::Shed => true,
            Outcome::GivenUp(reason) => matches!(reason, GiveUp::FirstToken | GiveUp::Timeout),
            Outcome::Completed | Outcome::Rejected(_) | Outcome::Unfinished => false,
        };
        if !may_help || attempt.number + 1 >= retry.max_attempts {
            return None;
        }
        let at_ns = ended_ns.saturating_add(retry.wait_ns(request_seed, attempt.number));
        let (cancel_ns, _) = self.changes_mind(request_seed, attempt.first_sent_ns);
        self.last_ns(attempt).into_iter().chain(cancel_ns).all(|end_ns| at_ns < end_ns).then_some(at_ns)
    }

    /// When the client of a request loses interest, and after how many tokens of an attempt.
    fn changes_mind(&self, request_seed: u64, first_sent_ns: u64) -> (Option<u64>, Option<u32>) {
        let Some(cancel) = &self.cancel else { return (None, None) };
        let mut stream = Stream::new(request_seed, "cancel");
        // All values are always drawn, so that the share only changes which clients cancel.
        let is_one = stream.unit() < cancel.share;
        let after_ms = cancel.after_ms.map(|after_ms| after_ms.draw(&mut stream));
        let tokens = cancel.after_tokens.map(|tokens| whole(tokens.draw(&mut stream)));
        if !is_one {
            return (None, None);
        }
        // With a time of 0, the client would not have sent the request.
        let after_ns = after_ms.map(|ms| ((ms * NS_PER_MS).round() as u64).max(1));
        (after_ns.map(|after_ns| first_sent_ns.saturating_add(after_ns)), tokens)
    }
}

impl RetryConfig {
    /// Time for which a client waits after attempt number `attempt`.
    fn wait_ns(&self, request_seed: u64, attempt: u32) -> u64 {
        let longest = self.max_backoff_ns.max(self.backoff_ns) as f64;
        let wait = (self.backoff_ns as f64 * libm::pow(self.factor, f64::from(attempt))).min(longest);
        let chance = Stream::new(seed::derive(request_seed, "attempt", u64::from(attempt)), "backoff").unit();
        (wait * (1.0 - self.jitter * chance)).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use vcr_base::random::Distribution;

    use super::*;
    use crate::config::CancelConfig;
    use crate::ledger::record::FailReason;

    const S: u64 = 1_000_000_000;

    fn attempt(number: u32, sent_s: u64) -> Attempt {
        Attempt { number, first_sent_ns: 10 * S, sent_ns: sent_s * S }
    }

    #[test]
    fn the_earliest_reason_ends_the_wait() {
        let client = ClientConfig {
            first_token_timeout_ns: Some(2 * S),
            timeout_ns: Some(20 * S),
            deadline_ns: Some(25 * S),
            ..ClientConfig::default()
        };
        let first = client.patience(1, attempt(0, 10));
        assert_eq!(first.ends(false), Some((12 * S, GiveUp::FirstToken)));
        assert_eq!(first.ends(true), Some((30 * S, GiveUp::Timeout)));
        assert_eq!(client.patience(1, attempt(1, 20)).ends(true), Some((35 * S, GiveUp::Deadline)));
        assert_eq!(ClientConfig::default().patience(1, attempt(0, 10)).ends(false), None);
    }

    #[test]
    fn a_share_of_the_clients_cancels() {
        let client = ClientConfig {
            cancel: Some(CancelConfig {
                share: 0.25,
                after_ms: Some(Distribution::Constant { value: 500.0 }),
                after_tokens: Some(Distribution::Constant { value: 7.0 }),
            }),
            ..ClientConfig::default()
        };
        let all: Vec<Patience> = (0..4000).map(|seed| client.patience(seed, attempt(0, 10))).collect();
        let ones = all.iter().filter(|patience| patience.cancel_tokens() == Some(7));
        assert!((900..1100).contains(&ones.clone().count()));
        assert!(ones.clone().all(|one| one.ends(true) == Some((10 * S + S / 2, GiveUp::Cancelled))));
        // A later attempt of the same request is cancelled at the same time.
        assert!(
            (0..4000).zip(&all).all(|(seed, one)| client.patience(seed, attempt(1, 11)).ends(true) == one.ends(true))
        );
    }

    #[test]
    fn waits_grow_up_to_the_longest_and_end_with_the_attempts_or_the_deadline() {
        let retry = RetryConfig { max_attempts: 5, backoff_ns: S, factor: 2.0, max_backoff_ns: 3 * S, jitter: 0.0 };
        let client = ClientConfig { retry: Some(retry), deadline_ns: Some(60 * S), ..ClientConfig::default() };
        let timeout = Outcome::GivenUp(GiveUp::Timeout);
        let next = |number, outcome, at_s: u64| client.next_attempt_ns(1, attempt(number, 20), outcome, at_s * S);
        assert_eq!(
            [0, 1, 2, 3, 4].map(|n| next(n, timeout, 20)),
            [Some(21), Some(22), Some(23), Some(23), None].map(|s| s.map(|s: u64| s * S))
        );
        assert_eq!(next(0, timeout, 69), None, "the deadline would have passed");
        assert_eq!(next(0, Outcome::GivenUp(GiveUp::Cancelled), 20), None);
        assert_eq!(next(0, Outcome::Failed(FailReason::EngineCrash), 20), Some(21 * S));
        // A client that has cancelled in the meantime does not retry.
        let cancel =
            CancelConfig { share: 1.0, after_ms: Some(Distribution::Constant { value: 10_500.0 }), after_tokens: None };
        let fickle = ClientConfig { cancel: Some(cancel), ..client.clone() };
        let next = |at_s: u64| fickle.next_attempt_ns(1, attempt(0, 15), timeout, at_s * S);
        assert_eq!((next(19), next(20)), (Some(20 * S), None));
        let jittered = ClientConfig { retry: Some(RetryConfig { jitter: 0.5, ..retry }), ..client.clone() };
        let waits: Vec<u64> =
            (0..1000).filter_map(|seed| jittered.next_attempt_ns(seed, attempt(0, 20), timeout, 0)).collect();
        assert!(waits.iter().all(|wait| (S / 2..=S).contains(wait)));
        assert!(waits.iter().min() < Some(&(S * 55 / 100)) && waits.iter().max() > Some(&(S * 95 / 100)));
    }
}
