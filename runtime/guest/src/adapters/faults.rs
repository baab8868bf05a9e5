//! A failure injector of the engine core that asks a guest.

use std::collections::BTreeSet;

use vcr_core::fault::{DURATION_NS_MAX, FailureInjector, FaultAction, FaultBatch, FaultError, FaultEvent};

use crate::adapters::running::Running;
use crate::error::{ActionProblem, CallFault};
use crate::latest::FaultInstance;
use crate::limits::Limits;

/// Words of an event, and of an action, in the flat lists of a call.
const EVENT_WORDS: usize = 6;
pub(crate) const ACTION_WORDS: usize = 3;

/// The word of a request without an adapter.
const NO_LORA: u64 = u64::MAX;

/// One injector in one instance of a guest.
pub(crate) struct GuestFaults {
    limits: Limits,
    running: Running<dyn FaultInstance>,
    /// Slots of the requests that may still be failed.
    live: BTreeSet<u32>,
    /// The flat lists of a call, kept so that most steps allocate nothing here.
    events: Vec<u64>,
    texts: Vec<String>,
}

impl GuestFaults {
    pub(crate) fn new(name: String, limits: Limits, instance: Box<dyn FaultInstance>) -> Self {
        let running = Running::new(name, instance);
        Self { limits, running, live: BTreeSet::new(), events: Vec::new(), texts: Vec::new() }
    }
}

impl FailureInjector for GuestFaults {
    fn decide(&mut self, batch: &FaultBatch<'_>, actions: &mut Vec<FaultAction>) -> Result<(), FaultError> {
        let decided_before = actions.len();
        let Self { limits, running, live, events, texts } = self;
        let result = running.call("decide", |instance| {
            let has_utility = pack_events(batch.events, live, events, texts);
            // Enough to fail every request there is.
            let most_bytes = (live.len() + 1) * ACTION_WORDS * size_of::<u64>();
            let budget = limits.budget(batch.events.len(), most_bytes);
            let answer = instance.decide(batch.now_ns, batch.step, events, texts, budget)?;
            accept(&answer, live, has_utility, actions)
        });
        result.map_err(|failure| {
            actions.truncate(decided_before);
            FaultError { injector: failure.guest, reason: failure.reason }
        })
    }
}

/// Packs events into flat lists and keeps book of the requests. Gives whether
/// there is a utility call among them.
pub(crate) fn pack_events(
    batch: &[FaultEvent<'_>],
    live: &mut BTreeSet<u32>,
    events: &mut Vec<u64>,
    texts: &mut Vec<String>,
) -> bool {
    let mut has_utility = false;
    events.clear();
    texts.clear();
    for event in batch {
        let words: [u64; EVENT_WORDS] = match *event {
            FaultEvent::Arrived { slot, request_id, prompt_tokens, max_tokens, priority, lora } => {
                live.insert(slot);
                texts.push(request_id.to_owned());
                let priority = i64::from(priority).cast_unsigned();
                let lora = lora.map_or(NO_LORA, u64::from);
                [0, slot.into(), prompt_tokens.into(), max_tokens.into(), priority, lora]
            }
            FaultEvent::Emitted { slot, output_tokens } => [1, slot.into(), output_tokens.into(), 0, 0, 0],
            FaultEvent::Ended { slot } => {
                live.remove(&slot);
                [2, slot.into(), 0, 0, 0, 0]
            }
            FaultEvent::Utility { method } => {
                has_utility = true;
                texts.push(method.to_owned());
                [3, 0, 0, 0, 0, 0]
            }
        };
        events.extend(words);
    }
    has_utility
}

/// Checks the answer of one call and appends what it says.
pub(crate) fn accept(
    answer: &[u64],
    live: &mut BTreeSet<u32>,
    has_utility: bool,
    actions: &mut Vec<FaultAction>,
) -> Result<(), CallFault> {
    let (answered, rest) = answer.as_chunks::<ACTION_WORDS>();
    if !rest.is_empty() {
        return Err(CallFault::RaggedActions { words: answer.len() });
    }
    for (index, words) in answered.iter().enumerate() {
        let action =
            read(words, live, has_utility).map_err(|problem| CallFault::BadAction { index, words: *words, problem })?;
        actions.push(action);
    }
    Ok(())
}

/// Reads the words of one action.
fn read(
    words: &[u64; ACTION_WORDS],
    live: &mut BTreeSet<u32>,
    has_utility: bool,
) -> Result<FaultAction, ActionProblem> {
    // Arguments that an action takes; words beyond them must be 0, so that a
    // later version of the interface can give them a meaning.
    let (action, arguments) = match *words {
        [0, slot, _] => {
            let slot = u32::try_from(slot).ok().filter(|slot| live.remove(slot));
            (FaultAction::FailRequest { slot: slot.ok_or(ActionProblem::NoSuchRequest)? }, 1)
        }
        [1, duration_ns, _] => (FaultAction::Stall { duration_ns: checked(duration_ns)? }, 1),
        [2, 0, 0] => (FaultAction::Crash { restart_after_ns: None }, 2),
        [2, delay_ns, 1] => (FaultAction::Crash { restart_after_ns: Some(checked(delay_ns)?) }, 2),
        [2, _, _] => return Err(ActionProblem::NoRestart),
        [3, _, _] => (FaultAction::DropMessage, 0),
        [4, _, _] => (FaultAction::DuplicateMessage, 0),
        [5, _, _] => (FaultAction::CorruptMessage, 0),
        [6, by_ns, _] => (FaultAction::DelayMessage { by_ns: checked(by_ns)? }, 1),
        [7, _, _] => (FaultAction::LoseKvEvents, 0),
        [8, _, _] if has_utility => (FaultAction::FailUtility, 0),
        [8, _, _] => return Err(ActionProblem::NoUtilityCall),
        _ => return Err(ActionProblem::UnknownKind),
    };
    if words[1 + arguments..].iter().any(|word| *word != 0) {
        return Err(ActionProblem::UnusedWord);
    }
    Ok(action)
}

fn checked(duration_ns: u64) -> Result<u64, ActionProblem> {
    if duration_ns <= DURATION_NS_MAX { Ok(duration_ns) } else { Err(ActionProblem::TooLong) }
}
