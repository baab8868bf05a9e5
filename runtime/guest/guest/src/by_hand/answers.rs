//! Checks answers of calls by hand by the rules of runs.

use std::collections::BTreeSet;

use serde_json::Value;
use vcr_core::fault::{FaultAction, FaultEvent};
use vcr_core::policy::{PolicyEvent, Preference, PreferenceCheck, Slo};
use vcr_core::route::{RouteRequest, WorkerLoad};

use crate::adapters::{faults, latency, policy, router, scaler};
use crate::error::CallFault;
use crate::latest::Chosen;
use crate::remarks::{Remarks, RemarksOfCall, RunningSlots};
use crate::world::World;

/// The state that checks of later answers need.
pub(super) enum AnswerCheck {
    Latency,
    Scheduling(PreferenceCheck),
    Routing,
    Scaling,
    /// Slots of requests that can still fail.
    Faults(BTreeSet<u32>),
    Tokens(RunningSlots),
}

impl AnswerCheck {
    pub(super) fn new(world: World) -> Self {
        match world {
            World::LatencyModel => Self::Latency,
            World::SchedulerPolicy => Self::Scheduling(PreferenceCheck::default()),
            World::Router => Self::Routing,
            World::Autoscaler => Self::Scaling,
            World::FailureInjector => Self::Faults(BTreeSet::new()),
            World::TokenSource => Self::Tokens(RunningSlots::default()),
        }
    }

    /// Checks the answer of a call. `input` has the call's arguments and must be complete.
    pub(super) fn check(
        &mut self,
        function: &str,
        input: &Value,
        answer: &Value,
        remarks: &mut RemarksOfCall,
    ) -> Result<(), CallFault> {
        match self {
            _ if function == "configure" => Ok(()),
            Self::Latency => check_durations(function, input, answer),
            Self::Scheduling(known) => {
                rows(&input["engine"]["events"]).for_each(|event| known.note(&policy_event(event)));
                policy::accept(&preferences(answer)?, known)
            }
            Self::Routing => {
                let query = RouteRequest {
                    id: whole(&input["request"]["id"]),
                    may_refuse: input["request"]["may-refuse"] == true,
                    ..RouteRequest::default()
                };
                let load = |worker| WorkerLoad { worker: slot(worker), ..WorkerLoad::default() };
                let mut workers: Vec<WorkerLoad> = rows(&input["workers"]["worker"]).map(load).collect();
                workers.sort_by_key(|load| load.worker);
                let chosen = answer.get("worker").map_or(Chosen::Refused, |worker| Chosen::Worker(slot(worker)));
                router::accept(chosen, &query, &workers).map(drop)
            }
            Self::Scaling => scaler::accept(slot(answer)).map(drop),
            Self::Faults(live) => {
                let events: Vec<FaultEvent<'_>> = rows(&input["events"]).filter_map(fault_event).collect();
                let has_utility = faults::note_events(&events, live);
                faults::check(&rows(answer).map(fault_action).collect::<Vec<_>>(), live, has_utility)
            }
            Self::Tokens(slots) => {
                rows(&input["ended"]).for_each(|ended| slots.end(slot(ended)));
                rows(&input["started"]).for_each(|request| slots.start(slot(&request["slot"])));
                let (given, counts) = (rows(answer).count(), rows(&input["wants"]["count"]));
                let wanted = counts.map(|count| whole(count) as usize).sum();
                let mut made = Remarks::default();
                remarks.take(&mut made);
                if given != wanted {
                    return Err(CallFault::TokenCount { given, wanted });
                }
                slots.check(&mut made, 0, 0)
            }
        }
    }
}

fn check_durations(function: &str, input: &Value, answer: &Value) -> Result<(), CallFault> {
    let start_ns = whole(&input["start-ns"]);
    if function == "price-step" {
        return latency::checked(start_ns, number(answer)).map(drop);
    }
    let steps = rows(&input["run"]["kv-active-blocks"]).count();
    let durations: Vec<f64> = rows(answer).map(number).collect();
    latency::accept(&durations, steps, start_ns, whole(&input["horizon-ns"]), &mut Vec::new()).map(drop)
}

/// Parses the fields of an event that the check of preferences needs.
fn policy_event(event: &Value) -> PolicyEvent {
    let of = |name: &str| event.get(name);
    if let Some(arrived) = of("arrived") {
        return PolicyEvent::Arrived {
            slot: slot(&arrived["slot"]),
            arrival_ns: 0,
            prompt_tokens: 0,
            max_tokens: 0,
            priority: 0,
            adapter: None,
            tenant: 0,
            slo: Slo::default(),
        };
    }
    match (of("admitted"), of("preempted"), of("ended")) {
        (Some(admitted), ..) => PolicyEvent::Admitted { slot: slot(&admitted["slot"]), cached_tokens: 0 },
        (_, Some(preempted), _) => PolicyEvent::Preempted { slot: slot(preempted) },
        (_, _, ended) => PolicyEvent::Ended {
            slot: ended.map_or(0, |ended| slot(&ended["slot"])),
            computed_tokens: 0,
            output_tokens: 0,
        },
    }
}

fn preferences(answer: &Value) -> Result<Vec<Preference>, CallFault> {
    let mut preferences = Vec::new();
    for (slot, rank) in paired(answer, "admission", &["slot", "rank"])? {
        preferences.push(Preference::AdmissionRank { slot, rank: rank.as_i64().unwrap_or_default() });
    }
    for (slot, rank) in paired(answer, "eviction", &["slot", "rank"])? {
        preferences.push(Preference::EvictionRank { slot, rank: rank.as_i64().unwrap_or_default() });
    }
    for (slot_of_cap, tokens) in paired(answer, "chunk-caps", &["slot", "tokens"])? {
        preferences.push(Preference::ChunkCap { slot: slot_of_cap, tokens: Some(slot(tokens)) });
    }
    for uncapped in rows(&answer["uncapped"]) {
        preferences.push(Preference::ChunkCap { slot: slot(uncapped), tokens: None });
    }
    Ok(preferences)
}

/// Pairs two columns of an answer.
fn paired<'a>(
    answer: &'a Value,
    record: &'static str,
    names: &'static [&'static str; 2],
) -> Result<impl Iterator<Item = (u32, &'a Value)> + use<'a>, CallFault> {
    let [first, second] = names.map(|name| &answer[record][name]);
    let lengths = [rows(first).count(), rows(second).count()];
    if lengths[0] != lengths[1] {
        return Err(CallFault::UnequalColumns { record, names, lengths });
    }
    Ok(rows(first).map(slot).zip(rows(second)))
}

/// Parses the fields of an event that the check of actions needs.
fn fault_event(event: &Value) -> Option<FaultEvent<'_>> {
    if let Some(arrived) = event.get("arrived") {
        return Some(FaultEvent::Arrived {
            slot: slot(&arrived["slot"]),
            request_id: "",
            prompt_tokens: 0,
            max_tokens: 0,
            priority: 0,
            adapter: None,
        });
    }
    let ended = event.get("ended").map(|ended| FaultEvent::Ended { slot: slot(ended) });
    ended.or_else(|| Some(FaultEvent::Utility { method: event.get("utility")?.as_str()? }))
}

fn fault_action(action: &Value) -> FaultAction {
    if let Some((name, value)) = action.as_object().and_then(|action| action.iter().next()) {
        return match name.as_str() {
            "fail-request" => FaultAction::FailRequest { slot: slot(value) },
            "stall" => FaultAction::Stall { duration_ns: whole(value) },
            "crash" => FaultAction::Crash { restart_after_ns: value.as_u64() },
            _ => FaultAction::DelayMessage { by_ns: whole(value) },
        };
    }
    match action.as_str().unwrap_or_default() {
        "drop-message" => FaultAction::DropMessage,
        "duplicate-message" => FaultAction::DuplicateMessage,
        "corrupt-message" => FaultAction::CorruptMessage,
        "lose-kv-events" => FaultAction::LoseKvEvents,
        _ => FaultAction::FailUtility,
    }
}

fn rows(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn whole(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// Parses a slot, index or count: a `u32` in `wit/`.
fn slot(value: &Value) -> u32 {
    whole(value) as u32
}

/// Parses a number. NaN and infinities are strings, because JSON has no numbers for them.
fn number(value: &Value) -> f64 {
    let written = || value.as_str().and_then(|text| text.parse().ok());
    value.as_f64().or_else(written).unwrap_or(f64::NAN)
}
