use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use vcr_guest_sdk::Rng;

use crate::rule::{Action, Rule, Trigger};

/// The longest time in a script, in milliseconds.
const MS_MAX: f64 = 1e12;

/// Faults to inject into an engine.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The rules are independent. If several apply at once, they apply in this order.
    rules: Vec<RuleScript>,
}

/// A trigger and its fault.
///
/// A rule with `match` or `after_tokens` is about requests and applies once to each that matches. A rule with
/// `utility` is about utility calls. A rule with neither applies once, at `at_ms`. `until_ms` makes it apply within a
/// window, for example a burst of errors.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleScript {
    /// Selects the requests; empty selects all.
    #[serde(default, rename = "match")]
    matches: Option<MatchScript>,
    /// Number of output tokens at which the rule applies to a request; by default at its arrival.
    #[serde(default)]
    after_tokens: Option<u32>,
    /// The rule applies to utility calls whose method name contains this text.
    #[serde(default)]
    utility: Option<String>,
    /// The rule does not apply before this time.
    #[serde(default)]
    at_ms: Option<f64>,
    /// The rule does not apply at this time or later.
    #[serde(default)]
    until_ms: Option<f64>,
    /// The rule applies to every n-th request or call that matches.
    #[serde(default = "one")]
    every: u32,
    /// The probability that the rule applies when it is due.
    #[serde(default = "certain")]
    probability: f64,
    action: ActionScript,
}

/// Selection of the requests that a rule applies to.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MatchScript {
    /// Text that the request's name must contain.
    request_id: String,
    /// Minimum and maximum number of prompt tokens.
    prompt_tokens: Option<[u32; 2]>,
}

/// Effect of a rule. See `vcr_guest_sdk::FaultAction`.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ActionScript {
    FailRequest,
    /// Stalls the engine.
    Stall {
        ms: f64,
    },
    /// Crashes the engine.
    Crash {
        /// Time until the engine restarts; without it the engine stays down.
        #[serde(default)]
        restart_after_ms: Option<f64>,
    },
    /// Drops the next output message.
    DropMessage,
    /// Sends the next output message twice.
    DuplicateMessage,
    /// Makes the next output message unreadable.
    CorruptMessage,
    /// Delays the next output message.
    DelayMessage {
        /// The delay.
        ms: f64,
    },
    /// Drops the next batch of KV events.
    LoseKvEvents,
    /// Fails the utility call.
    FailUtility,
}

fn one() -> u32 {
    1
}

fn certain() -> f64 {
    1.0
}

impl Script {
    /// Makes the rules, each with its own random stream.
    pub(crate) fn rules(self, seed: u64) -> Result<Vec<Rule>, String> {
        let rules = self.rules.into_iter().enumerate();
        rules
            .map(|(index, rule)| {
                let rng = Rng::new(seed, index as u64);
                rule.check(rng).map_err(|problem| format!("`rules[{index}]`: {problem}"))
            })
            .collect()
    }
}

impl RuleScript {
    fn check(self, rng: Rng) -> Result<Rule, String> {
        if self.every == 0 {
            return Err("invalid `every`: expected at least 1, got 0".into());
        }
        if !(0.0..=1.0).contains(&self.probability) {
            return Err(format!("invalid `probability`: expected 0 to 1, got {}", self.probability));
        }
        let from_ns = self.at_ms.map(|ms| nanoseconds("at_ms", ms)).transpose()?;
        let until_ns = self.until_ms.map(|ms| nanoseconds("until_ms", ms)).transpose()?;
        let window_ns = from_ns.unwrap_or(0)..until_ns.unwrap_or(u64::MAX);
        if window_ns.is_empty() {
            return Err("invalid `until_ms`: expected later than `at_ms`".into());
        }
        let trigger = match (self.matches, self.after_tokens, self.utility) {
            (None, None, None) if from_ns.is_none() => {
                return Err("it never happens: give `match`, `after_tokens`, `utility` or `at_ms`".into());
            }
            (None, None, None) if self.every > 1 => {
                return Err("`every` counts requests or utility calls, but the rule is about neither".into());
            }
            (None, None, None) => Trigger::Time,
            (None, None, Some(method)) => Trigger::Utility { method },
            (_, _, Some(_)) => {
                return Err("it is about requests and about utility calls: leave `match` and `after_tokens` out, or \
                            `utility`"
                    .into());
            }
            (matches, after_tokens, None) => {
                let matches = matches.unwrap_or_default();
                let [low, high] = matches.prompt_tokens.unwrap_or([0, u32::MAX]);
                if low > high {
                    return Err(format!(
                        "invalid `match.prompt_tokens`: expected the lesser number first, got [{low}, {high}]"
                    ));
                }
                let after_tokens = after_tokens.unwrap_or(0);
                Trigger::Request { request_id: matches.request_id, prompt_tokens: low..=high, after_tokens }
            }
        };
        let action = self.action.check()?;
        match (&action, &trigger) {
            (Action::FailRequest, Trigger::Request { .. }) | (Action::FailUtility, Trigger::Utility { .. }) => {}
            (Action::FailRequest, _) => return Err("`fail_request` needs `match` or `after_tokens`".into()),
            (Action::FailUtility, _) => return Err("`fail_utility` needs `utility`".into()),
            (Action::Other(_), _) => {}
        }
        Ok(Rule::new(trigger, window_ns, self.every, self.probability, action, rng))
    }
}

impl ActionScript {
    fn check(self) -> Result<Action, String> {
        use vcr_guest_sdk::FaultAction as Fault;

        Ok(Action::Other(match self {
            Self::FailRequest => return Ok(Action::FailRequest),
            Self::FailUtility => return Ok(Action::FailUtility),
            Self::Stall { ms } => Fault::Stall { duration_ns: nanoseconds("action.stall.ms", ms)? },
            Self::Crash { restart_after_ms } => {
                let delay_ns = restart_after_ms.map(|ms| nanoseconds("action.crash.restart_after_ms", ms));
                Fault::Crash { restart_after_ns: delay_ns.transpose()? }
            }
            Self::DropMessage => Fault::DropMessage,
            Self::DuplicateMessage => Fault::DuplicateMessage,
            Self::CorruptMessage => Fault::CorruptMessage,
            Self::DelayMessage { ms } => Fault::DelayMessage { by_ns: nanoseconds("action.delay_message.ms", ms)? },
            Self::LoseKvEvents => Fault::LoseKvEvents,
        }))
    }
}

/// Converts milliseconds to whole nanoseconds.
fn nanoseconds(field: &str, ms: f64) -> Result<u64, String> {
    if !(0.0..=MS_MAX).contains(&ms) {
        return Err(format!("invalid `{field}`: expected 0 to 1e12, got {ms}"));
    }
    Ok((ms * 1e6 + 0.5) as u64)
}
