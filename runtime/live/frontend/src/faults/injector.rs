//! Chooses the fault of a call.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::http::request::Parts;
use vcr_base::random::Stream;

use super::caller::{Caller, NamedInBody, Tenants};
use super::kind::FaultKind;
use super::rule::ClientFault;

/// Maximum number of callers that a rule counts separately. Further callers are counted together, so that clients
/// cannot fill the memory.
const COUNTED_CALLERS: usize = 10_000;

/// The rules of a server and their counts.
#[derive(Debug)]
pub struct ClientFaults {
    rules: Mutex<Vec<Active>>,
    /// The number of rules added so far. It selects the random stream of the next rule.
    added: AtomicUsize,
    seed: u64,
    tenants: Tenants,
    since: Instant,
    /// Whether a rule matches bodies.
    needs_body: AtomicBool,
}

#[derive(Debug)]
struct Active {
    rule: ClientFault,
    random: Stream,
    /// Counts of the callers that are not counted separately.
    together: Counts,
    /// Counts of the callers that are counted separately.
    apart: HashMap<String, Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// The number of calls that matched.
    calls: u64,
    faults: u64,
}

impl ClientFaults {
    /// Creates the rules. Random draws depend only on the seed, the index of the rule and the number of the call.
    #[must_use]
    pub fn new(rules: Vec<ClientFault>, seed: u64, tenants: Tenants) -> Self {
        let needs_body = AtomicBool::new(false);
        let faults = Self {
            rules: Mutex::default(),
            added: AtomicUsize::new(0),
            seed,
            tenants,
            since: Instant::now(),
            needs_body,
        };
        rules.into_iter().for_each(|rule| faults.add(rule));
        faults
    }

    fn active(&self) -> MutexGuard<'_, Vec<Active>> {
        // A panic cannot leave the rules inconsistent.
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule at the end. Its times count from the start of the server.
    pub fn add(&self, rule: ClientFault) {
        let mut rules = self.active();
        let number = self.added.fetch_add(1, Ordering::Relaxed);
        let random = Stream::new(self.seed, &format!("client-fault-{number}"));
        self.needs_body.fetch_or(rule.when.needs_body(), Ordering::Relaxed);
        rules.push(Active { rule, random, together: Counts::default(), apart: HashMap::new() });
    }

    /// Removes the first rule with this text. Returns `false` if there is none.
    pub fn remove(&self, rule: &str) -> bool {
        let mut rules = self.active();
        let found = rules.iter().position(|active| active.rule.to_string() == rule);
        found.is_some_and(|place| {
            rules.remove(place);
            let needs_body = rules.iter().any(|active| active.rule.when.needs_body());
            self.needs_body.store(needs_body, Ordering::Relaxed);
            true
        })
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.active().clear();
        self.added.store(0, Ordering::Relaxed);
        self.needs_body.store(false, Ordering::Relaxed);
    }

    /// The rules in the user's syntax.
    #[must_use]
    pub fn rules(&self) -> Vec<String> {
        self.active().iter().map(|active| active.rule.to_string()).collect()
    }

    pub(super) fn needs_body(&self) -> bool {
        self.needs_body.load(Ordering::Relaxed)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.active().is_empty()
    }

    /// The fault of a call. Every rule counts the call; the first rule that hits decides.
    pub(super) fn of_call(&self, parts: &Parts, body: &NamedInBody) -> Option<FaultKind> {
        let caller = Caller::new(parts, body, &self.tenants);
        self.first(Some(&caller), |kind| *kind != FaultKind::Refuse)
    }

    /// Whether a new connection is refused.
    #[must_use]
    pub fn refuses_connection(&self) -> bool {
        self.first(None, |kind| *kind == FaultKind::Refuse).is_some()
    }

    fn first(&self, caller: Option<&Caller<'_>>, is_meant: impl Fn(&FaultKind) -> bool) -> Option<FaultKind> {
        let elapsed_ns = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut first = None;
        for active in self.active().iter_mut().filter(|active| is_meant(&active.rule.kind)) {
            if active.hits(caller, elapsed_ns, first.is_some()) {
                first = Some(active.rule.kind.clone());
            }
        }
        first
    }
}

impl Active {
    /// Counts a call that matches. Returns whether the rule hits. A rule never hits if an earlier rule did
    /// (`is_taken`).
    fn hits(&mut self, caller: Option<&Caller<'_>>, elapsed_ns: u64, is_taken: bool) -> bool {
        let when = &self.rule.when;
        let in_window_ns = when.period_ns.map_or(elapsed_ns, |period_ns| elapsed_ns % period_ns);
        let is_in_time = (when.window_ns.0..when.window_ns.1).contains(&in_window_ns);
        if !is_in_time || caller.is_some_and(|caller| !caller.fits(when)) {
            return false;
        }
        let name = when.per.as_ref().and_then(|per| caller?.counted_as(per));
        let is_new = |name: &&str| self.apart.contains_key(*name) || self.apart.len() < COUNTED_CALLERS;
        let counts = match name.filter(is_new) {
            Some(name) => self.apart.entry(name.to_owned()).or_default(),
            None => &mut self.together,
        };
        counts.calls += 1;
        let number = (counts.calls - 1) % when.cycle + 1;
        let is_drawn = when.rate >= 1.0 || self.random.unit() < when.rate;
        let is_counted = when.calls.contains(&number) && number.is_multiple_of(when.nth) && counts.faults < when.count;
        let hits = is_drawn && is_counted && !is_taken;
        counts.faults += u64::from(hits);
        hits
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn faults(rules: &[&str], seed: u64) -> ClientFaults {
        let tenants = Tenants { by_key: [("secret".to_owned(), "green".to_owned())].into(), ..Tenants::default() };
        ClientFaults::new(rules.iter().map(|rule| rule.parse().expect("a rule")).collect(), seed, tenants)
    }

    fn call(path: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn body(json: &str) -> NamedInBody {
        serde_json::from_str(json).expect("JSON")
    }

    fn names(faults: &ClientFaults, calls: usize) -> Vec<&'static str> {
        let parts = call("/v1/completions", &[]);
        (0..calls).map(|_| faults.of_call(&parts, &NamedInBody::default()).map_or("", |kind| kind.name())).collect()
    }

    #[test]
    fn sequences_are_rules_with_numbers_of_calls() {
        let once = faults(&["status:code=500,call=3", "stall:for=2s,call=4"], 1);
        assert_eq!(names(&once, 6), ["", "", "status", "stall", "", ""]);
        let again = faults(&["status:code=500,call=2,cycle=3", "stall:for=2s,call=3,cycle=3"], 1);
        assert_eq!(names(&again, 7), ["", "status", "stall", "", "status", "stall", ""]);
    }

    #[test]
    fn rules_come_and_go_while_it_serves() {
        let faults = faults(&["reset:call=1"], 1);
        assert_eq!(names(&faults, 2), ["reset", ""]);
        faults.add("status:code=503,model=m".parse().expect("a rule"));
        assert!(faults.needs_body());
        assert_eq!(faults.rules(), ["reset:call=1", "status:code=503,model=m"]);
        faults.clear();
        assert!(!faults.needs_body() && faults.rules().is_empty());
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
        let hit = |rule: &str, parts: &Parts, model: &str| faults(&[rule], 1).of_call(parts, &body(model)).is_some();
        let none = "{}";
        let parts = call("/v1/chat/completions", &[("x-team", "blue"), ("authorization", "bearer secret")]);
        assert!(hit("reset:header=X-Team", &parts, none) && hit("reset:header=x-team:blue", &parts, none));
        assert!(!hit("reset:header=x-team:red", &parts, none));
        assert!(hit("reset:api-key=secret", &parts, none) && !hit("reset:api-key=other", &parts, none));
        assert!(hit("reset:model=m", &parts, r#"{"model": "m"}"#) && !hit("reset:model=m", &parts, none));
        assert!(hit("reset:path=/v1/chat", &parts, none) && !hit("reset:path=/v1/completions", &parts, none));
        assert!(hit("reset:path=/v1/responses|/v1/chat", &parts, none));
        assert!(!hit("reset:path=/v1/responses|/v1/messages", &parts, none));
        assert!(hit("reset:path=/health", &call("/health", &[]), none));
        assert!(!hit("reset", &call("/health", &[]), none));
        assert!(hit("reset:api-key=k", &call("/v1/messages", &[("x-api-key", "k")]), none));
    }

    #[test]
    fn tenants_are_named_by_a_header_or_a_key_or_a_salt() {
        let hit = |rule: &str, headers: &[(&str, &str)], json: &str| {
            faults(&[rule], 1).of_call(&call("/v1/messages", headers), &body(json)).is_some()
        };
        let key = ("x-api-key", "secret");
        let salt = r#"{"cache_salt": "red"}"#;
        assert!(hit("reset:tenant=blue", &[("X-Tenant", "blue"), key], salt));
        assert!(!hit("reset:tenant=green", &[("X-Tenant", "blue"), key], salt));
        assert!(hit("reset:tenant=green", &[key], salt) && hit("reset:tenant=red", &[], salt));
        assert!(!hit("reset:tenant=red", &[], "{}"));
    }

    #[test]
    fn callers_are_counted_apart() {
        let faults = faults(&["reset:call=2,per=tenant"], 1);
        let of = |tenant: &str| {
            faults.of_call(&call("/v1/messages", &[("x-tenant", tenant)]), &NamedInBody::default()).is_some()
        };
        assert_eq!([of("a"), of("b"), of("b"), of("b"), of("a")], [false, false, true, false, true]);
        // Callers without a tenant are counted together.
        assert_eq!(names(&faults, 3), ["", "reset", ""]);
        for caller in 0..2 * COUNTED_CALLERS {
            of(&format!("caller-{caller}"));
        }
        assert_eq!(faults.active()[0].apart.len(), COUNTED_CALLERS);
    }

    #[test]
    fn windows_come_again_after_their_period() {
        let mut active = Active {
            rule: "reset:from=2s,until=3s,period=10s".parse().expect("a rule"),
            random: Stream::new(1, "test"),
            together: Counts::default(),
            apart: HashMap::new(),
        };
        let hits: Vec<_> = (0..24).filter(|s| active.hits(None, s * 1_000_000_000, false)).collect();
        assert_eq!(hits, [2, 12, 22]);
    }

    #[test]
    fn connections_are_refused_by_their_own_rules() {
        let faults = faults(&["refuse:call=1", "reset"], 1);
        assert!(faults.refuses_connection() && !faults.refuses_connection());
        assert_eq!(names(&faults, 1), ["reset"]);
    }
}
