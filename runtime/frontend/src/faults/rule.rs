//! Rules of client faults in the user's syntax, such as `status:code=429,rate=0.1`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use vcr_units as units;

use super::keys::{ClientFaultError, Keys};
use super::kind::{FaultKind, KINDS, kind};

/// A fault that clients meet, with its occasions.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientFault {
    /// The fault.
    pub kind: FaultKind,
    /// The calls that it may hit.
    pub when: Occasions,
    /// The user's text.
    text: String,
}

/// The calls that a rule may hit. All conditions must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Occasions {
    /// Probability at each.
    pub rate: f64,
    /// Every Nth only.
    pub nth: u64,
    /// Numbers of matching calls, from 1.
    pub calls: RangeInclusive<u64>,
    /// Limit of faults.
    pub count: u64,
    /// Nanoseconds since the server started, before which and from which on
    /// nothing happens.
    pub window_ns: (u64, u64),
    /// The path starts with this.
    pub path: Option<String>,
    /// A header, in lower case, and its value if that matters.
    pub header: Option<(String, Option<String>)>,
    /// The API key of the call.
    pub api_key: Option<String>,
    /// The `model` of its body.
    pub model: Option<String>,
}

impl ClientFault {
    /// The syntax, for the help.
    pub const SYNTAX: &str = "KIND[:KEY=VALUE,...], where KIND is one of
  status:code=429[,retry-after=2s,message=TEXT]
  rate_limit  invalid_api_key  context_length  server_error  invalid_request  model_not_found
  refuse  reset[:after=TOKENS]  stall:for=2s|ever[,after=TOKENS]  slow:every=50ms[,bytes=16]
  truncate[:after=TOKENS]  malformed[:after=TOKENS]  error-event[:after=TOKENS,code=500,message=TEXT]
  content-type[:value=text/html]  no-done  twice-done  no-usage
and every kind takes
  rate=0.1  nth=10  call=3  call=3..5  count=3  at=10s  from=10s  until=20s
  path=/v1/chat  header=NAME  header=NAME:VALUE  api-key=KEY  model=NAME";
}

impl fmt::Display for ClientFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl Occasions {
    fn read(keys: &Keys<'_>) -> Result<Occasions, ClientFaultError> {
        let at_ns = keys.get("at", units::duration_ns)?;
        let from_ns = keys.get("from", units::duration_ns)?;
        let until_ns = keys.get("until", units::duration_ns)?;
        if at_ns.is_some() && from_ns.is_some() {
            return Err(keys.error("`at` means once, `from` means from then on; give one of them"));
        }
        let header = keys.text("header").map(|text| match text.split_once(':') {
            Some((name, value)) => (name.trim().to_ascii_lowercase(), Some(value.trim().to_owned())),
            None => (text.to_ascii_lowercase(), None),
        });
        Ok(Occasions {
            rate: keys.get("rate", probability)?.unwrap_or(1.0),
            nth: keys.positive("nth")?.unwrap_or(1),
            calls: keys.get("call", calls)?.unwrap_or(1..=u64::MAX),
            count: keys.positive("count")?.unwrap_or(if at_ns.is_some() { 1 } else { u64::MAX }),
            window_ns: (at_ns.or(from_ns).unwrap_or(0), until_ns.unwrap_or(u64::MAX)),
            path: keys.text("path").map(str::to_owned),
            header,
            api_key: keys.text("api-key").map(str::to_owned),
            model: keys.text("model").map(str::to_owned),
        })
    }
}

fn probability(text: &str) -> Result<f64, String> {
    let rate = units::ratio(text).map_err(|error| error.to_string())?;
    if (0.0..=1.0).contains(&rate) { Ok(rate) } else { Err("must be from 0 to 1".to_owned()) }
}

fn calls(text: &str) -> Result<RangeInclusive<u64>, &'static str> {
    const WRITE: &str = "must be the number of a call from 1, or a range such as 3..5 or 3..";
    let number = |text: &str| text.parse::<u64>().ok().filter(|number| *number > 0).ok_or(WRITE);
    match text.split_once("..") {
        Some((first, "")) => Ok(number(first)?..=u64::MAX),
        Some((first, last)) => Ok(number(first)?..=number(last)?),
        None => number(text).map(|only| only..=only),
    }
}

impl FromStr for ClientFault {
    type Err = ClientFaultError;

    fn from_str(text: &str) -> Result<Self, ClientFaultError> {
        let keys = Keys::split(text, KINDS)?;
        let fault = Self { kind: kind(&keys)?, when: Occasions::read(&keys)?, text: text.to_owned() };
        let when = &fault.when;
        let needs_a_request = when.path.is_some() || when.header.is_some() || when.api_key.is_some();
        if fault.kind == FaultKind::Refuse && (needs_a_request || when.model.is_some()) {
            return Err(keys.error("a connection is refused before its requests are known; use `reset`"));
        }
        Ok(fault)
    }
}

/// In files, a rule is its text, or a map of `kind` and the same keys.
impl<'de> Deserialize<'de> for ClientFault {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Rule {
            Text(String),
            Map(serde_json::Map<String, serde_json::Value>),
        }
        let text = match Rule::deserialize(deserializer)? {
            Rule::Text(text) => text,
            Rule::Map(mut map) => {
                let kind = map.remove("kind").ok_or_else(|| D::Error::missing_field("kind"))?;
                let plain = |value: &serde_json::Value| match value {
                    serde_json::Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                let pairs: Vec<_> = map.iter().map(|(key, value)| format!("{key}={}", plain(value))).collect();
                format!("{}:{}", plain(&kind), pairs.join(","))
            }
        };
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_says_what_when_and_for_whom() {
        let rule: ClientFault = "stall:for=2s,after=3,call=4,header=X-Tenant:blue,api-key=k,model=m,from=1s,until=9s"
            .parse()
            .expect("valid");
        assert_eq!(rule.kind, FaultKind::Stall { for_ns: Some(2_000_000_000), after_tokens: Some(3) });
        assert_eq!((rule.when.calls.clone(), rule.when.window_ns), (4..=4, (1_000_000_000, 9_000_000_000)));
        assert_eq!(rule.when.header, Some(("x-tenant".to_owned(), Some("blue".to_owned()))));
        let json = r#"["reset", {"kind": "status", "code": 429, "retry-after": "2s", "nth": 3}]"#;
        let rules: Vec<ClientFault> = serde_json::from_str(json).expect("both forms are read");
        assert_eq!(rules[1].when.nth, 3);
        assert!(matches!(rules[1].kind, FaultKind::Status { code: 429, retry_after_s: Some(2), .. }));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, wanted) in [
            ("statsu", "expected one of status, rate_limit"),
            ("status", "`status` needs `code`"),
            ("status:code=42", "must be a status from 400 to 599"),
            ("stall:for=5", "`for=5`: `5` has no unit"),
            ("reset:for=5s", "`reset` has no `for`; it has after, rate"),
            ("reset:rate=2", "must be from 0 to 1"),
            ("reset:call=0", "must be the number of a call from 1"),
            ("reset:nth=0", "`nth` must be at least 1"),
            ("reset:nth", "expected KEY=VALUE, got `nth`"),
            ("reset:nth=1,nth=2", "`nth` is given twice"),
            ("refuse:model=m", "use `reset`"),
            ("slow:every=0ms", "must be more than 0"),
        ] {
            let error = text.parse::<ClientFault>().expect_err(text).to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
