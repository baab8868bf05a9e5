//! Fault rules in the user's syntax, such as `error:rate=0.1,after=5`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use vcr_base::units;
use vcr_base::units::rule::{Keys, Occasions, RuleError, Syntax};
use vcr_wire::FinishReason;

use crate::kv_transfer::settings::TransferFault;

/// A fault, when it occurs, and which requests it concerns.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultRule {
    pub kind: FaultKind,
    /// Probability at each occasion.
    pub rate: f64,
    /// Only every Nth occasion.
    pub nth: u32,
    /// Start and end of the fault window, in nanoseconds since the engine began to serve.
    pub window_ns: (u64, u64),
    /// Maximum number of occurrences.
    pub count: u64,
    /// The requests that a fault of requests concerns.
    pub requests: RequestMatch,
    /// The rule as the user wrote it.
    text: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FaultKind {
    /// READY is delayed.
    SlowStart {
        /// Delay, in nanoseconds.
        by_ns: u64,
    },
    /// The engine stalls when the window begins, or when a matching request has some output.
    Stall {
        /// Duration, in nanoseconds.
        for_ns: u64,
        /// Number of output tokens of a matching request that triggers the stall.
        after_tokens: Option<u32>,
    },
    /// A request ends with this reason.
    Fail {
        /// Number of output tokens before the end.
        after_tokens: u32,
        finish: FinishReason,
    },
    /// The engine exits when the window begins, or when a matching request has some output.
    Crash {
        /// Nanoseconds until the engine restarts; `None`: it does not restart.
        restart_ns: Option<u64>,
        /// Whether the engine sends `ENGINE_CORE_DEAD` first.
        sends_dead: bool,
        /// Number of output tokens of a matching request that triggers the crash.
        after_tokens: Option<u32>,
    },
    /// A message to a frontend is lost.
    Drop,
    /// A message is sent twice.
    Duplicate,
    /// A message is late, and so are later messages to the same API server: a connection keeps its order.
    Late {
        /// Delay, in nanoseconds.
        by_ns: u64,
    },
    /// A message is late, and later messages overtake it, which no real connection does.
    Reorder {
        /// Delay, in nanoseconds.
        by_ns: u64,
    },
    /// A byte of a message is changed.
    Corrupt,
    /// All messages together are limited to this bandwidth.
    SlowSocket {
        /// Bandwidth, in bytes per second.
        bytes_per_s: u64,
    },
    /// A batch of KV events is lost.
    KvEventLoss,
    /// A transfer of KV to the engine fails, or is slow.
    KvTransfer(TransferFault),
    /// A utility call fails.
    UtilityFailure {
        /// The method; `None` matches any.
        method: Option<String>,
    },
}

/// The requests that a rule concerns.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestMatch {
    /// Part of the request's ID, internal or as users see it.
    pub id: Option<String>,
    /// Number of prompt tokens.
    pub prompt_tokens: RangeInclusive<u32>,
    /// Name of the request's LoRA adapter.
    pub lora: Option<String>,
    /// Priority of the request.
    pub priority: Option<i64>,
}

/// The key of a value that is written without a key: `kv-transfer:drop` is short for `kv-transfer:mode=drop`.
const MODE: &str = "mode";

static RULES: Syntax = Syntax {
    what: "fault",
    kinds: KINDS,
    common_keys: &["rate", "nth", "at", "from", "until", "count", "request", "prompt", "lora", "priority"],
    unnamed_key: MODE,
};

/// All kinds, each with the keys that no other kind has.
const KINDS: &[(&str, &[&str])] = &[
    ("slow-start", &["by"]),
    ("stall", &["for", "after"]),
    ("error", &["after", "reason"]),
    ("crash", &["restart", "after"]),
    ("dead", &["restart", "after"]),
    ("drop", &[]),
    ("duplicate", &[]),
    ("late", &["by"]),
    ("reorder", &["by"]),
    ("corrupt", &[]),
    ("slow-socket", &["bandwidth"]),
    ("kv-event-loss", &[]),
    ("kv-transfer", &[MODE, "by", "bandwidth"]),
    ("utility-failure", &["method"]),
];

impl FaultRule {
    /// The syntax, for the help.
    #[must_use]
    pub fn syntax() -> String {
        let reasons = FinishReason::ALL.map(FinishReason::name).join("|");
        format!(
            "KIND[:KEY=VALUE,...], where KIND is one of
  slow-start:by=30s            stall:for=2s[,after=TOKENS]
  error[:after=TOKENS,reason={reasons}]
  crash[:restart=5s,after=TOKENS]   dead[:restart=5s,after=TOKENS]
  drop  duplicate  corrupt  late:by=20ms  reorder:by=20ms  slow-socket:bandwidth=1MB/s
  kv-event-loss  utility-failure[:method=NAME]
  kv-transfer:drop  kv-transfer:corrupt  kv-transfer:refuse  kv-transfer:slow,by=20ms  kv-transfer:slow,bandwidth=1MB/s
and every kind takes
  rate=0.1  nth=10  count=3  at=10s  from=10s  until=20s
  request=PART-OF-ID  prompt=100..200  lora=NAME  priority=5"
        )
    }

    /// Whether the rule would stop the engine forever.
    fn never_ends(&self) -> bool {
        let is_of_engine = matches!(self.kind, FaultKind::Stall { .. } | FaultKind::Crash { .. });
        is_of_engine && !self.is_for_requests() && self.rate >= 1.0 && self.nth == 1
    }

    /// Whether the fault concerns single requests.
    pub(crate) fn is_for_requests(&self) -> bool {
        match self.kind {
            FaultKind::Fail { .. } => true,
            FaultKind::Stall { after_tokens, .. } | FaultKind::Crash { after_tokens, .. } => {
                after_tokens.is_some() || self.requests != RequestMatch::default()
            }
            _ => false,
        }
    }
}

impl Default for RequestMatch {
    fn default() -> Self {
        Self { id: None, prompt_tokens: 0..=u32::MAX, lora: None, priority: None }
    }
}

impl fmt::Display for FaultRule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

fn kind(keys: &Keys) -> Result<FaultKind, RuleError> {
    let duration = |key| keys.get(key, units::duration_ns);
    let after_tokens = keys.get("after", str::parse::<u32>)?;
    Ok(match keys.kind() {
        "slow-start" => FaultKind::SlowStart { by_ns: keys.needed("by", duration("by")?)? },
        "stall" => FaultKind::Stall { for_ns: keys.needed("for", duration("for")?)?, after_tokens },
        "error" => FaultKind::Fail {
            after_tokens: after_tokens.unwrap_or(0),
            finish: keys.get("reason", finish_reason)?.unwrap_or(FinishReason::Error),
        },
        "crash" | "dead" => {
            FaultKind::Crash { restart_ns: duration("restart")?, sends_dead: keys.kind() == "dead", after_tokens }
        }
        "drop" => FaultKind::Drop,
        "duplicate" => FaultKind::Duplicate,
        "late" => FaultKind::Late { by_ns: keys.needed("by", duration("by")?)? },
        "reorder" => FaultKind::Reorder { by_ns: keys.needed("by", duration("by")?)? },
        "corrupt" => FaultKind::Corrupt,
        "slow-socket" => {
            let bandwidth = keys.get("bandwidth", units::bandwidth_bytes_per_s)?;
            let bytes_per_s = keys.needed("bandwidth", bandwidth)?;
            if bytes_per_s == 0 {
                return Err(keys.error("invalid `bandwidth`: expected more than 0; `drop` loses everything"));
            }
            FaultKind::SlowSocket { bytes_per_s }
        }
        "kv-event-loss" => FaultKind::KvEventLoss,
        "kv-transfer" => FaultKind::KvTransfer(transfer_fault(keys)?),
        "utility-failure" => FaultKind::UtilityFailure { method: keys.text("method").map(str::to_owned) },
        _ => unreachable!("kinds are checked when the text is split"),
    })
}

fn transfer_fault(keys: &Keys) -> Result<TransferFault, RuleError> {
    let by_ns = keys.get("by", units::duration_ns)?;
    let bytes_per_s = keys.get("bandwidth", units::bandwidth_bytes_per_s)?;
    let mode = keys.text(MODE);
    let fault = match mode {
        Some("drop") => TransferFault::Drop,
        Some("corrupt") => TransferFault::Corrupt,
        Some("refuse") => TransferFault::Refuse,
        Some("slow") if by_ns.is_none() && bytes_per_s.is_none() => {
            return Err(keys.error("`kv-transfer:slow` needs `by` or `bandwidth`"));
        }
        Some("slow") if bytes_per_s == Some(0) => {
            return Err(keys.error("invalid `bandwidth`: expected more than 0; `kv-transfer:drop` loses everything"));
        }
        Some("slow") => return Ok(TransferFault::Slow { by_ns: by_ns.unwrap_or(0), bytes_per_s }),
        other => {
            let given = other.map_or_else(|| "nothing".to_owned(), |other| format!("`{other}`"));
            return Err(
                keys.error(format!("`kv-transfer` is followed by {given}: expected drop, slow, corrupt or refuse"))
            );
        }
    };
    if by_ns.is_some() || bytes_per_s.is_some() {
        return Err(keys.error("`by` and `bandwidth` are for `kv-transfer:slow`"));
    }
    Ok(fault)
}

fn finish_reason(text: &str) -> Result<FinishReason, String> {
    FinishReason::parse(text).ok_or_else(|| format!("expected {}", FinishReason::EXPECTED))
}

fn token_range(text: &str) -> Result<RangeInclusive<u32>, &'static str> {
    const WRITE: &str = "expected a number of tokens, or a range such as 100..200, ..200 or 100..";
    let number = |text: &str, default| if text.is_empty() { Ok(default) } else { text.parse().map_err(|_| WRITE) };
    match text.split_once("..") {
        Some((least, most)) => Ok(number(least, 0)?..=number(most, u32::MAX)?),
        None => text.parse().map(|tokens| tokens..=tokens).map_err(|_| WRITE),
    }
}

impl FromStr for FaultRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let keys = RULES.split(text)?;
        let Occasions { rate, nth, count, window_ns } = keys.occasions()?;
        let mut rule = Self {
            kind: kind(&keys)?,
            rate,
            nth: u32::try_from(nth).unwrap_or(u32::MAX),
            window_ns,
            count,
            requests: RequestMatch {
                id: keys.text("request").map(str::to_owned),
                prompt_tokens: keys.get("prompt", token_range)?.unwrap_or(0..=u32::MAX),
                lora: keys.text("lora").map(str::to_owned),
                priority: keys.get("priority", str::parse::<i64>)?,
            },
            text: text.to_owned(),
        };
        if keys.text("count").is_none() && rule.never_ends() {
            rule.count = 1;
        }
        Ok(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> FaultRule {
        text.parse().expect("it is a fault")
    }

    #[test]
    fn a_rule_says_what_when_and_for_whom() {
        let error = rule("error:after=5,rate=10%,prompt=100..200,request=chat,count=3");
        assert_eq!(error.kind, FaultKind::Fail { after_tokens: 5, finish: FinishReason::Error });
        assert_eq!((error.rate, error.count), (0.1, 3));
        assert_eq!(error.requests.prompt_tokens, 100..=200);
        assert!(error.is_for_requests());

        let stall = rule("stall:for=1.5s,at=10s");
        assert_eq!(stall.kind, FaultKind::Stall { for_ns: 1_500_000_000, after_tokens: None });
        assert_eq!((stall.window_ns, stall.count), ((10_000_000_000, u64::MAX), 1));
        assert!(!stall.is_for_requests());

        let dropped = rule("kv-transfer:drop,rate=0.5,nth=2");
        assert_eq!((dropped.kind, dropped.rate, dropped.nth), (FaultKind::KvTransfer(TransferFault::Drop), 0.5, 2));
        let slow = TransferFault::Slow { by_ns: 20_000_000, bytes_per_s: None };
        assert_eq!(rule("kv-transfer:slow,by=20ms").kind, FaultKind::KvTransfer(slow));
        assert_eq!(stall.to_string(), "stall:for=1.5s,at=10s");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, wanted) in [
            ("eror", "invalid fault `eror`: unknown fault `eror`: expected one of slow-start, stall, error"),
            ("late", "`late` needs `by`"),
            ("late:by=5", "`by=5`: `5` has no unit"),
            ("reorder", "`reorder` needs `by`"),
            ("drop:after=5", "`drop` has no `after`; it has rate, nth"),
            ("drop:rate=1.5", "`rate=1.5`: expected 0 to 1"),
            ("drop:nth=0", "invalid `nth`: expected at least 1"),
            ("drop:rate", "expected KEY=VALUE, got `rate`"),
            ("drop:rate=1,rate=1", "`rate` is given twice"),
            ("stall:for=1s,at=1s,from=2s", "give one of them"),
            ("error:prompt=a..b", "expected a number of tokens"),
            ("slow-socket:bandwidth=0MB/s", "expected more than 0"),
            ("kv-transfer", "is followed by nothing: expected drop, slow, corrupt or refuse"),
            ("kv-transfer:lose", "is followed by `lose`: expected drop, slow, corrupt or refuse"),
            ("kv-transfer:slow", "`kv-transfer:slow` needs `by` or `bandwidth`"),
            ("kv-transfer:slow,bandwidth=0MB/s", "expected more than 0"),
            ("kv-transfer:drop,by=1ms", "are for `kv-transfer:slow`"),
            ("kv-transfer:rate=1,drop", "expected KEY=VALUE, got `drop`"),
        ] {
            let error = text.parse::<FaultRule>().expect_err(text).to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn the_syntax_names_every_kind_and_reason() {
        let syntax = FaultRule::syntax();
        for (kind, _) in KINDS {
            assert!(syntax.contains(kind), "{kind} is not in {syntax}");
        }
        let reasons =
            syntax.split_once("reason=").and_then(|(_, rest)| rest.split_once(']')).expect("they are listed").0;
        for reason in reasons.split('|') {
            rule(&format!("error:reason={reason}"));
        }
        assert_eq!(reasons.split('|').count(), FinishReason::ALL.len());
    }

    proptest::proptest! {
        /// Rules are user input, so no text may cause a panic.
        #[test]
        fn any_text_is_a_rule_or_an_error(
            text in "(slow-start|stall|error|crash|late|drop|[a-z-]{0,9})(:([a-z]{1,8}=[-0-9a-z.%/=]{0,9},?){0,4})?",
            garbage in ".{0,60}",
        ) {
            for text in [text, garbage] {
                if let Ok(rule) = text.parse::<FaultRule>() {
                    proptest::prop_assert_eq!(rule.to_string(), text);
                    proptest::prop_assert!((0.0..=1.0).contains(&rule.rate) && rule.nth >= 1 && rule.count >= 1);
                }
            }
        }
    }
}
