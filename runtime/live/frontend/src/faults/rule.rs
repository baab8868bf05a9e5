//! Rules of client faults in the user's syntax, such as `status:code=429,rate=0.1`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::{Map, Value};
use vcr_base::units::rule::{Keys, Occasions, RuleError, Syntax};

use super::kind::{FaultKind, KINDS, kind, period};

static CLIENT_RULES: Syntax = Syntax {
    what: "client fault",
    kinds: KINDS,
    common_keys: &[
        "rate", "nth", "call", "cycle", "count", "per", "at", "from", "until", "period", "path", "header", "api-key",
        "tenant", "model",
    ],
    unnamed_key: "",
};

/// A fault that clients see, and the calls it may hit.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientFault {
    pub kind: FaultKind,
    /// The calls that the fault may hit.
    pub when: FaultConditions,
    text: String,
}

/// The conditions of a rule. All must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultConditions {
    /// The probability for each call.
    pub rate: f64,
    /// Hit only every Nth call.
    pub nth: u64,
    /// The range of call numbers to hit, from 1. Only matching calls are numbered.
    pub calls: RangeInclusive<u64>,
    /// The number of calls after which numbering restarts at 1.
    pub cycle: u64,
    /// The property by which callers are counted separately. `None` counts all together.
    pub per: Option<CountedPer>,
    /// Limit of faults.
    pub count: u64,
    /// Start and end of the fault window, in nanoseconds since the start of the server or of the current period.
    pub window_ns: (u64, u64),
    /// The length of a period in nanoseconds.
    pub period_ns: Option<u64>,
    /// Prefixes of the path, one of which must match. Empty: any path.
    pub paths: Vec<String>,
    /// A header in lower case, and its value if required.
    pub header: Option<(String, Option<String>)>,
    /// The API key of the call.
    pub api_key: Option<String>,
    /// The tenant of the call.
    pub tenant: Option<String>,
    /// The `model` in the body.
    pub model: Option<String>,
}

/// The attribute by which callers are counted separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CountedPer {
    ApiKey,
    Tenant,
    /// The `model` in the body.
    Model,
    /// The value of this header, in lower case.
    Header(String),
}

impl CountedPer {
    fn parse(text: &str) -> Result<Self, &'static str> {
        match text.split_once(':') {
            None if text == "api-key" => Ok(Self::ApiKey),
            None if text == "tenant" => Ok(Self::Tenant),
            None if text == "model" => Ok(Self::Model),
            Some(("header", name)) if !name.trim().is_empty() => Ok(Self::Header(name.trim().to_ascii_lowercase())),
            _ => Err("expected api-key, tenant, model or header:NAME"),
        }
    }
}

impl ClientFault {
    /// Creates a rule from its kind and its keys with values. Unlike in the text syntax, values may contain commas.
    pub fn from_pairs<'a>(kind: &str, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, RuleError> {
        Self::of_keys(&CLIENT_RULES.of_pairs(kind, pairs)?)
    }

    fn of_keys(keys: &Keys) -> Result<Self, RuleError> {
        let fault = Self { kind: kind(keys)?, when: FaultConditions::read(keys)?, text: keys.rule().to_owned() };
        if fault.kind == FaultKind::Refuse && fault.when.needs_request() {
            return Err(keys.error("a connection is refused before its requests are known; use `reset`"));
        }
        Ok(fault)
    }

    /// Whether the fault changes the request, so that no recording would match.
    #[must_use]
    pub fn changes_requests(&self) -> bool {
        matches!(self.kind, FaultKind::Short { .. })
    }

    /// The syntax, for help texts.
    pub const SYNTAX: &str = "KIND[:KEY=VALUE,...], where KIND is one of
  status:code=429[,retry-after=2s,message=TEXT|body=TEXT]
  rate_limit  invalid_api_key  context_length  server_error  invalid_request  model_not_found
  refuse  reset[:after=TOKENS]  stall:for=2s|ever[,after=TOKENS]  slow:every=50ms[,bytes=16]
  truncate[:after=TOKENS]  malformed[:after=TOKENS]  error-event[:after=TOKENS,code=500,message=TEXT]
  content-type[:value=text/html]  no-done  twice-done  no-usage
and every kind takes
  rate=0.1  nth=10  call=3  call=3..5  cycle=10  count=3  at=10s  from=10s  until=20s  period=60s
  path=/v1/chat|/v1/responses  header=NAME  header=NAME:VALUE  api-key=KEY  tenant=NAME  model=NAME
  per=tenant|api-key|model|header:NAME";
}

impl fmt::Display for ClientFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl FaultConditions {
    fn read(keys: &Keys) -> Result<FaultConditions, RuleError> {
        let Occasions { rate, nth, count, window_ns } = keys.occasions()?;
        let period_ns = keys.get("period", period)?;
        if let Some(period_ns) = period_ns {
            if keys.text("at").is_some() {
                return Err(keys.error("`at` means once; give `from` and `until` with `period`"));
            }
            if window_ns.0 >= period_ns || keys.text("until").is_some() && window_ns.1 > period_ns {
                return Err(keys.error("`from` and `until` must lie within `period`"));
            }
        }
        let header = keys.text("header").map(|text| match text.split_once(':') {
            Some((name, value)) => (name.trim().to_ascii_lowercase(), Some(value.trim().to_owned())),
            None => (text.to_ascii_lowercase(), None),
        });
        Ok(FaultConditions {
            rate,
            nth,
            calls: keys.get("call", calls)?.unwrap_or(1..=u64::MAX),
            cycle: keys.positive("cycle")?.unwrap_or(u64::MAX),
            per: keys.get("per", CountedPer::parse)?,
            count,
            window_ns,
            period_ns,
            paths: keys.text("path").into_iter().flat_map(|text| text.split('|')).map(str::to_owned).collect(),
            header,
            api_key: keys.text("api-key").map(str::to_owned),
            tenant: keys.text("tenant").map(str::to_owned),
            model: keys.text("model").map(str::to_owned),
        })
    }

    /// Whether the conditions need a request, not only a connection.
    fn needs_request(&self) -> bool {
        let texts = [&self.api_key, &self.tenant, &self.model];
        !self.paths.is_empty() || self.header.is_some() || self.per.is_some() || texts.into_iter().any(Option::is_some)
    }

    /// Whether the conditions need the request's body.
    pub(super) fn needs_body(&self) -> bool {
        self.model.is_some()
            || self.tenant.is_some()
            || matches!(self.per, Some(CountedPer::Tenant | CountedPer::Model))
    }
}

fn calls(text: &str) -> Result<RangeInclusive<u64>, &'static str> {
    const WRITE: &str = "expected the number of a call from 1, or a range such as 3..5 or 3..";
    let number = |text: &str| text.parse::<u64>().ok().filter(|number| *number > 0).ok_or(WRITE);
    match text.split_once("..") {
        Some((first, "")) => Ok(number(first)?..=u64::MAX),
        Some((first, last)) => Ok(number(first)?..=number(last)?),
        None => number(text).map(|only| only..=only),
    }
}

impl FromStr for ClientFault {
    type Err = RuleError;

    /// Parses `kind:key=value,...`, or a JSON object with `kind` and the same keys.
    fn from_str(text: &str) -> Result<Self, RuleError> {
        if text.trim_start().starts_with('{') {
            let map = serde_json::from_str(text);
            return Self::of_map(map.map_err(|error| CLIENT_RULES.error(text, error.to_string()))?);
        }
        Self::of_keys(&CLIENT_RULES.split(text)?)
    }
}

impl ClientFault {
    fn of_map(mut map: Map<String, Value>) -> Result<Self, RuleError> {
        let plain = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let Some(kind) = map.remove("kind").map(plain) else {
            return Err(CLIENT_RULES.error(Value::Object(map).to_string(), "expected a key `kind`"));
        };
        let pairs: Vec<_> = map.into_iter().map(|(key, value)| (key, plain(value))).collect();
        Self::from_pairs(&kind, pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }
}

/// In files, a rule is the same text, or a map with `kind` and the same keys.
impl<'de> Deserialize<'de> for ClientFault {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Rule {
            Text(String),
            Map(Map<String, Value>),
        }
        let rule = match Rule::deserialize(deserializer)? {
            Rule::Text(text) => text.parse(),
            Rule::Map(map) => Self::of_map(map),
        };
        rule.map_err(D::Error::custom)
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
        let json =
            r#"["reset", {"kind": "status", "code": 429, "message": "no, never", "retry-after": "2s", "nth": 3}]"#;
        let rules: Vec<ClientFault> = serde_json::from_str(json).expect("both forms are read");
        assert_eq!(rules[1].when.nth, 3);
        let FaultKind::Status { code: 429, retry_after_s: Some(2), message, .. } = &rules[1].kind else {
            panic!("{:?}", rules[1])
        };
        assert_eq!(message.as_deref(), Some("no, never"));
        assert_eq!(r#"{"kind": "reset", "rate": "1%"}"#.parse(), "reset:rate=1%".parse::<ClientFault>());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, wanted) in [
            (r#"{"rate": 1}"#, "expected a key `kind`"),
            ("{", "EOF while parsing an object"),
            ("statsu", "unknown client fault `statsu`: expected one of status, rate_limit"),
            ("status", "`status` needs `code`"),
            ("status:code=42", "expected a status from 400 to 599"),
            ("status:code=500,body=a,message=b", "give one of them"),
            ("stall:for=5", "`for=5`: `5` has no unit"),
            ("reset:for=5s", "`reset` has no `for`; it has after, rate"),
            ("reset:rate=2", "expected 0 to 1"),
            ("reset:call=0", "expected the number of a call from 1"),
            ("reset:nth=0", "invalid `nth`: expected at least 1"),
            ("reset:nth", "expected KEY=VALUE, got `nth`"),
            ("reset:nth=1,nth=2", "`nth` is given twice"),
            ("refuse:model=m", "use `reset`"),
            ("refuse:per=tenant", "use `reset`"),
            ("reset:per=user", "expected api-key, tenant, model or header:NAME"),
            ("reset:cycle=0", "invalid `cycle`: expected at least 1"),
            ("reset:period=0s", "expected more than 0"),
            ("reset:at=1s,period=9s", "`at` means once"),
            ("reset:until=10s,period=9s", "must lie within `period`"),
            ("slow:every=0ms", "expected more than 0"),
            ("short", "`short` needs `after`"),
            ("short:after=0", "invalid `after`: expected at least 1"),
        ] {
            let error = text.parse::<ClientFault>().expect_err(text).to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
