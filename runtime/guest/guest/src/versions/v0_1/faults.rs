use vcr_core::fault::{FaultAction, FaultBatch, FaultEvent};

use crate::error::CallFault;
use crate::latest::{FaultInstance, Maker, Setup};
use crate::limits::Budget;
use crate::sandbox::HostState;
use crate::versions::instance::{Instance, Module, impl_bindings};
use crate::versions::v0_1::generated;

pub(super) use bindings::FailureInjector as Bindings;
use bindings::exports::vcr::guest::faults as wit;

generated!("failure-injector");

impl_bindings!(Bindings, bindings::FailureInjectorPre<HostState>, Columns, vcr_guest_faults);

/// The columns of a call's token events: the requests that emitted tokens, over all runs of such events.
#[derive(Default)]
pub(crate) struct Columns {
    slot: Vec<u32>,
    output_tokens: Vec<u32>,
}

impl Columns {
    fn fill(&mut self, events: &[FaultEvent<'_>]) {
        self.slot.clear();
        self.output_tokens.clear();
        for event in events {
            if let FaultEvent::Emitted { slot, output_tokens } = *event {
                self.slot.push(slot);
                self.output_tokens.push(output_tokens);
            }
        }
    }

    /// Converts the events of a call. Consecutive `Emitted` events become one event.
    fn events<'a>(&'a self, events: &[FaultEvent<'a>]) -> Vec<wit::FaultEvent<'a>> {
        let is_emission = |event: &FaultEvent<'_>| matches!(event, FaultEvent::Emitted { .. });
        let mut emitted = 0;
        let runs = events.chunk_by(|before, event| is_emission(before) && is_emission(event));
        runs.map(|run| match run[0] {
            FaultEvent::Arrived { slot, request_id, prompt_tokens, max_tokens, priority, adapter } => {
                wit::FaultEvent::Arrived(wit::ArrivedRequest {
                    slot,
                    request_id,
                    prompt_tokens,
                    max_tokens,
                    priority,
                    adapter,
                })
            }
            FaultEvent::Emitted { .. } => {
                let range = emitted..emitted + run.len();
                emitted = range.end;
                let (slot, output_tokens) = (&self.slot[range.clone()], &self.output_tokens[range]);
                wit::FaultEvent::Emitted(wit::Emissions { slot, output_tokens })
            }
            FaultEvent::Ended { slot } => wit::FaultEvent::Ended(slot),
            FaultEvent::Utility { method } => wit::FaultEvent::Utility(method),
        })
        .collect()
    }
}

impl Maker<dyn FaultInstance> for Module<Bindings> {
    fn configure(&self, setup: Setup<'_>) -> Result<Box<dyn FaultInstance>, CallFault> {
        Ok(Box::new(self.configured(setup)?))
    }
}

impl FaultInstance for Instance<Bindings> {
    fn decide(&mut self, batch: &FaultBatch<'_>, budget: Budget) -> Result<Vec<FaultAction>, CallFault> {
        self.columns().fill(batch.events);
        let answer = self.at(batch.now_ns).call(budget, |guest, store, columns| {
            let events = columns.events(batch.events);
            guest.vcr_guest_faults().call_decide(store, batch.now_ns, batch.step, &events)
        })?;
        Ok(answer.into_iter().map(action).collect())
    }
}

fn action(answered: wit::FaultAction) -> FaultAction {
    match answered {
        wit::FaultAction::FailRequest(slot) => FaultAction::FailRequest { slot },
        wit::FaultAction::Stall(duration_ns) => FaultAction::Stall { duration_ns },
        wit::FaultAction::Crash(restart_after_ns) => FaultAction::Crash { restart_after_ns },
        wit::FaultAction::DropMessage => FaultAction::DropMessage,
        wit::FaultAction::DuplicateMessage => FaultAction::DuplicateMessage,
        wit::FaultAction::CorruptMessage => FaultAction::CorruptMessage,
        wit::FaultAction::DelayMessage(by_ns) => FaultAction::DelayMessage { by_ns },
        wit::FaultAction::LoseKvEvents => FaultAction::LoseKvEvents,
        wit::FaultAction::FailUtility => FaultAction::FailUtility,
    }
}
