use vcr_core::policy::{EngineView, PolicyEvent, Preference, Progress};

use crate::error::CallFault;
use crate::latest::{Maker, PolicyInstance, Setup};
use crate::limits::Budget;
use crate::sandbox::HostState;
use crate::versions::instance::{Instance, Module, impl_bindings};
use crate::versions::v0_1::{generated, paired};

pub(super) use bindings::SchedulerPolicy as Bindings;
use bindings::exports::vcr::guest::scheduling as wit;

generated!("scheduler-policy");

impl_bindings!(Bindings, bindings::SchedulerPolicyPre<HostState>, Columns, vcr_guest_scheduling);

/// Buffers for the lists of a call.
#[derive(Default)]
pub(crate) struct Columns {
    events: Vec<wit::PolicyEvent>,
    slot: Vec<u32>,
    computed_tokens: Vec<u32>,
    output_tokens: Vec<u32>,
}

impl Columns {
    fn fill(&mut self, events: &[PolicyEvent], progress: &[Progress]) {
        self.events.clear();
        self.events.extend(events.iter().map(wit_event));
        self.slot.clear();
        self.computed_tokens.clear();
        self.output_tokens.clear();
        for row in progress {
            self.slot.push(row.slot);
            self.computed_tokens.push(row.computed_tokens);
            self.output_tokens.push(row.output_tokens);
        }
    }
}

impl Maker<dyn PolicyInstance> for Module<Bindings> {
    fn configure(&self, setup: Setup<'_>) -> Result<Box<dyn PolicyInstance>, CallFault> {
        Ok(Box::new(self.configured(setup)?))
    }
}

impl PolicyInstance for Instance<Bindings> {
    fn decide(
        &mut self,
        batch: &EngineView<'_>,
        preferences: &mut Vec<Preference>,
        budget: Budget,
    ) -> Result<(), CallFault> {
        self.columns().fill(batch.events, batch.progress);
        let answer = self.at(batch.now_ns).call(budget, |guest, store, columns| {
            let engine = wit::EngineView {
                now_ns: batch.now_ns,
                budget_tokens: batch.budget_tokens,
                running_slots: batch.running_slots,
                free_blocks: batch.free_blocks,
                total_blocks: batch.total_blocks,
                block_size_tokens: batch.block_size_tokens,
                events: &columns.events,
                progress: wit::Progress {
                    slot: &columns.slot,
                    computed_tokens: &columns.computed_tokens,
                    output_tokens: &columns.output_tokens,
                },
            };
            guest.vcr_guest_scheduling().call_decide(store, engine)
        })?;
        read(&answer, preferences)
    }
}

fn wit_event(event: &PolicyEvent) -> wit::PolicyEvent {
    match *event {
        PolicyEvent::Arrived { slot, arrival_ns, prompt_tokens, max_tokens, priority, adapter, tenant, slo } => {
            wit::PolicyEvent::Arrived(wit::ArrivedRequest {
                slot,
                arrival_ns,
                prompt_tokens,
                max_tokens,
                priority,
                adapter,
                tenant,
                slo: slo.into(),
            })
        }
        PolicyEvent::Admitted { slot, cached_tokens } => {
            wit::PolicyEvent::Admitted(wit::AdmittedRequest { slot, cached_tokens })
        }
        PolicyEvent::Preempted { slot } => wit::PolicyEvent::Preempted(slot),
        PolicyEvent::Ended { slot, computed_tokens, output_tokens } => {
            wit::PolicyEvent::Ended(wit::EndedRequest { slot, computed_tokens, output_tokens })
        }
    }
}

fn read(answer: &wit::Preferences, preferences: &mut Vec<Preference>) -> Result<(), CallFault> {
    let wit::Preferences { admission, eviction, chunk_caps, uncapped } = answer;
    let admissions = paired("admission", &["slot", "rank"], &admission.slot, &admission.rank)?;
    let evictions = paired("eviction", &["slot", "rank"], &eviction.slot, &eviction.rank)?;
    let caps = paired("chunk-caps", &["slot", "tokens"], &chunk_caps.slot, &chunk_caps.tokens)?;
    preferences.extend(admissions.map(|(slot, rank)| Preference::AdmissionRank { slot, rank }));
    preferences.extend(evictions.map(|(slot, rank)| Preference::EvictionRank { slot, rank }));
    preferences.extend(caps.map(|(slot, tokens)| Preference::ChunkCap { slot, tokens: Some(tokens) }));
    preferences.extend(uncapped.iter().map(|&slot| Preference::ChunkCap { slot, tokens: None }));
    Ok(())
}
