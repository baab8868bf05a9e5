//! Which call meets which fault.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use vcr_random::Stream;

use super::kind::FaultKind;
use super::rule::{ClientFault, Occasions};

/// Paths that rules leave alone unless they name a path: what orchestrators ask.
const UNTOUCHED: &[&str] = &["/health", "/metrics", "/ping", "/ready", "/load", "/version"];

/// The rules of a server, with what they have counted.
#[derive(Debug)]
pub struct ClientFaults {
    rules: Mutex<Vec<Active>>,
    seed: u64,
    since: Instant,
    /// Whether a rule looks at the `model` of bodies.
    needs_model: AtomicBool,
}

#[derive(Debug)]
struct Active {
    rule: ClientFault,
    random: Stream,
    /// Matching calls.
    calls: u64,
    /// Faults.
    faults: u64,
}

impl ClientFaults {
    /// Rules whose draws depend on the seed, the place of the rule and the number
    /// of the call only.
    #[must_use]
    pub fn new(rules: Vec<ClientFault>, seed: u64) -> Self {
        let faults = Self { rules: Mutex::default(), seed, since: Instant::now(), needs_model: AtomicBool::new(false) };
        rules.into_iter().for_each(|rule| faults.add(rule));
        faults
    }

    fn active(&self) -> MutexGuard<'_, Vec<Active>> {
        // Rules are added and counted one by one.
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule behind the others. Its time counts from the start of the server.
    pub fn add(&self, rule: ClientFault) {
        let mut rules = self.active();
        let random = Stream::new(self.seed, &format!("client-fault-{}", rules.len()));
        self.needs_model.fetch_or(rule.when.model.is_some(), Ordering::Relaxed);
        rules.push(Active { rule, random, calls: 0, faults: 0 });
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.active().clear();
        self.needs_model.store(false, Ordering::Relaxed);
    }

    /// The rules, as users write them.
    #[must_use]
    pub fn rules(&self) -> Vec<String> {
        self.active().iter().map(|active| active.rule.to_string()).collect()
    }

    /// Whether a rule looks at the `model` of bodies.
    pub(super) fn needs_model(&self) -> bool {
        self.needs_model.load(Ordering::Relaxed)
    }

    /// The fault of a call. All rules count it; the first that hits applies.
    pub(super) fn of_call(&self, parts: &Parts, model: Option<&str>) -> Option<FaultKind> {
        self.first(|when| when.takes(parts, model), |kind| *kind != FaultKind::Refuse)
    }

    /// Whether a new connection is refused.
    #[must_use]
    pub fn refuses_connection(&self) -> bool {
        self.first(|_| true, |kind| *kind == FaultKind::Refuse).is_some()
    }

    fn first(&self, takes: impl Fn(&Occasions) -> bool, is_meant: impl Fn(&FaultKind) -> bool) -> Option<FaultKind> {
        let elapsed_ns = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut first = None;
        for active in self.active().iter_mut() {
            if is_meant(&active.rule.kind) && takes(&active.rule.when) && active.hits(elapsed_ns) && first.is_none() {
                active.faults += 1;
                first = Some(active.rule.kind.clone());
            }
        }
        first
    }
}

impl Active {
    /// Counts a matching call.
    fn hits(&mut self, elapsed_ns: u64) -> bool {
        let when = &self.rule.when;
        if !(when.window_ns.0..when.window_ns.1).contains(&elapsed_ns) {
            return false;
        }
        self.calls += 1;
        let is_drawn = when.rate >= 1.0 || self.random.unit() < when.rate;
        is_drawn && when.calls.contains(&self.calls) && self.calls.is_multiple_of(when.nth) && self.faults < when.count
    }
}

impl Occasions {
    fn takes(&self, parts: &Parts, model: Option<&str>) -> bool {
        let path = parts.uri.path();
        let is_path = match &self.path {
            Some(start) => path.starts_with(start),
            None => !UNTOUCHED.contains(&path),
        };
        let has_header = |(name, wanted): &(String, Option<String>)| {
            let value = parts.headers.get(name).and_then(|value| value.to_str().ok());
            value.is_some_and(|value| wanted.as_ref().is_none_or(|wanted| wanted == value))
        };
        is_path
            && self.header.as_ref().is_none_or(has_header)
            && self.api_key.as_deref().is_none_or(|key| api_key(&parts.headers) == Some(key))
            && self.model.as_deref().is_none_or(|name| model == Some(name))
    }
}

/// The key in a call, as OpenAI's or Anthropic's clients send it.
fn api_key(headers: &HeaderMap) -> Option<&str> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| text("x-api-key"))
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn faults(rules: &[&str], seed: u64) -> ClientFaults {
        ClientFaults::new(rules.iter().map(|rule| rule.parse().expect("a rule")).collect(), seed)
    }

    fn call(path: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn names(faults: &ClientFaults, calls: usize) -> Vec<&'static str> {
        let parts = call("/v1/completions", &[]);
        (0..calls).map(|_| faults.of_call(&parts, None).map_or("", |kind| kind.name())).collect()
    }

    #[test]
    fn sequences_are_rules_with_numbers_of_calls() {
        let faults = faults(&["status:code=500,call=3", "stall:for=2s,call=4"], 1);
        assert_eq!(names(&faults, 6), ["", "", "status", "stall", "", ""]);
    }

    #[test]
    fn rules_come_and_go_while_it_serves() {
        let faults = faults(&["reset:call=1"], 1);
        assert_eq!(names(&faults, 2), ["reset", ""]);
        faults.add("status:code=503,model=m".parse().expect("a rule"));
        assert!(faults.needs_model());
        assert_eq!(faults.rules(), ["reset:call=1", "status:code=503,model=m"]);
        faults.clear();
        assert!(!faults.needs_model() && faults.rules().is_empty());
        assert_eq!(names(&faults, 2), ["", ""]);
    }

    #[test]
    fn nth_and_count_limit_a_rule() {
        assert_eq!(names(&faults(&["reset:nth=2,count=1"], 1), 5), ["", "reset", "", "", ""]);
    }

    #[test]
    fn the_same_seed_draws_the_same_calls() {
        let drawn = |seed| names(&faults(&["reset:rate=0.3"], seed), 100);
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
        let hits = drawn(7).iter().filter(|name| !name.is_empty()).count();
        assert!((15..45).contains(&hits), "{hits}");
    }

    #[test]
    fn rules_choose_by_header_key_model_and_path() {
        let hit = |rule: &str, parts: &Parts, model| faults(&[rule], 1).of_call(parts, model).is_some();
        let parts = call("/v1/chat/completions", &[("x-tenant", "blue"), ("authorization", "bearer secret")]);
        assert!(hit("reset:header=X-Tenant", &parts, None) && hit("reset:header=x-tenant:blue", &parts, None));
        assert!(!hit("reset:header=x-tenant:red", &parts, None));
        assert!(hit("reset:api-key=secret", &parts, None) && !hit("reset:api-key=other", &parts, None));
        assert!(hit("reset:model=m", &parts, Some("m")) && !hit("reset:model=m", &parts, None));
        assert!(hit("reset:path=/v1/chat", &parts, None) && !hit("reset:path=/v1/completions", &parts, None));
        assert!(hit("reset:path=/health", &call("/health", &[]), None));
        assert!(!hit("reset", &call("/health", &[]), None));
        assert!(hit("reset:api-key=k", &call("/v1/messages", &[("x-api-key", "k")]), None));
    }

    #[test]
    fn connections_are_refused_by_their_own_rules() {
        let faults = faults(&["refuse:call=1", "reset"], 1);
        assert!(faults.refuses_connection() && !faults.refuses_connection());
        assert_eq!(names(&faults, 1), ["reset"]);
    }
}
