//! A scheduling policy that calls a guest.

use vcr_core::policy::{EngineView, PolicyError, Preference, PreferenceCheck, SchedulingPolicy};

use crate::adapters::running::Running;
use crate::error::CallFault;
use crate::latest::PolicyInstance;
use crate::limits::Limits;

/// Bytes of one request's preferences in the memory of a guest: two ranks and a cap, each with a slot.
pub(crate) const PREFERENCES_BYTES: usize = 2 * 12 + 8;

pub(crate) struct GuestPolicy {
    name: String,
    limits: Limits,
    running: Running<dyn PolicyInstance>,
    check: PreferenceCheck,
}

impl GuestPolicy {
    pub(crate) fn new(name: String, limits: Limits, instance: Box<dyn PolicyInstance>) -> Self {
        let running = Running::new(name.clone(), instance);
        Self { name, limits, running, check: PreferenceCheck::default() }
    }
}

impl SchedulingPolicy for GuestPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn decide(&mut self, batch: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), PolicyError> {
        let said_before = preferences.len();
        let Self { limits, running, check, .. } = self;
        let result = running.call("decide", |instance| {
            batch.events.iter().for_each(|event| check.note(event));
            // The answer may have every preference of every current request.
            let most_bytes = check.num_there() * PREFERENCES_BYTES;
            let budget = limits.budget(batch.events.len() + batch.progress.len(), most_bytes);
            instance.decide(batch, preferences, budget)?;
            accept(&preferences[said_before..], check)
        });
        result.map_err(|failure| {
            preferences.truncate(said_before);
            PolicyError { policy: failure.guest, reason: failure.reason }
        })
    }
}

pub(crate) fn accept(answer: &[Preference], check: &mut PreferenceCheck) -> Result<(), CallFault> {
    check.begin_answer();
    answer.iter().try_for_each(|preference| {
        check.check(preference).map_err(|problem| CallFault::BadPreference { preference: *preference, problem })
    })
}
