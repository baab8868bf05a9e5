#![allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    reason = "generated code follows the rules of its generator"
)]

use alloc::string::String;
use alloc::vec::Vec;
use core::marker::PhantomData;

use super::Exported;
use super::shared::vcr::guest::details;
use crate::router::Columns;
use crate::{RoutePhase, RouteRequest, RouterGuest, WorkerLoads, parse_config};
use exports::vcr::guest::routing::{self as wit, Choice, Failure, Guest};

wit_bindgen::generate!({
    path: "../wit",
    world: "router",
    with: {
        "vcr:guest/types@0.1.0": crate::bindings::shared::vcr::guest::types,
        "vcr:guest/observe@0.1.0": crate::bindings::shared::vcr::guest::observe,
        "vcr:guest/details@0.1.0": crate::bindings::shared::vcr::guest::details,
    },
    pub_export_macro: true,
    default_bindings_module: "vcr_guest_sdk::bindings::routing",
});

/// The exported component of a guest.
pub struct Component<G>(PhantomData<G>);

impl<G: RouterGuest + Exported<Kept = G>> Guest for Component<G> {
    fn configure(config: String, seed: u64) -> Result<(), Failure> {
        if !G::NEEDS_DETAILS {
            details::omit();
        }
        Ok(G::slot().configure(|| G::configure(parse_config(&config)?, seed))?)
    }

    fn route(
        now_ns: u64,
        ended: Vec<wit::EndedRequest>,
        request: wit::RouteRequest,
        workers: wit::WorkerLoads,
    ) -> Result<Choice, Failure> {
        let columns = Columns {
            worker: &*workers.worker,
            running_requests: &*workers.running_requests,
            waiting_requests: &*workers.waiting_requests,
            max_running_requests: &*workers.max_running_requests,
            active_blocks: &*workers.active_blocks,
            total_blocks: &*workers.total_blocks,
            outstanding_prefill_tokens: &*workers.outstanding_prefill_tokens,
            cached_prompt_blocks: &*workers.cached_prompt_blocks,
            host_prompt_blocks: workers.host_prompt_blocks.as_deref().unwrap_or_default(),
            disk_prompt_blocks: workers.disk_prompt_blocks.as_deref().unwrap_or_default(),
            loading_requests: workers.loading_requests.as_deref().unwrap_or_default(),
            last_step_ns: workers.last_step_ns.as_deref().unwrap_or_default(),
            preemption_count: workers.preemption_count.as_deref().unwrap_or_default(),
        };
        let query = RouteRequest {
            now_ns,
            id: request.id,
            prompt_tokens: request.prompt_tokens,
            max_tokens: request.max_tokens,
            priority: request.priority,
            adapter: request.adapter,
            tenant: request.tenant,
            session: request.session,
            slo: request.slo.into(),
            block_size_tokens: request.block_size_tokens,
            phase: match request.phase {
                wit::RoutePhase::Whole => RoutePhase::Whole,
                wit::RoutePhase::Prefill => RoutePhase::Prefill,
                wit::RoutePhase::Decode => RoutePhase::Decode,
            },
            may_refuse: request.may_refuse,
            block_hashes: &request.block_hashes,
        };
        let choice = G::slot().with(|guest| {
            for ended in &ended {
                guest.ended(&crate::EndedRequest {
                    id: ended.id,
                    worker: ended.worker,
                    output_tokens: ended.output_tokens,
                    failed: ended.failed,
                    ttft_ns: ended.ttft_ns,
                });
            }
            let shown = WorkerLoads::of_columns(columns).ok_or("the host sent columns of different lengths")?;
            Ok(match guest.route(&query, shown)? {
                crate::Choice::Worker(worker) => Choice::Worker(worker),
                crate::Choice::Refuse => Choice::Refuse,
            })
        });
        Ok(choice?)
    }
}
