//! The fault rules of one engine while it serves.

use vcr_base::random::Stream;
use vcr_core::fault::FaultAction;
use vcr_wire::FinishReason;

use crate::faults::rule::{FaultKind, FaultRule};
use crate::kv_transfer::settings::TransferFault;

/// The properties of a request that rules match.
pub(crate) struct ArrivedRequest<'a> {
    /// The internal ID, which contains the user's.
    pub(crate) id: &'a str,
    pub(crate) external_id: &'a str,
    pub(crate) prompt_tokens: u32,
    pub(crate) lora: Option<&'a str>,
    pub(crate) priority: i64,
}

/// The fate of a message to a frontend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessageFate {
    pub(crate) is_dropped: bool,
    pub(crate) is_duplicated: bool,
    pub(crate) is_corrupt: bool,
    /// Send time, if not at once.
    pub(crate) at_ns: Option<u64>,
    /// Whether later messages may overtake it.
    pub(crate) is_overtaken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineFault {
    Stall { for_ns: u64 },
    Crash { restart_ns: Option<u64>, sends_dead: bool },
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

    /// Whether the fault may happen now or later.
    fn is_in_force(&self, now_ns: u64) -> bool {
        now_ns < self.rule.window_ns.1 && self.happened < self.rule.count
    }

    fn fires(&mut self, now_ns: u64) -> bool {
        if now_ns < self.rule.window_ns.0 || !self.is_in_force(now_ns) {
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

pub(crate) struct Faults {
    seed: u64,
    active: Vec<Active>,
    /// Number of rules added so far; each rule has its own random draws.
    added: usize,
    /// Faults that a guest wants for the next message, KV event batch and utility call.
    asked: MessageFate,
    asked_kv_loss: bool,
    asked_utility_failure: bool,
    /// When the slow socket will have sent all earlier messages.
    socket_free_ns: u64,
    injected: u64,
}

/// The planned failure of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedFailure {
    pub(crate) after_tokens: u32,
    pub(crate) finish: FinishReason,
}

/// Faults that a request triggers at some number of output tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) failure: Option<PlannedFailure>,
    /// Number of output tokens, and the engine fault that they trigger.
    pub(crate) engine: Option<(u32, EngineFault)>,
}

impl Faults {
    pub(crate) fn new(rules: &[FaultRule], seed: u64) -> Self {
        let active = rules.iter().enumerate().map(|(index, rule)| Active::new(rule.clone(), seed, index)).collect();
        Self {
            seed,
            active,
            added: rules.len(),
            asked: MessageFate::default(),
            asked_kv_loss: false,
            asked_utility_failure: false,
            socket_free_ns: 0,
            injected: 0,
        }
    }

    pub(crate) fn injected(&self) -> u64 {
        self.injected
    }

    pub(crate) fn rules(&self) -> impl Iterator<Item = &FaultRule> {
        self.active.iter().map(|active| &active.rule)
    }

    /// Number of rules whose faults may happen now or later.
    pub(crate) fn num_in_force(&self, now_ns: u64) -> usize {
        self.active.iter().filter(|active| active.is_in_force(now_ns)).count()
    }

    pub(crate) fn add(&mut self, rule: FaultRule) {
        self.active.push(Active::new(rule, self.seed, self.added));
        self.added += 1;
    }

    /// Removes the first rule with this text.
    pub(crate) fn remove(&mut self, rule: &str) {
        if let Some(place) = self.active.iter().position(|active| active.rule.to_string() == rule) {
            self.active.remove(place);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.active.clear();
        self.added = 0;
    }

    /// The delay of READY.
    pub(crate) fn start_delay_ns(&mut self) -> u64 {
        let mut delay_ns = 0;
        for active in &mut self.active {
            if let FaultKind::SlowStart { by_ns } = active.rule.kind
                && active.fires(active.rule.window_ns.0)
            {
                self.injected += 1;
                delay_ns += by_ns;
            }
        }
        delay_ns
    }

    /// The faults that a newly arrived request will trigger.
    pub(crate) fn plan(&mut self, request: &ArrivedRequest<'_>, now_ns: u64) -> Planned {
        let mut planned = Planned::default();
        for active in &mut self.active {
            if !active.rule.is_for_requests() || !active.matches(request) || !active.fires(now_ns) {
                continue;
            }
            self.injected += 1;
            match active.rule.kind {
                FaultKind::Fail { after_tokens, finish } => {
                    planned.failure.get_or_insert(PlannedFailure { after_tokens, finish });
                }
                FaultKind::Stall { for_ns, after_tokens } => {
                    planned.engine.get_or_insert((after_tokens.unwrap_or(0), EngineFault::Stall { for_ns }));
                }
                FaultKind::Crash { restart_ns, sends_dead, after_tokens } => {
                    let crash = EngineFault::Crash { restart_ns, sends_dead };
                    planned.engine.get_or_insert((after_tokens.unwrap_or(0), crash));
                }
                _ => {}
            }
        }
        planned
    }

    /// An engine fault that is due. Rules with `rate` or `nth` are checked once in each step (`is_step`), the
    /// others by the clock.
    pub(crate) fn due(&mut self, now_ns: u64, is_step: bool) -> Option<EngineFault> {
        for active in &mut self.active {
            let goes_by_steps = active.rule.rate < 1.0 || active.rule.nth > 1;
            if active.rule.is_for_requests() || goes_by_steps != is_step {
                continue;
            }
            let due = match active.rule.kind {
                FaultKind::Stall { for_ns, .. } => EngineFault::Stall { for_ns },
                FaultKind::Crash { restart_ns, sends_dead, .. } => EngineFault::Crash { restart_ns, sends_dead },
                _ => continue,
            };
            if active.fires(now_ns) {
                self.injected += 1;
                return Some(due);
            }
        }
        None
    }

    /// The next time at which [`Faults::due`] must be called by the clock.
    pub(crate) fn next_due_ns(&self, now_ns: u64) -> Option<u64> {
        let timed = self.active.iter().filter(|active| {
            matches!(active.rule.kind, FaultKind::Stall { .. } | FaultKind::Crash { .. })
                && !active.rule.is_for_requests()
                && active.happened < active.rule.count
        });
        timed.map(|active| active.rule.window_ns.0).filter(|at_ns| *at_ns > now_ns).min()
    }

    /// Whether a message that is sent now may meet a fault.
    pub(crate) fn may_meet_messages(&self) -> bool {
        !self.active.is_empty() || self.asked != MessageFate::default()
    }

    /// The fate of a message of `bytes` that is sent now.
    pub(crate) fn message(&mut self, bytes: usize, now_ns: u64) -> MessageFate {
        let mut fate = std::mem::take(&mut self.asked);
        for active in &mut self.active {
            if let FaultKind::SlowSocket { bytes_per_s } = active.rule.kind {
                if active.fires(now_ns) {
                    let takes_ns = u128::from(bytes as u64) * 1_000_000_000 / u128::from(bytes_per_s);
                    self.socket_free_ns = self.socket_free_ns.max(now_ns).saturating_add(takes_ns as u64);
                    fate.at_ns = Some(fate.at_ns.unwrap_or(0).max(self.socket_free_ns));
                }
                continue;
            }
            let is_message = matches!(
                active.rule.kind,
                FaultKind::Drop
                    | FaultKind::Duplicate
                    | FaultKind::Corrupt
                    | FaultKind::Late { .. }
                    | FaultKind::Reorder { .. }
            );
            if !is_message || !active.fires(now_ns) {
                continue;
            }
            self.injected += 1;
            match active.rule.kind {
                FaultKind::Drop => fate.is_dropped = true,
                FaultKind::Duplicate => fate.is_duplicated = true,
                FaultKind::Corrupt => fate.is_corrupt = true,
                FaultKind::Late { by_ns } | FaultKind::Reorder { by_ns } => {
                    let at_ns = now_ns.saturating_add(by_ns);
                    fate.at_ns = Some(fate.at_ns.unwrap_or(0).max(at_ns));
                    fate.is_overtaken |= matches!(active.rule.kind, FaultKind::Reorder { .. });
                }
                _ => {}
            }
        }
        fate
    }

    /// The index of the byte to change in a message of `bytes`.
    pub(crate) fn corrupt_byte(&mut self, bytes: usize) -> usize {
        let draw = vcr_core::seed::derive(self.seed, "live.faults.byte", self.injected);
        (draw % bytes.max(1) as u64) as usize
    }

    pub(crate) fn loses_kv_events(&mut self, now_ns: u64) -> bool {
        let mut lost = std::mem::take(&mut self.asked_kv_loss);
        for active in self.active.iter_mut().filter(|active| active.rule.kind == FaultKind::KvEventLoss) {
            if active.fires(now_ns) {
                self.injected += 1;
                lost = true;
            }
        }
        lost
    }

    /// The fault of a transfer of KV that starts now.
    pub(crate) fn kv_transfer(&mut self, now_ns: u64) -> Option<TransferFault> {
        let mut chosen = None;
        for active in &mut self.active {
            if let FaultKind::KvTransfer(fault) = active.rule.kind
                && active.fires(now_ns)
            {
                self.injected += 1;
                chosen = chosen.or(Some(fault));
            }
        }
        chosen
    }

    pub(crate) fn fails_utility(&mut self, name: &str, now_ns: u64) -> bool {
        let mut fails = std::mem::take(&mut self.asked_utility_failure);
        for active in &mut self.active {
            if let FaultKind::UtilityFailure { method } = &active.rule.kind
                && method.as_deref().is_none_or(|method| method == name)
                && active.fires(now_ns)
            {
                self.injected += 1;
                fails = true;
            }
        }
        fails
    }

    /// Keeps a guest's action for a later message or call, or returns it if it concerns the engine itself.
    pub(crate) fn queue_action(&mut self, action: FaultAction, now_ns: u64) -> Option<GuestFault> {
        self.injected += 1;
        match action {
            FaultAction::FailRequest { slot } => return Some(GuestFault::FailRequest { slot }),
            FaultAction::Stall { duration_ns } => {
                return Some(GuestFault::Engine(EngineFault::Stall { for_ns: duration_ns }));
            }
            FaultAction::Crash { restart_after_ns } => {
                return Some(GuestFault::Engine(EngineFault::Crash {
                    restart_ns: restart_after_ns,
                    sends_dead: false,
                }));
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

/// An action of a guest on the engine itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuestFault {
    FailRequest { slot: u32 },
    Engine(EngineFault),
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
        assert_eq!((faults.next_due_ns(0), faults.num_in_force(0)), (Some(5_000_000_000), 1));
        assert_eq!(faults.due(4_999_999_999, false), None);
        assert_eq!(faults.due(5_000_000_001, false), Some(EngineFault::Stall { for_ns: 1_000_000_000 }));
        assert_eq!(faults.due(5_000_000_002, false), None);
        assert_eq!((faults.next_due_ns(0), faults.num_in_force(0)), (None, 0));
    }

    #[test]
    fn a_fault_is_in_force_until_its_window_ends() {
        let faults = faults(&["drop:from=1s,until=2s", "late:by=1ms"]);
        let counts = [0, 1_999_999_999, 2_000_000_000].map(|now_ns| faults.num_in_force(now_ns));
        assert_eq!(counts, [2, 2, 1]);
    }

    /// If the rule fired again and again, it would stall the engine forever.
    #[test]
    fn a_fault_of_the_engine_without_a_count_fires_once() {
        let mut faults = faults(&["stall:for=1s", "crash:nth=3,count=2"]);
        assert_eq!(faults.due(0, false), Some(EngineFault::Stall { for_ns: 1_000_000_000 }));
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
