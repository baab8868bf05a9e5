//! A scheduling policy of the engine core that asks a guest.

use vcr_core::policy::{
    NO_CHUNK_CAP, PolicyBatch, PolicyError, PolicyEvent, Preference, PreferenceCheck, SchedulingPolicy,
};

use crate::adapters::running::Running;
use crate::error::{CallFault, PreferenceFault};
use crate::latest::{PolicyCall, PolicyInstance};
use crate::limits::Limits;

/// Words of an event, and of a preference, in the flat lists of a call.
const EVENT_WORDS: usize = 8;
const PREFERENCE_WORDS: usize = 3;
/// Kinds of preferences, each of which an answer may hold for each request.
const PREFERENCE_KINDS: usize = 3;

/// The word of a request without an adapter.
const NO_LORA: u64 = u64::MAX;

/// One policy in one instance of a guest.
pub(crate) struct GuestPolicy {
    name: String,
    limits: Limits,
    running: Running<dyn PolicyInstance>,
    check: PreferenceCheck,
    /// The lists of a call, kept so that most steps allocate nothing here.
    call: PolicyCall,
}

impl GuestPolicy {
    pub(crate) fn new(name: String, limits: Limits, instance: Box<dyn PolicyInstance>) -> Self {
        let running = Running::new(name.clone(), instance);
        Self { name, limits, running, check: PreferenceCheck::default(), call: PolicyCall::default() }
    }
}

impl SchedulingPolicy for GuestPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn decide(&mut self, batch: &PolicyBatch<'_>, preferences: &mut Vec<Preference>) -> Result<(), PolicyError> {
        let said_before = preferences.len();
        let Self { limits, running, check, call, .. } = self;
        let result = running.call("decide", |instance| {
            pack_events(batch, check, call);
            // Enough to say everything of every request there is.
            let most_bytes = check.num_there() * PREFERENCE_KINDS * PREFERENCE_WORDS * size_of::<u64>();
            let budget = limits.budget(batch.events.len() + batch.progress.len(), most_bytes);
            let answer = instance.decide(call, budget)?;
            accept(&answer, check, preferences)
        });
        result.map_err(|failure| {
            preferences.truncate(said_before);
            PolicyError { policy: failure.guest, reason: failure.reason }
        })
    }
}

/// Packs what happened into flat lists.
fn pack_events(batch: &PolicyBatch<'_>, check: &mut PreferenceCheck, call: &mut PolicyCall) {
    call.now_ns = batch.now_ns;
    call.budget_tokens = batch.budget_tokens;
    call.running_slots = batch.running_slots;
    call.free_blocks = batch.free_blocks;
    call.total_blocks = batch.total_blocks;
    call.events.clear();
    for event in batch.events {
        check.note(event);
        call.events.extend(words(event));
    }
    call.progress.clear();
    for progress in batch.progress {
        call.progress.extend([progress.slot, progress.computed_tokens, progress.output_tokens]);
    }
}

fn words(event: &PolicyEvent) -> [u64; EVENT_WORDS] {
    match *event {
        PolicyEvent::Arrived { slot, arrival_ns, prompt_tokens, max_tokens, priority, lora, tenant } => [
            0,
            slot.into(),
            arrival_ns,
            prompt_tokens.into(),
            max_tokens.into(),
            i64::from(priority).cast_unsigned(),
            lora.map_or(NO_LORA, u64::from),
            tenant,
        ],
        PolicyEvent::Admitted { slot, cached_tokens } => [1, slot.into(), cached_tokens.into(), 0, 0, 0, 0, 0],
        PolicyEvent::Preempted { slot } => [2, slot.into(), 0, 0, 0, 0, 0, 0],
        PolicyEvent::Ended { slot, computed_tokens, output_tokens } => {
            [3, slot.into(), computed_tokens.into(), output_tokens.into(), 0, 0, 0, 0]
        }
    }
}

/// Checks the answer of one call and appends what it says.
fn accept(answer: &[u64], check: &mut PreferenceCheck, preferences: &mut Vec<Preference>) -> Result<(), CallFault> {
    let (answered, rest) = answer.as_chunks::<PREFERENCE_WORDS>();
    if !rest.is_empty() {
        return Err(CallFault::RaggedPreferences { words: answer.len() });
    }
    check.begin_answer();
    for (index, words) in answered.iter().enumerate() {
        let preference =
            read(words, check).map_err(|problem| CallFault::BadPreference { index, words: *words, problem })?;
        preferences.push(preference);
    }
    Ok(())
}

/// Reads the words of one preference.
fn read(words: &[u64; PREFERENCE_WORDS], check: &mut PreferenceCheck) -> Result<Preference, PreferenceFault> {
    let [kind, slot, value] = *words;
    // No slot is so large that another one could be meant.
    let slot = u32::try_from(slot).unwrap_or(u32::MAX);
    let preference = match kind {
        0 => Preference::AdmissionRank { slot, rank: value.cast_signed() },
        1 => Preference::EvictionRank { slot, rank: value.cast_signed() },
        // More tokens than a request can have are as good as no cap.
        2 => Preference::ChunkCap { slot, tokens: u32::try_from(value).unwrap_or(NO_CHUNK_CAP) },
        _ => return Err(PreferenceFault::UnknownKind),
    };
    check.check(&preference)?;
    Ok(preference)
}
