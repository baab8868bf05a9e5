//! Requests that the router gives to another engine than the one they were sent
//! to, from both ends.
//!
//! The engine that a request was sent to is its *home*: to the frontend it is
//! there until it ends. Home knows the name of the request and who computes it,
//! and passes on what that one sends. There, it is a request like any other, but
//! for the lane that its outputs take (`outputs.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use vcr_core::Prompt;
use vcr_core::route::{RoutePhase, RouteQuery};
use vcr_wire::{EngineCoreRequest, FinishReason, RequestError};
use xxhash_rust::xxh3::xxh3_64;

use crate::admit::{priority_of, salt_of, tenant_of};
use crate::error::LiveError;
use crate::incoming::Refusal;
use crate::requests::{BlockKeys, LiveRequest};
use crate::server::{Server, Shutdown};
use crate::switchboard::{Mail, RoutedRequest, Switchboard, Ticket, Way};
use crate::transfer::KvParams;

/// One engine's part in routing.
pub(crate) struct Routes {
    board: Arc<Switchboard>,
    /// Requests that others compute for this one, by name.
    away: BTreeMap<Box<str>, Away>,
    /// Requests that this one has taken since it told how it stands.
    taken: Vec<Ticket>,
    /// Requests of others that have ended, and whose last output is being sent.
    over: Vec<(usize, Ticket, Box<str>)>,
}

/// A request that another engine computes.
#[derive(Clone, Copy, Debug)]
struct Away {
    ticket: Ticket,
    engine: usize,
    client: u32,
}

impl Routes {
    /// For an engine that begins to serve.
    pub(crate) fn new(board: Arc<Switchboard>, index: usize) -> Self {
        board.open(index);
        Self { board, away: BTreeMap::new(), taken: Vec::new(), over: Vec::new() }
    }

    /// Whether others compute anything for this engine.
    pub(crate) fn has_away(&self) -> bool {
        !self.away.is_empty()
    }

    /// Whether a request of this name is away.
    pub(crate) fn is_away(&self, id: &str) -> bool {
        self.away.contains_key(id)
    }

    /// Lets whoever computes a request for this engine stop. `false` if nobody
    /// does.
    pub(crate) fn abort(&mut self, id: &str) -> bool {
        let Some((id, away)) = self.away.remove_entry(id) else { return false };
        // An engine that is gone has stopped.
        _ = self.board.post(away.engine, Mail::Abort(away.ticket, id));
        true
    }

    /// The same for all requests of an API server.
    pub(crate) fn abort_client(&mut self, client: usize) {
        let of_client = |away: &Away| away.client as usize == client;
        let ids: Vec<_> = self.away.iter().filter(|(_, away)| of_client(away)).map(|(id, _)| id.clone()).collect();
        for id in ids {
            self.abort(&id);
        }
    }

    /// Forgets a request that was away, if it is still that one.
    fn come_home(&mut self, ticket: Ticket, id: &str) -> Option<Away> {
        let is_same = self.away.get(id).is_some_and(|away| away.ticket == ticket);
        if is_same { self.away.remove(id) } else { None }
    }

    /// Tells the home of a request that it is lost here; a home that is gone
    /// need not know.
    fn lose(&self, home: usize, ticket: Ticket, id: Box<str>) {
        _ = self.board.post(home, Mail::Lost(ticket, id));
    }
}

impl Server {
    /// Lets the router decide who computes a request of this engine's frontend.
    pub(crate) fn route(&mut self, request: EngineCoreRequest, now_ns: u64) -> Result<(), LiveError> {
        // Who cannot be served at all is told so here.
        let Some(routes) = self.routes.as_mut().filter(|_| self.refuses_all.is_none()) else {
            return self.take(request, None, now_ns);
        };
        let way = ask(&routes.board, &request, self.engine.config().block_size)?;
        let (engine, ticket) = match way {
            None => return self.take(request, None, now_ns),
            Some(Way::To(engine, ticket)) if engine == self.index => {
                return self.take(request, Some(ticket), now_ns);
            }
            Some(Way::To(engine, ticket)) => (engine, ticket),
            Some(Way::Shed) => {
                self.counters.shed += 1;
                let message = "all engines have too much to do; the router refuses the request".to_owned();
                let refusal = Refusal { code: "overloaded", message, retryable: true };
                return self.refuse(request.client_index, &request.request_id, &refusal, now_ns);
            }
        };
        let (id, client) = (request.request_id.clone().into_boxed_str(), request.client_index);
        let routed = Box::new(RoutedRequest {
            ticket,
            home: self.index,
            line: self.line,
            tells_weight_version: self.outputs.tells_weight_version(),
            request,
        });
        match routes.board.post(engine, Mail::Request(routed)) {
            Ok(()) => {
                self.counters.routed_away += 1;
                routes.away.insert(id, Away { ticket, engine, client });
                Ok(())
            }
            // It has just gone.
            Err(mail) => {
                routes.board.not_coming(engine, ticket);
                let Mail::Request(routed) = mail else { unreachable!("it is the mail that was sent") };
                self.take(routed.request, None, now_ns)
            }
        }
    }

    /// A request that was routed to this engine has been taken, or refused.
    pub(crate) fn has_come(&mut self, ticket: Ticket) {
        self.counters.routed += 1;
        if let Some(routes) = &mut self.routes {
            routes.taken.push(ticket);
        }
        // Whoever routes next must see it.
        self.tell_switchboard();
    }

    /// A request has ended that was routed to this engine.
    pub(crate) fn routed_ended(&mut self, ticket: Ticket, lane: u32, id: &str, output_tokens: u32, failed: bool) {
        let Some(routes) = &mut self.routes else { return };
        routes.board.ended(self.index, ticket.number, output_tokens, failed);
        let home = self.outputs.home_of(lane);
        if home != self.index {
            routes.over.push((home, ticket, id.into()));
        }
    }

    /// Does what other engines want, and passes on what they computed.
    pub(crate) fn read_mail(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let Some(routes) = &mut self.routes else { return Ok(()) };
        for mail in routes.board.mail(self.index) {
            self.is_shown = false;
            match mail {
                Mail::Request(routed) => self.take_routed(*routed, now_ns)?,
                Mail::Abort(ticket, id) => {
                    let is_it = |request: &&LiveRequest| request.ticket == Some(ticket);
                    if let Some(tag) = self.requests.find(&id).filter(is_it).map(|request| request.tag) {
                        self.counters.aborted += 1;
                        self.abort_tag(tag);
                    }
                }
                Mail::Outputs { client, frame } => {
                    let since_start_ns = self.since_start_ns(now_ns);
                    self.outputs.pass_on(client, &frame, &mut self.faults, since_start_ns)?;
                }
                Mail::Ended(ticket, id) => {
                    if let Some(routes) = &mut self.routes {
                        routes.come_home(ticket, &id);
                    }
                }
                Mail::Lost(ticket, id) => {
                    let away = self.routes.as_mut().and_then(|routes| routes.come_home(ticket, &id));
                    if let Some(away) = away {
                        self.end_lost(away, &id, now_ns)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Tells the frontend that whoever computed a request is gone.
    fn end_lost(&mut self, away: Away, id: &str, now_ns: u64) -> Result<(), LiveError> {
        let rank = usize::from(self.config.identity.first_rank) + away.engine;
        let message = format!("engine {rank}, which computed the request, is gone");
        tracing::warn!(rank = self.rank, request = id, "lost: {message}");
        let error = RequestError { code: "engine_lost".to_owned(), message, retryable: true };
        self.finish_apart(away.client, id, FinishReason::Error, Some(&error), now_ns)
    }

    fn take_routed(&mut self, routed: RoutedRequest, now_ns: u64) -> Result<(), LiveError> {
        let RoutedRequest { ticket, home, line, tells_weight_version, mut request } = routed;
        if !self.line_is_known {
            // All of them have the same frontend.
            self.line_is_known = true;
            if !tells_weight_version {
                self.outputs.leave_weight_version_out();
            }
            self.speak_as(line);
        }
        let Some(lane) = self.outputs.lane(home, request.client_index) else {
            let Some(routes) = &mut self.routes else { return Ok(()) };
            routes.board.not_coming(self.index, ticket);
            routes.lose(home, ticket, request.request_id.into_boxed_str());
            return Ok(());
        };
        request.client_index = lane;
        self.take(request, Some(ticket), now_ns)
    }

    /// Whether the router may give it requests.
    fn takes_requests(&self) -> bool {
        self.shutdown == Shutdown::Running
            && !self.is_paused()
            && !self.pauses.rejects_new
            && !self.pauses.is_asleep()
            && !self.is_at_limit()
    }

    /// Lets the router see how this engine stands.
    pub(crate) fn tell_switchboard(&mut self) {
        if self.routes.is_none() {
            return;
        }
        self.gather_cache_events();
        let takes_requests = self.takes_requests();
        if let Some(routes) = &mut self.routes {
            routes.board.tell(self.index, &self.engine, takes_requests, &routes.taken);
            routes.taken.clear();
        }
    }

    /// Takes what has happened in the cache since the last call, for the router
    /// and for subscribers.
    pub(crate) fn gather_cache_events(&mut self) {
        let Some(log) = self.engine.pool().events().filter(|log| !log.is_empty()) else { return };
        if let Some(routes) = &self.routes {
            routes.board.follow(self.index, log);
        }
        match &mut self.kv_events {
            Some(events) => events.gather(&mut self.engine, &self.requests),
            None => self.engine.pool_mut().clear_events(),
        }
    }

    /// Tells the homes of requests that these have ended, after their outputs.
    pub(crate) fn send_home(&mut self) {
        let Some(routes) = &mut self.routes else { return };
        for (home, ticket, id) in routes.over.drain(..) {
            // A home that is gone has nobody to tell.
            _ = routes.board.post(home, Mail::Ended(ticket, id));
        }
    }

    /// Leaves the other engines: what they computed for this one is of no use
    /// any more, and what this one computed for them is lost.
    pub(crate) fn leave_switchboard(&mut self) {
        self.send_home();
        let Some(mut routes) = self.routes.take() else { return };
        for mail in routes.board.close(self.index) {
            if let Mail::Request(routed) = mail {
                routes.board.not_coming(self.index, routed.ticket);
                routes.lose(routed.home, routed.ticket, routed.request.request_id.into_boxed_str());
            }
        }
        for request in self.requests.iter() {
            let Some(ticket) = request.ticket else { continue };
            routes.board.ended(self.index, ticket.number, request.output_tokens, true);
            let home = self.outputs.home_of(request.client);
            if home != self.index {
                routes.lose(home, ticket, request.id.clone());
            }
        }
        while let Some((id, away)) = routes.away.pop_first() {
            _ = routes.board.post(away.engine, Mail::Abort(away.ticket, id));
        }
    }
}

/// Asks the router where a request should go.
fn ask(board: &Switchboard, request: &EngineCoreRequest, block_size_tokens: u32) -> Result<Option<Way>, LiveError> {
    let params = request.sampling_params.as_ref();
    let keys = BlockKeys::of(request);
    let images = request.mm_features.iter().flatten();
    let mut prompt = Prompt::new(block_size_tokens, salt_of(&keys, images.map(|image| image.identifier.as_str())));
    prompt.push_tokens(request.prompt_token_ids.iter().flatten().copied());
    let phase = match params.and_then(|params| params.kv_transfer_params()).map(KvParams::of) {
        Some(KvParams::DecodeElsewhere) => RoutePhase::Prefill,
        Some(KvParams::PrefillElsewhere(_)) => RoutePhase::Decode,
        Some(KvParams::Local | KvParams::Incomplete(_)) | None => RoutePhase::Whole,
    };
    let query = RouteQuery {
        // Both are the switchboard's.
        now_ns: 0,
        request: 0,
        prompt_tokens: prompt.len_tokens(),
        max_tokens: params.map_or(0, |params| params.max_tokens.unwrap_or(u32::MAX)),
        priority: priority_of(request),
        lora: request.lora_request.as_ref().map(|lora| lora.int_id as u32),
        tenant: tenant_of(&keys),
        session: keys.session_id.as_ref().map_or(0, |session| xxh3_64(session.as_bytes())),
        block_size_tokens,
        phase,
        may_shed: phase != RoutePhase::Decode,
        blocks: prompt.block_hashes(),
    };
    Ok(board.route(query)?)
}

/// Whether a request that ends so has not been answered to its end.
pub(crate) fn has_failed(reason: FinishReason) -> bool {
    matches!(reason, FinishReason::Abort | FinishReason::Error)
}
