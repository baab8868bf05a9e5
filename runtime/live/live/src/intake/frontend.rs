//! Requests and aborts from frontends.

use vcr_core::{AnyEngine, RejectReason, RequestId, RequestSpec, ServingEngine as _};
use vcr_wire::{DecodeError, EngineCoreRequest, EngineInputs, FinishReason, Source};

use crate::admin::Admin;
use crate::config::Placement;
use crate::error::LiveError;
use crate::intake::Arrivals;
use crate::intake::admit::{Admitted, admit, announce_arrival};
use crate::intake::version::FrontendVersion;
use crate::lifecycle::End;
use crate::playback::capture::{Found, Script};
use crate::requests::LiveRequest;
use crate::routing::dispatcher::RouteHandle;
use crate::serving::{Refusal, Serving};

/// The incoming side of one engine. It changes the engine through [`Serving`], and [`Admin`] owns pauses and adapters.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    version: FrontendVersion,
    /// Requests that have not reached the queue.
    arrivals: Arrivals,
    /// Whether the limit of requests was reached at the last check.
    is_full: bool,
}

impl Intake {
    pub(crate) fn version(&self) -> &FrontendVersion {
        &self.version
    }

    pub(crate) fn detect_version(&mut self, serving: &mut Serving, inputs: &EngineInputs) {
        if !self.version.is_known() {
            self.version.detect(serving, inputs);
        }
    }

    pub(super) fn version_mut(&mut self) -> &mut FrontendVersion {
        &mut self.version
    }

    /// Whether further messages must wait at their sender because the limit of requests is reached. A paused engine
    /// refuses requests instead: no request ends until a call resumes the engine, and that call arrives on the same
    /// socket.
    pub(crate) fn holds_back(&mut self, serving: &mut Serving) -> bool {
        let is_full = self.is_at_limit(serving);
        if is_full && !self.is_full {
            serving.counters.full += 1;
            tracing::warn!(
                rank = serving.context.rank,
                requests = serving.requests.len(),
                prompt_tokens = serving.requests.prompt_tokens(),
                "the limit of requests is reached; further messages wait until some have ended"
            );
        }
        self.is_full = is_full;
        is_full && !serving.stepper.is_paused()
    }

    /// Whether the limit of requests is reached, including requests in transit to the queue.
    pub(crate) fn is_at_limit(&self, serving: &Serving) -> bool {
        serving.is_at_limit() || self.arrivals.len() >= serving.context.config.limits.max_requests
    }

    /// Counts a message that cannot be decoded, and refuses its request if the ID is known.
    pub(crate) fn handle_malformed(
        &mut self,
        serving: &mut Serving,
        source: Source,
        error: &DecodeError,
        request_id: Option<&str>,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        serving.counters.malformed += 1;
        tracing::warn!(
            rank = serving.context.rank,
            ?source,
            request = request_id,
            "a message cannot be decoded: {error}"
        );
        match (source, request_id) {
            // The frontend waits for an answer. If another request has this ID, an answer would end that request.
            (Source::Client(client), Some(id)) if !serving.has_request(id) => {
                let refusal = Refusal::invalid(format!("the request cannot be decoded: {error}"));
                serving.refuse(client as u32, id, &refusal, now_ns)
            }
            _ => Ok(()),
        }
    }

    /// Aborts the requests of a lost API server.
    pub(crate) fn handle_loss(&mut self, serving: &mut Serving, admin: &mut Admin, client: usize) {
        serving.counters.frontends_lost += 1;
        let tags: Vec<_> = serving
            .requests
            .iter()
            .filter(|request| request.client as usize == client)
            .map(|request| request.tag)
            .collect();
        tracing::warn!(rank = serving.context.rank, client, requests = tags.len(), "the frontend is gone");
        for tag in tags {
            serving.abort_tag(tag);
        }
        if let Some(routes) = &mut serving.routes {
            routes.abort_client(client);
        }
        if serving.egress.outputs.lose_client(client) {
            serving.lifecycle.end(End::FrontendLost);
        }
        self.arrivals.forget_client(client);
        admin.forget_client(client);
    }

    /// Takes a request of the frontend, which reaches the queue after the arrival delay.
    pub(crate) fn arrive(
        &mut self,
        serving: &mut Serving,
        admin: &mut Admin,
        request: Box<EngineCoreRequest>,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        let prompt_tokens = request.prompt_token_ids.as_ref().map_or(0, Vec::len);
        match serving.context.arrival_delay_ns(prompt_tokens) {
            0 => self.add(serving, admin, request, now_ns),
            delay_ns => {
                self.arrivals.delay(request, now_ns.saturating_add(delay_ns));
                Ok(())
            }
        }
    }

    /// Takes the requests that reach the queue now. During a shutdown these are all requests, which then end like
    /// others.
    pub(crate) fn add_arrived(
        &mut self,
        serving: &mut Serving,
        admin: &mut Admin,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        let until_ns = if serving.lifecycle.is_running() { now_ns } else { u64::MAX };
        while let Some(request) = self.arrivals.due(until_ns) {
            self.add(serving, admin, request, now_ns)?;
        }
        Ok(())
    }

    pub(crate) fn next_arrival_ns(&self) -> Option<u64> {
        self.arrivals.next_ns()
    }

    /// Takes a request of the frontend, or lets the router choose another engine for it.
    fn add(
        &mut self,
        serving: &mut Serving,
        admin: &mut Admin,
        request: Box<EngineCoreRequest>,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        let client = request.client_index;
        if !serving.egress.outputs.has_client(client) {
            serving.counters.malformed += 1;
            let rank = serving.context.rank;
            tracing::warn!(rank, request = request.request_id, client, "there is no such API server");
            return Ok(());
        }
        // Check before routing, so that a frontend that cannot be served is told here.
        let is_routed = serving.routes.is_some()
            && self.version.refusal().is_none()
            && serving.lifecycle.is_running()
            && !serving.has_request(&request.request_id);
        if is_routed {
            return self.route(serving, admin, request, now_ns);
        }
        self.take(serving, admin, request, None, now_ns)
    }

    /// Takes a request that this engine computes; `handle` is set if the router chose this engine.
    pub(super) fn take(
        &mut self,
        serving: &mut Serving,
        admin: &mut Admin,
        request: Box<EngineCoreRequest>,
        handle: Option<RouteHandle>,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        let Some(handle) = handle else { return self.start(serving, admin, request, None, now_ns).map(|_| ()) };
        let (channel, id) = (request.client_index, request.request_id.clone());
        if !self.start(serving, admin, request, Some(handle), now_ns)?
            && let Some(routes) = &mut serving.routes
        {
            routes.end(serving.egress.outputs.origin_of(channel), handle, &id, 0, true);
        }
        serving.counters.routed += 1;
        if let Some(routes) = &mut serving.routes {
            routes.acknowledge(handle);
        }
        // The router's next decision must include this request.
        admin.report_load(serving);
        Ok(())
    }

    /// Starts a request. Returns `false` if it is refused or ends at once.
    fn start(
        &mut self,
        serving: &mut Serving,
        admin: &mut Admin,
        request: Box<EngineCoreRequest>,
        handle: Option<RouteHandle>,
        now_ns: u64,
    ) -> Result<bool, LiveError> {
        let client = request.client_index;
        if serving.requests.find(&request.request_id).is_some_and(LiveRequest::is_resumable) {
            return serving.continue_session(request, now_ns).map(|()| true);
        }
        if serving.has_request(&request.request_id) {
            // An answer would end the request in progress.
            serving.counters.malformed += 1;
            tracing::warn!(
                rank = serving.context.rank,
                request = request.request_id,
                "a request of this name is under way"
            );
            return Ok(false);
        }
        if !serving.lifecycle.is_running() {
            serving.finish_unknown(client, &request.request_id, FinishReason::Abort, None, now_ns)?;
            return Ok(false);
        }
        if let Err(refusal) = self.check(serving, admin, &request) {
            serving.refuse(client, &request.request_id, &refusal, now_ns)?;
            return Ok(false);
        }
        let wave = request.current_wave;
        let abort_immediately = request.abort_immediately;
        let script = match find_script(serving, &request)? {
            Found::Refused { reason: message, ends_run } => {
                if ends_run {
                    serving.fail_process();
                }
                let refusal = Refusal { code: "playback_mismatch", message, retryable: false };
                serving.refuse(client, &request.request_id, &refusal, now_ns)?;
                return Ok(false);
            }
            Found::Nothing => None,
            Found::Script(script) => Some(script),
        };
        if let Some(script) = &script
            && script.times.is_none()
            && script.end.after_tokens == 0
        {
            // No step will end this request.
            serving.counters.requests += 1;
            serving.finish_unknown(client, &request.request_id, script.end.reason, None, now_ns)?;
            return Ok(false);
        }
        let is_played = script.as_ref().is_some_and(|script| script.times.is_some());
        if !is_played {
            // Check before the token source and the fault rules see the request, so that a rejected request uses up
            // neither outputs nor faults.
            let prompt_tokens = request.prompt_token_ids.as_ref().map_or(0, Vec::len) as u32;
            let is_pooling = request.pooling_params.is_some();
            let checked = match serving.stepper.engine() {
                AnyEngine::Vllm(engine) => engine.check_prompt(prompt_tokens, u32::from(!is_pooling)),
                engine => {
                    let asked = request.sampling_params.as_ref().and_then(|params| params.max_tokens);
                    engine.check(prompt_tokens, asked.unwrap_or(u32::MAX))
                }
            };
            if let Err(reason) = checked {
                serving.refuse(client, &request.request_id, &Refusal::invalid(reason.to_string()), now_ns)?;
                return Ok(false);
            }
        }
        let Admitted { spec, mut live, arrival } = admit(serving, request, script.as_deref(), now_ns);
        let tag = live.tag;
        let played = script.and_then(|script| {
            let Script { times, end, .. } = *script;
            times.map(|times| (times, end))
        });
        let core = match played {
            Some((times, end)) => {
                serving.player.start(tag, now_ns, times, end);
                None
            }
            None => match submit(serving, spec, &live.id, now_ns) {
                Ok(core) => Some(core),
                Err(reason) => {
                    serving.tokens.end(tag);
                    serving.refuse(client, &live.id, &Refusal::invalid(reason.to_string()), now_ns)?;
                    return Ok(false);
                }
            },
        };
        let due = announce_arrival(serving, &mut live, arrival, now_ns);
        serving.counters.requests += 1;
        serving.counters.prompt_tokens += u64::from(live.prompt_tokens);
        if serving.context.config.stats.log_requests {
            tracing::info!(
                rank = serving.context.rank,
                request = &*live.id,
                prompt_tokens = live.prompt_tokens,
                "started"
            );
        }
        if let Some(placed) = &serving.context.config.placements {
            placed(&live.id, Placement::Taken(serving.context.rank));
        }
        if let Some(room) = live.extras.as_ref().and_then(|extras| extras.room.as_ref()) {
            serving.transfers.open_room(room);
        }
        serving.requests.insert(LiveRequest { core, handle, ..live });
        if abort_immediately {
            serving.abort_tag(tag);
            return Ok(true);
        }
        if let Some(due) = due {
            serving.apply_fault(due, now_ns)?;
        }
        serving.egress.announce_wave(wave)?;
        Ok(true)
    }

    fn check(&self, serving: &Serving, admin: &mut Admin, request: &EngineCoreRequest) -> Result<(), Refusal> {
        if let Some(sentence) = self.version.refusal() {
            return Err(Refusal::invalid(sentence));
        }
        if admin.rejects_new() && !request.abort_immediately {
            return Err(Refusal {
                code: "engine_paused",
                message: "Generation is paused. Please retry after it resumes.".to_owned(),
                retryable: true,
            });
        }
        if serving.is_at_limit() {
            return Err(Refusal {
                code: "overloaded",
                message: format!("the engine is paused and holds its limit of {} requests", serving.requests.len()),
                retryable: true,
            });
        }
        if request.prompt_embeds.is_some() {
            return Err(Refusal::invalid("prompt embeddings cannot be simulated: they have no tokens"));
        }
        if request.resumable && (serving.routes.is_some() || serving.context.config.playback.is_some()) {
            return Err(Refusal::invalid(
                "streaming input (resumable requests) is not simulated with a router or a capture that is played back",
            ));
        }
        if let Some(params) = &request.pooling_params {
            let Some(longest) = serving.context.config.tokens.embedding_dimensions else {
                return Err(Refusal::invalid(
                    "this engine generates text; start it with --embedding-dimensions to answer pooling requests",
                ));
            };
            if let Some(asked) = params.dimensions.filter(|asked| !(1..=longest).contains(asked)) {
                return Err(Refusal::invalid(format!("invalid dimensions {asked}: expected 1 to {longest}")));
            }
        } else if request.sampling_params.is_none() {
            return Err(Refusal::invalid("the request has neither sampling nor pooling parameters"));
        }
        if let Some(lora) = &request.lora_request {
            let int_id = u32::try_from(lora.int_id).unwrap_or(0);
            if int_id == 0 {
                return Err(Refusal::invalid(format!(
                    "invalid number {} of an adapter: expected 1 to 4294967295",
                    lora.int_id
                )));
            }
            admin
                .load_adapter(lora.int_id)
                .map_err(|reason| Refusal::invalid(format!("the adapter {}: {reason}", lora.name)))?;
        }
        Ok(())
    }

    /// Aborts the requests with these `ids`, without a message, because their frontend knows.
    pub(crate) fn abort(&mut self, serving: &mut Serving, ids: &[String]) {
        for id in ids {
            if self.arrivals.abort(id) {
                serving.counters.aborted += 1;
            } else if let Some(tag) = serving.requests.find(id).map(|request| request.tag) {
                serving.counters.aborted += 1;
                serving.abort_tag(tag);
            } else if serving.abort_late(id) {
                serving.counters.aborted += 1;
            } else if let Some(routes) = &mut serving.routes {
                // The engine that computes the request counts the abort.
                routes.abort(id);
            }
        }
    }
}

/// Submits a request to the core. A request with structured outputs waits there for its grammar.
fn submit(serving: &mut Serving, spec: RequestSpec, name: &str, now_ns: u64) -> Result<RequestId, RejectReason> {
    let (tag, structured) = (spec.tag, spec.structured);
    let core = serving.stepper.submit(spec, name)?;
    if structured {
        let due_ns = now_ns.saturating_add(serving.context.grammar_compile_ns());
        serving.stepper.expect_grammar(tag, due_ns);
    }
    Ok(core)
}

/// The recorded answer of a request, if a capture is played back.
fn find_script(serving: &mut Serving, request: &EngineCoreRequest) -> Result<Found, LiveError> {
    let Some(settings) = &serving.context.config.playback else { return Ok(Found::Nothing) };
    let time_scale = serving.stepper.time_scale();
    serving.captures.find(settings, request, time_scale, serving.context.rank, &mut serving.counters)
}
