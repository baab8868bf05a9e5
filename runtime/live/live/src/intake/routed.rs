//! Requests that the router moves from this engine to others, or from others to this engine.

use vcr_core::Prompt;
use vcr_core::hash::HashedBlocks;
use vcr_core::policy::Slo;
use vcr_core::route::{RoutePhase, RouteRequest};
use vcr_wire::{EngineCoreRequest, FinishReason, RequestError};
use xxhash_rust::xxh3::xxh3_64;

use crate::admin::Admin;
use crate::error::LiveError;
use crate::intake::admit::{priority_of, salt_of, tenant_of};
use crate::intake::frontend::Intake;
use crate::kv_transfer::params::KvParams;
use crate::kv_transfer::transfers::Transfers;
use crate::requests::{BlockKeys, LiveRequest};
use crate::routing::dispatcher::{Decision, PeerMessage, RoutedRequest};
use crate::routing::routes::{Delegated, Routes};
use crate::serving::{Refusal, Serving};

impl Intake {
    /// Lets the router choose the engine of a request of this engine's frontend.
    pub(super) fn route(
        &mut self,
        serving: &mut Serving,
        admin: &mut Admin,
        request: Box<EngineCoreRequest>,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        let index = serving.context.index;
        let Some(routes) = &mut serving.routes else { return self.take(serving, admin, request, None, now_ns) };
        let blocks = serving.context.config.engine.hashed_blocks();
        let (engine, handle) = match decide(routes, &request, blocks, &serving.transfers)? {
            None => return self.take(serving, admin, request, None, now_ns),
            Some(Decision::To(engine, handle)) if engine == index => {
                return self.take(serving, admin, request, Some(handle), now_ns);
            }
            Some(Decision::To(engine, handle)) => (engine, handle),
            Some(Decision::Shed) => {
                serving.counters.shed += 1;
                let message = "all engines have too much to do; the router refuses the request".to_owned();
                let refusal = Refusal { code: "overloaded", message, retryable: true };
                return serving.refuse(request.client_index, &request.request_id, &refusal, now_ns);
            }
        };
        let routed = Box::new(RoutedRequest {
            handle,
            origin: index,
            version: serving.egress.version(),
            sends_weight_version: serving.egress.outputs.sends_weight_version(),
            request,
        });
        match routes.delegate(engine, routed) {
            Ok(()) => {
                serving.counters.routed_away += 1;
                Ok(())
            }
            Err(routed) => self.take(serving, admin, routed.request, None, now_ns),
        }
    }

    /// Handles messages of other engines, and forwards their outputs to the frontend.
    pub(crate) fn handle_peer_messages(
        &mut self,
        serving: &mut Serving,
        admin: &mut Admin,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        let Some(routes) = &serving.routes else { return Ok(()) };
        for message in routes.receive() {
            serving.snapshot.mark_stale();
            match message {
                PeerMessage::Request(routed) => self.take_routed(serving, admin, *routed, now_ns)?,
                PeerMessage::Abort(handle, id) => {
                    let is_it = |request: &&LiveRequest| request.handle == Some(handle);
                    if let Some(tag) = serving.requests.find(&id).filter(is_it).map(|request| request.tag) {
                        serving.counters.aborted += 1;
                        serving.abort_tag(tag);
                    }
                }
                PeerMessage::Outputs { client, frame } => {
                    let since_start_ns = serving.context.since_start_ns(now_ns);
                    serving.egress.outputs.pass_on(client, &frame, &mut serving.faults, since_start_ns)?;
                }
                PeerMessage::Ended(handle, id) => {
                    if let Some(routes) = &mut serving.routes {
                        routes.take_back(handle, &id);
                    }
                }
                PeerMessage::Lost(handle, id) => {
                    let lost = serving.routes.as_mut().and_then(|routes| routes.take_back(handle, &id));
                    if let Some(delegated) = lost {
                        finish_lost(serving, delegated, &id, now_ns)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn take_routed(
        &mut self,
        serving: &mut Serving,
        admin: &mut Admin,
        mut routed: RoutedRequest,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        self.version_mut().adopt(serving, routed.version, routed.sends_weight_version);
        let Some(channel) = serving.egress.outputs.channel(routed.origin, routed.request.client_index) else {
            if let Some(routes) = &serving.routes {
                routes.reject(routed);
            }
            return Ok(());
        };
        routed.request.client_index = channel;
        self.take(serving, admin, routed.request, Some(routed.handle), now_ns)
    }
}

fn finish_lost(serving: &mut Serving, delegated: Delegated, id: &str, now_ns: u64) -> Result<(), LiveError> {
    let engine = usize::from(serving.context.config.identity.first_rank) + delegated.engine;
    let message = format!("engine {engine}, which computed the request, was lost");
    tracing::warn!(rank = serving.context.rank, request = id, "lost: {message}");
    let error = RequestError { code: "engine_lost".to_owned(), message, retryable: true };
    serving.finish_unknown(delegated.client, id, FinishReason::Error, Some(&error), now_ns)
}

fn decide(
    routes: &Routes,
    request: &EngineCoreRequest,
    blocks: HashedBlocks,
    transfers: &Transfers,
) -> Result<Option<Decision>, LiveError> {
    let params = request.sampling_params.as_ref();
    let keys = BlockKeys::of(request);
    let mut prompt = Prompt::new(blocks, salt_of(&keys));
    prompt.push_marked_tokens(request.prompt_token_ids.as_deref().unwrap_or_default(), &keys.marks());
    let kv_params = params.and_then(|params| params.kv_transfer_params());
    let phase =
        match kv_params.map(|params| KvParams::of(params, transfers.allowed_peers(), transfers.meeting_settings())) {
            Some(KvParams::RemoteDecode(_)) => RoutePhase::Prefill,
            Some(KvParams::MeetPrefill(_) | KvParams::RemotePrefill(_)) => RoutePhase::Decode,
            Some(KvParams::Local | KvParams::Incomplete(_) | KvParams::Refused(_)) | None => RoutePhase::Whole,
        };
    let query = RouteRequest {
        // The dispatcher sets the time and the ID.
        now_ns: 0,
        id: 0,
        prompt_tokens: prompt.len_tokens(),
        max_tokens: params.map_or(0, |params| params.max_tokens.unwrap_or(u32::MAX)),
        priority: priority_of(request),
        adapter: request.lora_request.as_ref().map(|lora| lora.int_id as u32),
        tenant: tenant_of(&keys),
        session: keys.session_id.as_ref().map_or(0, |session| xxh3_64(session.as_bytes())),
        slo: Slo::default(),
        block_size_tokens: blocks.size_tokens,
        phase,
        may_refuse: phase != RoutePhase::Decode,
        block_hashes: prompt.block_hashes(),
    };
    Ok(routes.decide(query)?)
}
