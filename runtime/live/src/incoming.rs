//! What frontends send: requests to run, to forget, and notices of waves.

use vcr_core::{FinishReason as CoreFinish, PauseState};
use vcr_wire::{DecodeError, EngineCoreOutputs, EngineCoreRequest, FinishReason, Request, RequestError, Source};

use crate::admit::Admitted;
use crate::error::LiveError;
use crate::injector::Happened;
use crate::replay::{Found, Script};
use crate::requests::{LiveRequest, RemoteKv, slot_of};
use crate::routed::has_failed;
use crate::server::{End, Server, Shutdown};
use crate::switchboard::Ticket;

/// Why a request is refused.
pub(crate) struct Refusal {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) retryable: bool,
}

impl Refusal {
    fn invalid(message: impl Into<String>) -> Self {
        Self { code: "validation_error", message: message.into(), retryable: false }
    }
}

impl Server {
    pub(crate) fn handle_request(&mut self, source: Source, request: Request, now_ns: u64) -> Result<(), LiveError> {
        match request {
            Request::Add(request) => self.add(*request, now_ns),
            Request::Abort(ids) => {
                self.abort(&ids);
                Ok(())
            }
            Request::Utility(call) => self.handle_utility(call, now_ns),
            Request::StartDpWave(wave) => {
                if source != Source::Coordinator {
                    self.counters.malformed += 1;
                    tracing::warn!(rank = self.rank, "START_DP_WAVE came from an API server; only a coordinator may");
                } else if let Some(waves) = &self.waves {
                    waves.start(self.index, wave.wave, wave.exclude_engine_index);
                }
                Ok(())
            }
        }
    }

    pub(crate) fn handle_malformed(
        &mut self,
        source: Source,
        error: &DecodeError,
        request_id: Option<&str>,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        self.counters.malformed += 1;
        tracing::warn!(rank = self.rank, ?source, request = request_id, "a message cannot be decoded: {error}");
        match (source, request_id) {
            // Whoever sent it waits for an answer; another one of this name
            // would be ended by it.
            (Source::Client(client), Some(id)) if !self.is_under_way(id) => {
                let refusal = Refusal::invalid(format!("the request cannot be decoded: {error}"));
                self.refuse(client as u32, id, &refusal, now_ns)
            }
            _ => Ok(()),
        }
    }

    /// Requests of a lost API server are of no use to anybody.
    pub(crate) fn handle_loss(&mut self, client: usize) -> Result<(), LiveError> {
        self.counters.frontends_lost += 1;
        let tags: Vec<_> = self
            .requests
            .iter()
            .filter(|request| request.client as usize == client)
            .map(|request| request.tag)
            .collect();
        tracing::warn!(rank = self.rank, client, requests = tags.len(), "the frontend is gone");
        for tag in tags {
            self.abort_tag(tag);
        }
        if let Some(routes) = &mut self.routes {
            routes.abort_client(client);
        }
        if self.outputs.lose_client(client) {
            self.end = Some(End::FrontendLost);
        }
        self.settle_pending_calls_of(client);
        Ok(())
    }

    pub(crate) fn refuse(&mut self, client: u32, id: &str, refusal: &Refusal, now_ns: u64) -> Result<(), LiveError> {
        self.counters.refused += 1;
        tracing::warn!(rank = self.rank, request = id, "refused: {}", refusal.message);
        let error = RequestError {
            code: refusal.code.to_owned(),
            message: refusal.message.clone(),
            retryable: refusal.retryable,
        };
        self.finish_apart(client, id, FinishReason::Error, Some(&error), now_ns)
    }

    /// Ends a request that the engine does not know.
    pub(crate) fn finish_apart(
        &mut self,
        client: u32,
        id: &str,
        reason: FinishReason,
        error: Option<&RequestError>,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        self.counters.finished[reason as usize] += 1;
        Ok(self.outputs.send_finish(client, &[id], reason, error, now_ns)?)
    }

    fn add(&mut self, request: EngineCoreRequest, now_ns: u64) -> Result<(), LiveError> {
        let client = request.client_index;
        if !self.outputs.has_client(client) {
            self.counters.malformed += 1;
            tracing::warn!(rank = self.rank, request = request.request_id, client, "there is no such API server");
            return Ok(());
        }
        if self.routes.is_some() && self.shutdown == Shutdown::Running && !self.is_under_way(&request.request_id) {
            return self.route(request, now_ns);
        }
        self.take(request, None, now_ns)
    }

    fn is_under_way(&self, id: &str) -> bool {
        self.requests.find(id).is_some() || self.routes.as_ref().is_some_and(|routes| routes.is_away(id))
    }

    /// Takes a request that this engine is to compute; `ticket` where the router
    /// has decided so.
    pub(crate) fn take(
        &mut self,
        request: EngineCoreRequest,
        ticket: Option<Ticket>,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        let Some(ticket) = ticket else { return self.start(request, None, now_ns).map(|_| ()) };
        let (lane, id) = (request.client_index, request.request_id.clone());
        if !self.start(request, Some(ticket), now_ns)? {
            self.routed_ended(ticket, lane, &id, 0, true);
        }
        self.has_come(ticket);
        Ok(())
    }

    /// Starts a request. `false` if it is refused, or ends before anything knows
    /// it.
    fn start(&mut self, request: EngineCoreRequest, ticket: Option<Ticket>, now_ns: u64) -> Result<bool, LiveError> {
        let client = request.client_index;
        if self.is_under_way(&request.request_id) {
            // An answer would end the one that is under way.
            self.counters.malformed += 1;
            tracing::warn!(rank = self.rank, request = request.request_id, "a request of this name is under way");
            return Ok(false);
        }
        if self.shutdown != Shutdown::Running {
            self.finish_apart(client, &request.request_id, FinishReason::Abort, None, now_ns)?;
            return Ok(false);
        }
        if let Err(refusal) = self.check(&request) {
            self.refuse(client, &request.request_id, &refusal, now_ns)?;
            return Ok(false);
        }
        let wave = request.current_wave;
        let abort_immediately = request.abort_immediately;
        let script = match self.find_script(&request)? {
            Found::Refused(message) => {
                let refusal = Refusal { code: "replay_mismatch", message, retryable: false };
                self.refuse(client, &request.request_id, &refusal, now_ns)?;
                return Ok(false);
            }
            Found::Nothing => None,
            Found::Script(script) => Some(script),
        };
        if let Some(script) = &script
            && script.times.is_none()
            && script.end.after_tokens == 0
        {
            // There is no step with which it could end.
            self.counters.requests += 1;
            self.finish_apart(client, &request.request_id, script.end.reason, None, now_ns)?;
            return Ok(false);
        }
        let Admitted { spec, live, due } = self.admit(request, script.as_deref(), now_ns);
        let tag = live.tag;
        let played = script.and_then(|script| {
            let Script { times, end, .. } = *script;
            times.map(|times| (times, end))
        });
        let core = match played {
            Some((times, end)) => {
                self.player.start(tag, now_ns, times, end);
                None
            }
            None => match self.engine.submit(spec) {
                Ok(core) => Some(core),
                Err(reason) => {
                    self.tokens.end(tag);
                    self.refuse(client, &live.id, &Refusal::invalid(reason.to_string()), now_ns)?;
                    return Ok(false);
                }
            },
        };
        self.counters.requests += 1;
        self.counters.prompt_tokens += u64::from(live.prompt_tokens);
        if self.config.stats.log_requests {
            tracing::info!(rank = self.rank, request = &*live.id, prompt_tokens = live.prompt_tokens, "started");
        }
        self.requests.insert(LiveRequest { core, ticket, ..live });
        self.may_decide = true;
        if abort_immediately {
            self.abort_tag(tag);
            return Ok(true);
        }
        if let Some(due) = due {
            self.suffer(due, now_ns)?;
        }
        self.announce_wave(wave)?;
        Ok(true)
    }

    /// Wakes the other engines of a mixture of experts, if they sleep.
    fn announce_wave(&mut self, request_wave: u32) -> Result<(), LiveError> {
        let starts = self.line.rules().engine_starts_waves;
        let Some(waves) = self.waves.clone() else { return Ok(()) };
        if let Some(wave) = waves.request(self.index, request_wave, starts) {
            self.outputs
                .tell_coordinator(EngineCoreOutputs { start_wave: Some(wave), ..EngineCoreOutputs::default() })?;
        }
        Ok(())
    }

    /// Whether this engine can do what is asked.
    fn check(&mut self, request: &EngineCoreRequest) -> Result<(), Refusal> {
        if let Some(sentence) = &self.refuses_all {
            return Err(Refusal::invalid(sentence));
        }
        if self.pauses.rejects_new && !request.abort_immediately {
            return Err(Refusal {
                code: "engine_paused",
                message: "Generation is paused. Please retry after it resumes.".to_owned(),
                retryable: true,
            });
        }
        if self.is_at_limit() {
            return Err(Refusal {
                code: "overloaded",
                message: format!("the engine is paused and holds its limit of {} requests", self.requests.len()),
                retryable: true,
            });
        }
        if request.prompt_embeds.is_some() {
            return Err(Refusal::invalid("prompt embeddings cannot be simulated: they say nothing about tokens"));
        }
        if request.resumable {
            return Err(Refusal::invalid("streaming input (resumable requests) is not simulated"));
        }
        if request.pooling_params.is_some() {
            if self.config.tokens.embedding_dimensions.is_none() {
                return Err(Refusal::invalid(
                    "this engine generates text; start it with --embedding-dimensions to answer pooling requests",
                ));
            }
        } else if request.sampling_params.is_none() {
            return Err(Refusal::invalid("the request has neither sampling nor pooling parameters"));
        }
        if let Some(lora) = &request.lora_request {
            let int_id = u32::try_from(lora.int_id).unwrap_or(0);
            if int_id == 0 {
                return Err(Refusal::invalid(format!("the adapter's number must be from 1, but is {}", lora.int_id)));
            }
            self.adapters
                .load(lora.int_id)
                .map_err(|reason| Refusal::invalid(format!("the adapter {}: {reason}", lora.name)))?;
        }
        Ok(())
    }

    /// Aborts what is known of `ids`; nobody is told, since who aborts knows.
    fn abort(&mut self, ids: &[String]) {
        for id in ids {
            if let Some(tag) = self.requests.find(id).map(|request| request.tag) {
                self.counters.aborted += 1;
                self.abort_tag(tag);
            } else if let Some(routes) = &mut self.routes {
                // Counted where it is computed.
                routes.abort(id);
            }
        }
    }

    pub(crate) fn abort_tag(&mut self, tag: u64) {
        if self.drop_request(tag, FinishReason::Abort).is_some() {
            self.owes_stats = true;
        }
    }

    /// Forgets a request, and takes it from the engine if that has it still.
    pub(crate) fn drop_request(&mut self, tag: u64, reason: FinishReason) -> Option<LiveRequest> {
        let request = self.forget(tag, reason)?;
        if let Some(core) = request.core {
            self.engine.abort(core);
            self.may_decide = true;
        }
        Some(request)
    }

    /// Takes a request out of the tables: it has ended.
    pub(crate) fn forget(&mut self, tag: u64, reason: FinishReason) -> Option<LiveRequest> {
        if self.kv_events.is_some() {
            // While it is known what went into the names of its blocks.
            self.gather_cache_events();
        }
        let request = self.requests.remove(tag)?;
        if let Some(remote) = request.extras.as_ref().and_then(|extras| extras.remote.as_ref()) {
            self.release_remote(remote);
        }
        self.tokens.end(tag);
        self.player.remove(tag);
        self.counters.finished[reason as usize] += 1;
        if let Some(ticket) = request.ticket {
            let (id, output_tokens) = (&request.id, request.output_tokens);
            self.routed_ended(ticket, request.client, id, output_tokens, has_failed(reason));
        }
        if self.injector.is_some() {
            self.happened.push(Happened::Ended { slot: slot_of(tag) as u32 });
        }
        if self.config.stats.log_requests {
            tracing::info!(
                rank = self.rank,
                request = &*request.id,
                output_tokens = request.output_tokens,
                ?reason,
                "ended"
            );
        }
        Some(request)
    }

    /// Lets the prefill engine of a request go: its KV has been read, or never
    /// will be.
    pub(crate) fn release_remote(&mut self, remote: &RemoteKv) {
        if let Err(error) = self.transfers.tell(remote) {
            tracing::warn!(rank = self.rank, address = remote.address, "the prefill engine cannot be told: {error}");
        }
    }

    /// Whether anything is paused by a frontend.
    pub(crate) fn is_paused(&self) -> bool {
        self.engine.pause_state() != PauseState::Unpaused
    }
}

/// The core's reason on the wire, and what stopped it besides.
pub(crate) fn finish_reason(finish: CoreFinish) -> FinishReason {
    match finish {
        CoreFinish::Stop => FinishReason::Stop,
        CoreFinish::Length => FinishReason::Length,
        CoreFinish::Abort => FinishReason::Abort,
        CoreFinish::Repetition => FinishReason::Repetition,
    }
}
