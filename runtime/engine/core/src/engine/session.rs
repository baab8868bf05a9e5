//! Requests whose prompt arrives in parts, with outputs in between: vLLM's resumable requests (streaming inputs).
//!
//! The outputs for a part end like the outputs of any request. Then the request waits for its next part. It keeps its
//! blocks and computed tokens, and still occupies a running slot. When the part arrives, the last output
//! token is dropped and the other outputs become prompt tokens. The request is then admitted like a request whose KV
//! has been loaded.

use std::collections::{BTreeMap, VecDeque};

use crate::config::Policy;
use crate::engine::Engine;
use crate::engine::reject::RejectReason;
use crate::request::{Flags, KvRole, RequestId, RequestSpec, RequestStatus, StopRules};

/// The next part of a request's prompt, and its stop conditions.
#[derive(Clone, Debug)]
pub struct SessionInput {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Maximum number of output tokens for this part, at least 1.
    pub max_tokens: u32,
    /// Rules that end the outputs earlier, if any.
    pub stops: Option<Box<StopRules>>,
    /// Arrival time of the part.
    pub arrival_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct Sessions {
    open: BTreeMap<RequestId, Session>,
    /// Number of sessions that wait for their next part.
    num_waiting: usize,
    /// Tags of sessions that continue after the outputs of the step that is being applied.
    continuing: Vec<u64>,
}

#[derive(Debug)]
struct Session {
    /// Parts that arrived before the outputs for the previous part ended. None marks the end of the session.
    inputs: VecDeque<Option<SessionInput>>,
    /// State of the block-hash chain before the first token.
    initial_hash_state: u64,
    /// Whether the request was preempted before the latest part arrived.
    was_preempted: bool,
}

impl Engine {
    /// Adds the next part of a resumable request's prompt. `None` ends the session. The part is queued while
    /// outputs for the previous part are still expected. If the request already waits, `None` ends it without further
    /// outputs.
    ///
    /// # Errors
    /// If vLLM would not accept it: the request is not resumable, or the part is empty or leaves no room for output.
    pub fn extend(&mut self, id: RequestId, input: Option<SessionInput>) -> Result<(), RejectReason> {
        let waits = self.requests[id].status == RequestStatus::WaitingForInput;
        let known_tokens = if waits { self.requests[id].num_tokens - 1 } else { 0 };
        if let Some(input) = &input {
            if input.tokens.is_empty() || input.max_tokens == 0 {
                return Err(RejectReason::EmptyPrompt);
            }
            self.check_prompt(known_tokens.saturating_add(input.tokens.len() as u32), input.max_tokens)?;
        }
        let session = self.sessions.as_mut().and_then(|sessions| sessions.open.get_mut(&id));
        let session = session.ok_or(RejectReason::DuplicateRequest)?;
        match input {
            input if !waits => session.inputs.push_back(input),
            Some(input) => self.begin_part(id, input),
            None => self.abort(id),
        }
        Ok(())
    }

    pub(super) fn check_session(&self, spec: &RequestSpec) -> Result<(), RejectReason> {
        let config = &self.config;
        let is_simulated = config.rules().has_sessions()
            && config.kv_tiers().is_none()
            && config.kv_connector().is_none()
            && !config.keeps_states()
            && config.drafting().hash_lookahead_tokens == 0
            && config.quirks().burst_tokens() == 0
            && !config.quirks().reserves_whole_output()
            && !config.quirks().reserves_between_steps()
            && !self.turns.are_paced()
            && config.policy() == Policy::Fcfs
            && spec.kv_role == KvRole::Local
            && spec.prompt.items.is_empty()
            && spec.prompt.keeps_tokens
            && !spec.prompt.is_hashed
            && spec.max_tokens > 0;
        if is_simulated { Ok(()) } else { Err(RejectReason::SessionNotSimulated) }
    }

    pub(super) fn open_session(&mut self, id: RequestId) {
        let request = &mut self.requests[id];
        request.flags.set(Flags::RESUMABLE, true);
        let session = Session { inputs: VecDeque::new(), initial_hash_state: request.hash_state, was_preempted: false };
        self.sessions.get_or_insert_with(Box::default).open.insert(id, session);
    }

    pub(super) fn num_waiting_sessions(&self) -> usize {
        self.sessions.as_ref().map_or(0, |sessions| sessions.num_waiting)
    }

    pub(super) fn was_session_preempted(&self, id: RequestId) -> bool {
        let session = self.sessions.as_ref().and_then(|sessions| sessions.open.get(&id));
        session.is_some_and(|session| session.was_preempted)
    }

    /// Continues a resumable request after the outputs for a part have ended and it has left all queues. Returns false
    /// if the request has ended.
    #[cold]
    pub(super) fn goes_on(&mut self, id: RequestId) -> bool {
        let request = &mut self.requests[id];
        // The request resumes after the tokens that are certain to be computed. Outputs of steps in flight
        // are dropped.
        request.num_computed_tokens =
            request.num_computed_tokens.saturating_sub(request.num_output_placeholders.into());
        request.num_output_placeholders = 0;
        request.num_draft_tokens = 0;
        request.flags.set(Flags::DROPS_STALE, true);
        request.num_stale_tokens = request.num_in_flight_tokens;
        request.prefill_target_tokens = 0;
        request.flags.set(Flags::IN_FLIGHT_PREFILL, false);
        let (tag, known_tokens) = (request.tag, request.num_tokens - 1);
        let session = self.sessions.as_mut().and_then(|sessions| sessions.open.get_mut(&id));
        match session.and_then(|session| session.inputs.pop_front()) {
            Some(Some(input)) => {
                // A part that does not fit ends the session.
                if self.check_prompt(known_tokens.saturating_add(input.tokens.len() as u32), 1).is_err() {
                    return false;
                }
                self.begin_part(id, input);
            }
            Some(None) => return false,
            None => {
                self.requests[id].status = RequestStatus::WaitingForInput;
                self.queues.set_deferred(id, true, &mut self.requests);
            }
        }
        let waits = self.requests[id].status == RequestStatus::WaitingForInput;
        if let Some(sessions) = &mut self.sessions {
            sessions.num_waiting += usize::from(waits);
            sessions.continuing.push(tag);
        }
        self.queues.enter_again(id, &mut self.requests);
        true
    }

    /// Appends a part to the known tokens, in place of the last output token. A waiting request keeps
    /// its place.
    fn begin_part(&mut self, id: RequestId, input: SessionInput) {
        let (block_size, longest) = (self.config.block_size(), self.config.max_model_len());
        let keeps_known = self.config.rules().keeps_known_of_sessions();
        let Some(sessions) = &mut self.sessions else { return };
        let Some(session) = sessions.open.get_mut(&id) else { return };
        let request = &mut self.requests[id];
        let waited = request.status == RequestStatus::WaitingForInput;
        sessions.num_waiting -= usize::from(waited);
        let known = request.num_tokens;
        let kept = if keeps_known { known - 1 } else { request.num_computed_tokens.min(known) };
        session.was_preempted |= request.flags.has(Flags::WAS_PREEMPTED);
        request.flags.set(Flags::WAS_PREEMPTED, false);
        request.tokens.truncate(kept as usize);
        request.tokens.extend_from_slice(&input.tokens);
        let stops = input.stops.and_then(StopRules::prepared);
        request.flags.set(Flags::HAS_STOPS, stops.is_some());
        request.stops = stops;
        request.num_tokens = request.tokens.len() as u32;
        request.prompt_tokens = request.num_tokens;
        request.max_tokens = input.max_tokens;
        request.end_tokens = request.num_tokens.saturating_add(input.max_tokens).min(longest);
        request.arrival_ns = input.arrival_ns;
        if request.flags.has(Flags::HASHED) {
            request.hash_again(session.initial_hash_state, block_size);
        }
        request.prefill_target_tokens = request.num_tokens;
        self.prefills.add(request.outstanding_prefill_tokens());
        let holds_kv = request.num_computed_tokens > 0;
        request.flags.set(Flags::TAKEN_OVER, holds_kv);
        request.status = if holds_kv { RequestStatus::RemoteKvReady } else { RequestStatus::Waiting };
    }

    #[inline]
    pub(super) fn take_continuing_sessions(&mut self, into: &mut Vec<u64>) {
        if let Some(sessions) = &mut self.sessions {
            into.append(&mut sessions.continuing);
        }
    }

    pub(super) fn close_session(&mut self, id: RequestId) {
        if self.requests[id].flags.has(Flags::RESUMABLE)
            && let Some(sessions) = &mut self.sessions
        {
            sessions.open.remove(&id);
        }
    }

    /// Handles the abort of a request that waits for its next part.
    pub(super) fn leave_waiting_for_input(&mut self, id: RequestId) {
        if let Some(sessions) = &mut self.sessions {
            sessions.num_waiting -= 1;
        }
        self.queues.leave(id, &mut self.requests);
    }
}
