use alloc::string::String;
use core::ops::{Range, RangeInclusive};

use vcr_guest_sdk::{FaultAction, Rng};

/// A rule and its state.
pub(crate) struct Rule {
    trigger: Trigger,
    from_ns: u64,
    /// The rule is off from this time on.
    until_ns: u64,
    every: u32,
    probability: f64,
    action: Action,
    rng: Rng,
    /// Number of times that the rule could have applied.
    chances: u32,
}

pub(crate) enum Trigger {
    Time,
    Request { request_id: String, prompt_tokens: RangeInclusive<u32>, after_tokens: u32 },
    Utility { method: String },
}

pub(crate) enum Action {
    /// Fails the request that triggered the rule.
    FailRequest,
    /// Fails the utility call that triggered the rule.
    FailUtility,
    Other(FaultAction),
}

impl Rule {
    /// A rule that applies within `window_ns`.
    pub(crate) fn new(
        trigger: Trigger,
        window_ns: Range<u64>,
        every: u32,
        probability: f64,
        action: Action,
        rng: Rng,
    ) -> Self {
        let Range { start: from_ns, end: until_ns } = window_ns;
        Self { trigger, from_ns, until_ns, every, probability, action, rng, chances: 0 }
    }

    fn is_in_window(&self, now_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&now_ns)
    }

    /// Returns the rule's action if the rule depends only on time and is due.
    pub(crate) fn at_time(&mut self, now_ns: u64) -> Option<FaultAction> {
        let is_due = matches!(self.trigger, Trigger::Time) && self.is_in_window(now_ns) && self.chances == 0;
        if is_due && self.takes_its_chance() { self.action(None) } else { None }
    }

    /// Returns the rule's action if a utility call with this name triggers it.
    pub(crate) fn at_utility(&mut self, now_ns: u64, name: &str) -> Option<FaultAction> {
        let is_due =
            matches!(&self.trigger, Trigger::Utility { method } if name.contains(method)) && self.is_in_window(now_ns);
        if is_due && self.takes_its_chance() { self.action(None) } else { None }
    }

    /// Whether the rule can apply to a request with this name and prompt length.
    pub(crate) fn is_about(&self, name: &str, tokens: u32) -> bool {
        matches!(&self.trigger, Trigger::Request { request_id, prompt_tokens, .. }
            if name.contains(request_id) && prompt_tokens.contains(&tokens))
    }

    /// Whether the rule applies to a request with this number of output tokens.
    pub(crate) fn is_due(&self, now_ns: u64, output_tokens: u32) -> bool {
        let has_enough = matches!(self.trigger, Trigger::Request { after_tokens, .. } if output_tokens >= after_tokens);
        has_enough && self.is_in_window(now_ns)
    }

    pub(crate) fn happen(&mut self, slot: u32) -> Option<FaultAction> {
        if self.takes_its_chance() { self.action(Some(slot)) } else { None }
    }

    /// Counts this chance and applies `every` and `probability` to it.
    fn takes_its_chance(&mut self) -> bool {
        self.chances = self.chances.wrapping_add(1);
        self.chances.is_multiple_of(self.every) && self.rng.uniform() < self.probability
    }

    fn action(&self, slot: Option<u32>) -> Option<FaultAction> {
        match self.action {
            Action::FailRequest => slot.map(|slot| FaultAction::FailRequest { slot }),
            Action::FailUtility => Some(FaultAction::FailUtility),
            Action::Other(action) => Some(action),
        }
    }
}
