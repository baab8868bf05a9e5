//! The faults of one engine while it serves.

use vcr_core::fault::FaultAction;
use vcr_random::Stream;

use super::rule::{FaultKind, FaultRule};
use crate::requests::PlannedFailure;

/// A request that has come in, as faults look at it.
pub(crate) struct ArrivedRequest<'a> {
    /// The internal name, which contains the user's.
    pub(crate) id: &'a str,
    pub(crate) external_id: &'a str,
    pub(crate) prompt_tokens: u32,
    pub(crate) lora: Option<&'a str>,
    pub(crate) priority: i64,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessageFate {
    pub(crate) is_dropped: bool,
    pub(crate) is_duplicated: bool,
    pub(crate) is_corrupt: bool,
    /// When it is sent, if not at once.
    pub(crate) at_ns: Option<u64>,
}

/// Something for the engine to do to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Stall { for_ns: u64 },
    Crash { restart_ns: Option<u64>, says_so: bool },
}

struct Active {
    rule: FaultRule,
    draws: Stream,
    occasions: u32,
    happened: u64,
}

impl Active {
    fn new(rule: FaultRule, seed: u64, index: usize) -> Self {
        let draws = Stream::new(vcr_core::seed::derive(seed, "live.faults", index as u64), "live.faults.occasions");
        Self { rule, draws, occasions: 0, happened: 0 }
    }

    /// Whether it happens at this occasion.
    fn strikes(&mut self, now_ns: u64) -> bool {
        let (from_ns, until_ns) = self.rule.window_ns;
        if now_ns < from_ns || now_ns >= until_ns || self.happened >= self.rule.count {
            return false;
        }
        self.occasions = self.occasions % self.rule.nth + 1;
        if self.occasions != self.rule.nth || (self.rule.rate < 1.0 && self.draws.unit() >= self.rule.rate) {
            return false;
        }
        self.happened += 1;
        true
    }

    fn matches(&self, request: &ArrivedRequest<'_>) -> bool {
        let wanted = &self.rule.requests;
        wanted.id.as_ref().is_none_or(|part| request.id.contains(&**part) || request.external_id.contains(&**part))
            && wanted.prompt_tokens.contains(&request.prompt_tokens)
            && wanted.lora.as_deref().is_none_or(|lora| request.lora == Some(lora))
            && wanted.priority.is_none_or(|priority| request.priority == priority)
    }
}

/// The faults of one engine.
pub(crate) struct Faults {
    seed: u64,
    active: Vec<Active>,
    /// What a guest asked for the next message.
    asked: MessageFate,
    asked_kv_loss: bool,
    asked_utility_failure: bool,
    /// When the slow socket has sent what it was given.
    socket_free_ns: u64,
    pub(crate) injected: u64,
}

/// What a request brings about when it has some output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) failure: Option<PlannedFailure>,
    /// Output tokens, and what the engine does then.
    pub(crate) engine: Option<(u32, Due)>,
}

impl Faults {
    pub(crate) fn new(rules: &[FaultRule], seed: u64) -> Self {
        let active = rules.iter().enumerate().map(|(index, rule)| Active::new(rule.clone(), seed, index)).collect();
        Self {
            seed,
            active,
            asked: MessageFate::default(),
            asked_kv_loss: false,
            asked_utility_failure: false,
            socket_free_ns: 0,
            injected: 0,
        }
    }

    /// Rules in force, as they were written.
    pub(crate) fn rules(&self) -> impl Iterator<Item = &FaultRule> {
        self.active.iter().map(|active| &active.rule)
    }

    pub(crate) fn add(&mut self, rule: FaultRule) {
        let index = self.active.len();
        self.active.push(Active::new(rule, self.seed, index));
    }

    pub(crate) fn clear(&mut self) {
        self.active.clear();
    }

    /// How long READY is put off.
    pub(crate) fn start_delay_ns(&mut self) -> u64 {
        let mut delay_ns = 0;
        for active in &mut self.active {
            if let FaultKind::SlowStart { by_ns } = active.rule.kind
                && active.strikes(active.rule.window_ns.0)
            {
                self.injected += 1;
                delay_ns += by_ns;
            }
        }
        delay_ns
    }

    /// What a request that has just come in will bring about.
    pub(crate) fn plan(&mut self, request: &ArrivedRequest<'_>, now_ns: u64) -> Planned {
        let mut planned = Planned::default();
        for active in &mut self.active {
            if !active.rule.is_for_requests() || !active.matches(request) || !active.strikes(now_ns) {
                continue;
            }
            self.injected += 1;
            match active.rule.kind {
                FaultKind::Fail { after_tokens, finish } => {
                    planned.failure.get_or_insert(PlannedFailure { after_tokens, finish });
                }
                FaultKind::Stall { for_ns, after_tokens } => {
                    planned.engine.get_or_insert((after_tokens.unwrap_or(0), Due::Stall { for_ns }));
                }
                FaultKind::Crash { restart_ns, says_so, after_tokens } => {
                    let crash = Due::Crash { restart_ns, says_so };
                    planned.engine.get_or_insert((after_tokens.unwrap_or(0), crash));
                }
                _ => {}
            }
        }
        planned
    }

    /// What the engine does to itself now. Rules that leave something to chance
    /// or to counting are asked once for each step, `is_step`; the others
    /// whenever their time may have come.
    pub(crate) fn due(&mut self, now_ns: u64, is_step: bool) -> Option<Due> {
        for active in &mut self.active {
            let goes_by_steps = active.rule.rate < 1.0 || active.rule.nth > 1;
            if active.rule.is_for_requests() || goes_by_steps != is_step {
                continue;
            }
            let due = match active.rule.kind {
                FaultKind::Stall { for_ns, .. } => Due::Stall { for_ns },
                FaultKind::Crash { restart_ns, says_so, .. } => Due::Crash { restart_ns, says_so },
                _ => continue,
            };
            if active.strikes(now_ns) {
                self.injected += 1;
                return Some(due);
            }
        }
        None
    }

    /// When [`Faults::due`] should be asked although nothing happens.
    pub(crate) fn next_due_ns(&self, now_ns: u64) -> Option<u64> {
        let timed = self.active.iter().filter(|active| {
            matches!(active.rule.kind, FaultKind::Stall { .. } | FaultKind::Crash { .. })
                && !active.rule.is_for_requests()
                && active.happened < active.rule.count
        });
        timed.map(|active| active.rule.window_ns.0).filter(|at_ns| *at_ns > now_ns).min()
    }

    /// What becomes of the message of `bytes` that is to be sent now.
    pub(crate) fn message(&mut self, bytes: usize, now_ns: u64) -> MessageFate {
        let mut fate = std::mem::take(&mut self.asked);
        for active in &mut self.active {
            if let FaultKind::SlowSocket { bytes_per_s } = active.rule.kind {
                if active.strikes(now_ns) {
                    let takes_ns = u128::from(bytes as u64) * 1_000_000_000 / u128::from(bytes_per_s);
                    self.socket_free_ns = self.socket_free_ns.max(now_ns).saturating_add(takes_ns as u64);
                    fate.at_ns = Some(fate.at_ns.unwrap_or(0).max(self.socket_free_ns));
                }
                continue;
            }
            let is_message = matches!(
                active.rule.kind,
                FaultKind::Drop | FaultKind::Duplicate | FaultKind::Corrupt | FaultKind::Late { .. }
            );
            if !is_message || !active.strikes(now_ns) {
                continue;
            }
            self.injected += 1;
            match active.rule.kind {
                FaultKind::Drop => fate.is_dropped = true,
                FaultKind::Duplicate => fate.is_duplicated = true,
                FaultKind::Corrupt => fate.is_corrupt = true,
                FaultKind::Late { by_ns } => {
                    let at_ns = now_ns.saturating_add(by_ns);
                    fate.at_ns = Some(fate.at_ns.unwrap_or(0).max(at_ns));
                }
                _ => {}
            }
        }
        fate
    }

    /// Which byte of a message of `bytes` is changed.
    pub(crate) fn corrupt_byte(&mut self, bytes: usize) -> usize {
        let draw = vcr_core::seed::derive(self.seed, "live.faults.byte", self.injected);
        (draw % bytes.max(1) as u64) as usize
    }

    /// Whether this batch of KV events is lost.
    pub(crate) fn loses_kv_events(&mut self, now_ns: u64) -> bool {
        let mut lost = std::mem::take(&mut self.asked_kv_loss);
        for active in self.active.iter_mut().filter(|active| active.rule.kind == FaultKind::KvEventLoss) {
            if active.strikes(now_ns) {
                self.injected += 1;
                lost = true;
            }
        }
        lost
    }

    /// Whether this utility call fails.
    pub(crate) fn fails_utility(&mut self, name: &str, now_ns: u64) -> bool {
        let mut fails = std::mem::take(&mut self.asked_utility_failure);
        for active in &mut self.active {
            if let FaultKind::UtilityFailure { method } = &active.rule.kind
                && method.as_deref().is_none_or(|method| method == name)
                && active.strikes(now_ns)
            {
                self.injected += 1;
                fails = true;
            }
        }
        fails
    }

    /// Does what a guest asked for, or gives back what the engine must do.
    pub(crate) fn ask(&mut self, action: FaultAction, now_ns: u64) -> Option<Asked> {
        self.injected += 1;
        match action {
            FaultAction::FailRequest { slot } => return Some(Asked::FailRequest { slot }),
            FaultAction::Stall { duration_ns } => return Some(Asked::Engine(Due::Stall { for_ns: duration_ns })),
            FaultAction::Crash { restart_after_ns } => {
                return Some(Asked::Engine(Due::Crash { restart_ns: restart_after_ns, says_so: false }));
            }
            FaultAction::DropMessage => self.asked.is_dropped = true,
            FaultAction::DuplicateMessage => self.asked.is_duplicated = true,
            FaultAction::CorruptMessage => self.asked.is_corrupt = true,
            FaultAction::DelayMessage { by_ns } => self.asked.at_ns = Some(now_ns.saturating_add(by_ns)),
            FaultAction::LoseKvEvents => self.asked_kv_loss = true,
            FaultAction::FailUtility => self.asked_utility_failure = true,
        }
        None
    }
}

/// What a guest wants of the engine itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    FailRequest { slot: u32 },
    Engine(Due),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(rules: &[&str]) -> Faults {
        let rules: Vec<_> = rules.iter().map(|rule| rule.parse().expect("it is a fault")).collect();
        Faults::new(&rules, 7)
    }

    fn request(id: &str) -> ArrivedRequest<'_> {
        ArrivedRequest { id, external_id: "", prompt_tokens: 50, lora: None, priority: 0 }
    }

    #[test]
    fn a_timed_fault_strikes_once_and_announces_itself() {
        let mut faults = faults(&["stall:for=1s,at=5s"]);
        assert_eq!(faults.next_due_ns(0), Some(5_000_000_000));
        assert_eq!(faults.due(4_999_999_999, false), None);
        assert_eq!(faults.due(5_000_000_001, false), Some(Due::Stall { for_ns: 1_000_000_000 }));
        assert_eq!(faults.due(5_000_000_002, false), None);
        assert_eq!(faults.next_due_ns(0), None);
    }

    /// Without an end to it the engine would do nothing else for ever.
    #[test]
    fn what_an_engine_does_to_itself_it_does_once() {
        let mut faults = faults(&["stall:for=1s", "crash:nth=3,count=2"]);
        assert_eq!(faults.due(0, false), Some(Due::Stall { for_ns: 1_000_000_000 }));
        assert_eq!(faults.due(1, false), None);
        let steps: Vec<_> = (0..12).filter(|step| faults.due(*step, true).is_some()).collect();
        assert_eq!(steps, [2, 5], "every third step, twice");
    }

    #[test]
    fn rates_and_counts_and_every_nth() {
        let mut faults = faults(&["drop:rate=0.25", "duplicate:nth=10,count=3"]);
        let fates: Vec<_> = (0..1000).map(|now_ns| faults.message(100, now_ns)).collect();
        let dropped = fates.iter().filter(|fate| fate.is_dropped).count();
        assert!((200..300).contains(&dropped), "{dropped}");
        let places: Vec<_> = (0..1000).filter(|index| fates[*index].is_duplicated).collect();
        assert_eq!(places, [9, 19, 29]);
    }

    #[test]
    fn only_matching_requests_fail() {
        let mut faults = faults(&["error:request=bad,after=3,prompt=..50"]);
        assert_eq!(faults.plan(&request("good"), 0), Planned::default());
        let planned = faults.plan(&request("cmpl-bad-1"), 0).failure.expect("it matches");
        assert_eq!(planned.after_tokens, 3);
        let long = ArrivedRequest { prompt_tokens: 51, ..request("cmpl-bad-2") };
        assert_eq!(faults.plan(&long, 0), Planned::default());
    }

    #[test]
    fn a_slow_socket_takes_its_time() {
        let mut faults = faults(&["slow-socket:bandwidth=1MB/s"]);
        assert_eq!(faults.message(1000, 0).at_ns, Some(1_000_000));
        assert_eq!(faults.message(1000, 0).at_ns, Some(2_000_000));
        assert_eq!(faults.message(1000, 9_000_000).at_ns, Some(10_000_000));
    }
}
