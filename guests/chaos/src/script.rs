use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use vcr_guest_sdk::Rng;

use crate::rule::{Action, Rule, Trigger};

/// The longest time that an action may have, in milliseconds.
const MS_MAX: f64 = 1e12;

/// Faults to inject into an engine.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Each by itself; where several happen at once, in this order.
    rules: Vec<RuleScript>,
}

/// A trigger and its fault.
///
/// A rule with `match` or `after_tokens` is about requests and happens once to
/// each that fits. One with `utility` is about utility calls. One with neither
/// happens once, at `at_ms`. With `until_ms` it happens within a window: a burst
/// of errors, for example.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleScript {
    /// The requests it is about; all of them where it is empty.
    #[serde(default, rename = "match")]
    matches: Option<MatchScript>,
    /// It happens when a request has this number of output tokens; when it arrives
    /// where this is left out.
    #[serde(default)]
    after_tokens: Option<u32>,
    /// It happens when a utility call is answered whose method's name contains
    /// this text.
    #[serde(default)]
    utility: Option<String>,
    /// It does not happen before this time.
    #[serde(default)]
    at_ms: Option<f64>,
    /// It does not happen at this time or later.
    #[serde(default)]
    until_ms: Option<f64>,
    /// It happens to every so-manieth request or call that it could happen to.
    #[serde(default = "one")]
    every: u32,
    /// It happens then with this probability.
    #[serde(default = "certain")]
    probability: f64,
    /// Effect of the rule.
    action: ActionScript,
}

/// Selection of the requests that a rule applies to.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MatchScript {
    /// A text that its name contains.
    request_id: String,
    /// The least and the most tokens that its prompt has.
    prompt_tokens: Option<[u32; 2]>,
}

/// Effect of a rule. See `vcr_guest_sdk::FaultAction`.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ActionScript {
    FailRequest,
    /// The engine does nothing for a time.
    Stall {
        ms: f64,
    },
    /// The engine dies.
    Crash {
        /// Time until it comes back, if it does.
        #[serde(default)]
        restart_after_ms: Option<f64>,
    },
    /// The next output message is lost.
    DropMessage,
    /// The next output message is sent twice.
    DuplicateMessage,
    /// The next output message cannot be read.
    CorruptMessage,
    /// The next output message is late.
    DelayMessage {
        /// By how much.
        ms: f64,
    },
    /// The next batch of KV events is lost.
    LoseKvEvents,
    /// The utility call fails.
    FailUtility,
}

fn one() -> u32 {
    1
}

fn certain() -> f64 {
    1.0
}

impl Script {
    /// The rules, each with randomness of its own.
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

/// Whole nanoseconds of a time in milliseconds.
fn nanoseconds(field: &str, ms: f64) -> Result<u64, String> {
    if !(0.0..=MS_MAX).contains(&ms) {
        return Err(format!("invalid `{field}`: expected 0 to 1e12, got {ms}"));
    }
    Ok((ms * 1e6 + 0.5) as u64)
}
