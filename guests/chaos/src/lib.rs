//! A guest that injects faults by a script.
//!
//! The config is a [`Script`] of rules, each with a trigger and a fault. In this example every third request whose
//! name contains `burst` fails after ten tokens, and 30 s into the run the engine crashes for two seconds:
//!
//! ```json
//! {"rules": [
//!   {"match": {"request_id": "burst"}, "after_tokens": 10, "every": 3, "action": "fail_request"},
//!   {"at_ms": 30000, "action": {"crash": {"restart_after_ms": 2000}}}
//! ]}
//! ```

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

mod rule;
mod script;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use vcr_guest_sdk::{FaultAction, FaultBatch, FaultEvent, FaultGuest, export_failure_injector};

use crate::rule::Rule;
pub use crate::script::{ActionScript, MatchScript, RuleScript, Script};

/// The rules and requests of one engine.
pub struct Chaos {
    rules: Vec<Rule>,
    /// The rules that may still apply to each request, by slot.
    open: BTreeMap<u32, Vec<usize>>,
}

impl FaultGuest for Chaos {
    type Config = Script;

    fn configure(script: Script, seed: u64) -> Result<Self, String> {
        Ok(Self { rules: script.rules(seed)?, open: BTreeMap::new() })
    }

    fn decide(&mut self, batch: &FaultBatch<'_>, actions: &mut Vec<FaultAction>) -> Result<(), String> {
        let now_ns = batch.now_ns;
        actions.extend(self.rules.iter_mut().filter_map(|rule| rule.at_time(now_ns)));
        for event in batch.events {
            match *event {
                FaultEvent::Arrived { slot, request_id, prompt_tokens, .. } => {
                    let rules = self.rules.iter().enumerate();
                    let about = rules.filter(|(_, rule)| rule.is_about(request_id, prompt_tokens));
                    self.open.insert(slot, about.map(|(index, _)| index).collect());
                    self.progress(now_ns, slot, 0, actions);
                }
                FaultEvent::Emitted { slot, output_tokens } => self.progress(now_ns, slot, output_tokens, actions),
                FaultEvent::Ended { slot } => {
                    self.open.remove(&slot);
                    // The request ended in the same batch, before the fault could be applied.
                    actions.retain(|action| *action != FaultAction::FailRequest { slot });
                }
                FaultEvent::Utility { method } => {
                    actions.extend(self.rules.iter_mut().filter_map(|rule| rule.at_utility(now_ns, method)));
                }
            }
        }
        Ok(())
    }
}

impl Chaos {
    /// Applies the rules that wait for this number of output tokens, each once for the request.
    fn progress(&mut self, now_ns: u64, slot: u32, output_tokens: u32, actions: &mut Vec<FaultAction>) {
        let Some(open) = self.open.get_mut(&slot) else { return };
        let mut failed = false;
        open.retain(|&index| {
            let rule = &mut self.rules[index];
            if failed || !rule.is_due(now_ns, output_tokens) {
                return true;
            }
            let action = rule.happen(slot);
            failed |= action == Some(FaultAction::FailRequest { slot });
            actions.extend(action);
            false
        });
        if failed {
            self.open.remove(&slot);
        }
    }
}

export_failure_injector!(Chaos);

#[cfg(test)]
mod tests;
