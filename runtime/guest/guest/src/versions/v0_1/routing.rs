use vcr_core::route::{EndedRequest, RoutePhase, RouteRequest, WorkerLoad};

use crate::error::CallFault;
use crate::latest::{Chosen, Maker, RouteCall, RouterInstance, Setup};
use crate::limits::Budget;
use crate::sandbox::HostState;
use crate::versions::instance::{Instance, Module, impl_bindings};
use crate::versions::v0_1::generated;

pub(super) use bindings::Router as Bindings;
use bindings::exports::vcr::guest::routing as wit;

generated!("router", "vcr:guest/details@0.1.0": details);

impl_bindings!(Bindings, bindings::RouterPre<HostState>, Columns, vcr_guest_routing);

/// Buffers for the lists of a call.
#[derive(Default)]
pub(crate) struct Columns {
    ended: Vec<wit::EndedRequest>,
    worker: Vec<u32>,
    running_requests: Vec<u32>,
    waiting_requests: Vec<u32>,
    max_running_requests: Vec<u32>,
    active_blocks: Vec<u32>,
    total_blocks: Vec<u32>,
    outstanding_prefill_tokens: Vec<u64>,
    cached_prompt_blocks: Vec<u32>,
    /// Empty if all entries are 0, like the columns after it.
    host_prompt_blocks: Vec<u32>,
    disk_prompt_blocks: Vec<u32>,
    loading_requests: Vec<u32>,
    last_step_ns: Vec<u64>,
    preemption_count: Vec<u64>,
}

impl Columns {
    fn fill(&mut self, ended: &[EndedRequest], workers: &[WorkerLoad], needs_details: bool) {
        self.ended.clear();
        self.ended.extend(ended.iter().map(|ended| wit::EndedRequest {
            id: ended.id,
            worker: ended.worker,
            output_tokens: ended.output_tokens,
            failed: ended.failed,
            ttft_ns: ended.ttft_ns,
        }));
        refill(&mut self.worker, workers, |load| load.worker);
        refill(&mut self.running_requests, workers, |load| load.running_requests);
        refill(&mut self.waiting_requests, workers, |load| load.waiting_requests);
        refill(&mut self.max_running_requests, workers, |load| load.max_running_requests);
        refill(&mut self.active_blocks, workers, |load| load.active_blocks);
        refill(&mut self.total_blocks, workers, |load| load.total_blocks);
        refill(&mut self.outstanding_prefill_tokens, workers, |load| load.outstanding_prefill_tokens);
        refill(&mut self.cached_prompt_blocks, workers, |load| load.cached_prompt_blocks);
        if needs_details {
            refill_unless_zero(&mut self.host_prompt_blocks, workers, |load| load.host_prompt_blocks);
            refill_unless_zero(&mut self.disk_prompt_blocks, workers, |load| load.disk_prompt_blocks);
            refill_unless_zero(&mut self.loading_requests, workers, |load| load.loading_requests);
            refill_unless_zero(&mut self.last_step_ns, workers, |load| load.last_step_ns);
            refill_unless_zero(&mut self.preemption_count, workers, |load| load.preemption_count);
        }
    }

    fn workers(&self) -> wit::WorkerLoads<'_> {
        wit::WorkerLoads {
            worker: &self.worker,
            running_requests: &self.running_requests,
            waiting_requests: &self.waiting_requests,
            max_running_requests: &self.max_running_requests,
            active_blocks: &self.active_blocks,
            total_blocks: &self.total_blocks,
            outstanding_prefill_tokens: &self.outstanding_prefill_tokens,
            cached_prompt_blocks: &self.cached_prompt_blocks,
            host_prompt_blocks: unless_empty(&self.host_prompt_blocks),
            disk_prompt_blocks: unless_empty(&self.disk_prompt_blocks),
            loading_requests: unless_empty(&self.loading_requests),
            last_step_ns: unless_empty(&self.last_step_ns),
            preemption_count: unless_empty(&self.preemption_count),
        }
    }
}

fn refill<T, R>(column: &mut Vec<T>, rows: &[R], field: impl Fn(&R) -> T) {
    column.clear();
    column.extend(rows.iter().map(field));
}

/// Refills a column, or empties it if all entries are 0.
fn refill_unless_zero<T: Default + PartialEq, R>(column: &mut Vec<T>, rows: &[R], field: impl Fn(&R) -> T) {
    column.clear();
    if rows.iter().any(|row| field(row) != T::default()) {
        column.extend(rows.iter().map(field));
    }
}

/// Omits an empty column, because each list costs a call of the guest's allocator.
fn unless_empty<T>(column: &[T]) -> Option<&[T]> {
    (!column.is_empty()).then_some(column)
}

impl Maker<dyn RouterInstance> for Module<Bindings> {
    fn configure(&self, setup: Setup<'_>) -> Result<Box<dyn RouterInstance>, CallFault> {
        Ok(Box::new(self.configured(setup)?))
    }
}

impl RouterInstance for Instance<Bindings> {
    fn needs_details(&self) -> bool {
        !self.host().omits_details
    }

    fn route(&mut self, call: RouteCall<'_>, budget: Budget) -> Result<Chosen, CallFault> {
        let RouteCall { ended, query, workers } = call;
        let needs_details = self.needs_details();
        self.columns().fill(ended, workers, needs_details);
        let answer = self.at(query.now_ns).call(budget, |guest, store, columns| {
            let (now_ns, workers) = (query.now_ns, columns.workers());
            guest.vcr_guest_routing().call_route(store, now_ns, &columns.ended, wit_request(query), workers)
        })?;
        Ok(match answer {
            wit::Choice::Worker(worker) => Chosen::Worker(worker),
            wit::Choice::Refuse => Chosen::Refused,
        })
    }
}

fn wit_request<'a>(query: &RouteRequest<'a>) -> wit::RouteRequest<'a> {
    wit::RouteRequest {
        id: query.id,
        prompt_tokens: query.prompt_tokens,
        max_tokens: query.max_tokens,
        priority: query.priority,
        adapter: query.adapter,
        tenant: query.tenant,
        session: query.session,
        slo: query.slo.into(),
        block_size_tokens: query.block_size_tokens,
        phase: match query.phase {
            RoutePhase::Whole => wit::RoutePhase::Whole,
            RoutePhase::Prefill => wit::RoutePhase::Prefill,
            RoutePhase::Decode => wit::RoutePhase::Decode,
        },
        may_refuse: query.may_refuse,
        block_hashes: query.block_hashes,
    }
}
