//! Calls a [`SchedulingPolicy`] and applies its preferences.
//!
//! Only an engine under [`Policy::Ranked`] gathers data for a policy.

use crate::config::Policy;
use crate::engine::Engine;
use crate::plugins::policy::{
    EngineView, PolicyError, PolicyEvent, Preference, PreferenceCheck, Progress, SchedulingPolicy, Slo,
};
use crate::request::{Flags, RequestId};

/// No cap on the tokens that a request computes in one step.
const NO_CHUNK_CAP: u32 = u32::MAX;

/// A policy's preferences for a request, and the state last reported to the policy.
#[derive(Clone, Copy, Debug)]
struct Standing {
    eviction_rank: i64,
    chunk_cap: u32,
    reported_computed_tokens: u32,
    reported_output_tokens: u32,
}

impl Default for Standing {
    fn default() -> Self {
        Self { eviction_rank: 0, chunk_cap: NO_CHUNK_CAP, reported_computed_tokens: 0, reported_output_tokens: 0 }
    }
}

/// State that an engine keeps for its policy.
#[derive(Debug, Default)]
pub(super) struct PolicyBook {
    standings: Vec<Standing>,
    events: Vec<PolicyEvent>,
    check: PreferenceCheck,
    progress: Vec<Progress>,
    preferences: Vec<Preference>,
}

impl PolicyBook {
    pub(super) fn of(policy: Policy) -> Option<Box<Self>> {
        (policy == Policy::Ranked).then(Box::default)
    }

    fn note(&mut self, event: PolicyEvent) {
        self.check.note(&event);
        self.events.push(event);
    }

    /// Whether the policy must be called before the next step.
    fn has_news(&self) -> bool {
        !self.events.is_empty()
    }
}

impl Engine {
    /// Calls `policy` for its preferences. Must be called before each [`Engine::schedule`] of an engine
    /// under [`Policy::Ranked`]. Does nothing unless a request arrived, was admitted, was preempted or ended
    /// since the last call. Under other policies it never does anything.
    ///
    /// Applies all preferences of the answer or, if there is an error, none.
    ///
    /// # Errors
    /// The policy's own error, or the error in its answer: a request that does not exist, a preference given
    /// twice for a slot, a chunk limit of 0.
    pub fn apply_policy(&mut self, policy: &mut dyn SchedulingPolicy, now_ns: u64) -> Result<(), PolicyError> {
        let Some(mut book) = self.policy_book.take_if(|book| book.has_news()) else { return Ok(()) };
        self.gather_progress(&mut book);
        book.preferences.clear();
        let batch = EngineView {
            now_ns,
            budget_tokens: self.step_budget(),
            running_slots: self.config.max_running().saturating_sub(self.running.len()) as u32,
            free_blocks: self.pool().num_free(),
            total_blocks: self.pool().num_usable(),
            block_size_tokens: self.config.block_size(),
            events: &book.events,
            progress: &book.progress,
        };
        let result = policy.decide(&batch, &mut book.preferences).and_then(|()| check(policy, &mut book));
        if result.is_ok() {
            for preference in &book.preferences {
                self.prefer(&mut book.standings, preference);
            }
        }
        book.events.clear();
        self.policy_book = Some(book);
        result
    }

    /// Maximum number of tokens that the policy lets a request compute in one step.
    pub(super) fn chunk_cap(&self, id: RequestId) -> u32 {
        let Some(book) = &self.policy_book else { return NO_CHUNK_CAP };
        // A capped chunk might never fit an item that must not be split.
        if self.config.disable_chunked_mm_input() && self.requests[id].flags.has(Flags::NEEDS_ENCODER) {
            return NO_CHUNK_CAP;
        }
        book.standings[id.index()].chunk_cap
    }

    pub(super) fn eviction_rank(&self, id: RequestId) -> i64 {
        self.policy_book.as_ref().map_or(0, |book| book.standings[id.index()].eviction_rank)
    }

    pub(super) fn has_policy_events(&self) -> bool {
        self.policy_book.as_ref().is_some_and(|book| book.has_news())
    }

    fn gather_progress(&self, book: &mut PolicyBook) {
        book.progress.clear();
        for &id in self.running.iter() {
            let request = &self.requests[id];
            let (computed_tokens, output_tokens) = (request.num_computed_tokens, request.num_output_tokens());
            let standing = &mut book.standings[id.index()];
            if (standing.reported_computed_tokens, standing.reported_output_tokens) != (computed_tokens, output_tokens)
            {
                (standing.reported_computed_tokens, standing.reported_output_tokens) = (computed_tokens, output_tokens);
                book.progress.push(Progress { slot: id.0, computed_tokens, output_tokens });
            }
        }
    }

    fn prefer(&mut self, standings: &mut [Standing], preference: &Preference) {
        match *preference {
            Preference::AdmissionRank { slot, rank } => self.set_admission_rank(RequestId(slot), rank),
            Preference::EvictionRank { slot, rank } => standings[slot as usize].eviction_rank = rank,
            Preference::ChunkCap { slot, tokens } => {
                standings[slot as usize].chunk_cap = tokens.unwrap_or(NO_CHUNK_CAP)
            }
        }
    }

    /// Sets the rank of a request, and moves the request within its queue if it waits.
    fn set_admission_rank(&mut self, id: RequestId, rank: i64) {
        let request = &mut self.requests[id];
        if request.rank == rank {
            return;
        }
        request.rank = rank;
        self.queues.reorder(id, &mut self.requests);
    }

    pub(super) fn note_arrived(&mut self, id: RequestId, priority: i32, tenant: u64, slo: Slo) {
        let Some(book) = &mut self.policy_book else { return };
        let request = &mut self.requests[id];
        // Until the policy sets a rank, the rank is 0, whatever the priority is.
        request.rank = 0;
        if id.index() >= book.standings.len() {
            book.standings.resize(id.index() + 1, Standing::default());
        }
        book.standings[id.index()] = Standing::default();
        book.note(PolicyEvent::Arrived {
            slot: id.0,
            arrival_ns: request.arrival_ns,
            prompt_tokens: request.prompt_tokens,
            max_tokens: request.max_tokens,
            priority,
            adapter: request.lora,
            tenant,
            slo,
        });
    }

    #[inline]
    pub(super) fn note_admitted(&mut self, id: RequestId, cached_tokens: u32) {
        let Some(book) = &mut self.policy_book else { return };
        book.standings[id.index()].reported_computed_tokens = cached_tokens;
        book.note(PolicyEvent::Admitted { slot: id.0, cached_tokens });
    }

    pub(super) fn note_preempted(&mut self, id: RequestId) {
        let Some(book) = &mut self.policy_book else { return };
        book.note(PolicyEvent::Preempted { slot: id.0 });
    }

    #[inline]
    pub(super) fn note_ended(&mut self, id: RequestId) {
        let Some(book) = &mut self.policy_book else { return };
        let request = &self.requests[id];
        book.note(PolicyEvent::Ended {
            slot: id.0,
            computed_tokens: request.num_computed_tokens,
            output_tokens: request.num_output_tokens(),
        });
    }
}

/// Finds the first error in the policy's answer.
fn check(policy: &dyn SchedulingPolicy, book: &mut PolicyBook) -> Result<(), PolicyError> {
    book.check.begin_answer();
    for (index, preference) in book.preferences.iter().enumerate() {
        book.check.check(preference).map_err(|problem| PolicyError {
            policy: policy.name().to_owned(),
            reason: format!("its preference {index}, {preference}, {problem}"),
        })?;
    }
    Ok(())
}
