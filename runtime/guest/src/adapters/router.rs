//! A router of the engine core that asks a guest.

use vcr_core::route::{Choice, EndedRequest, RouteError, RoutePhase, RouteQuery, Router, WorkerLoad};

use crate::adapters::running::Running;
use crate::error::CallFault;
use crate::latest::{RouteCall, RouterInstance};
use crate::limits::Limits;

/// Words of an ended request, of a request and of a worker in the flat lists of
/// a call.
const ENDED_WORDS: usize = 4;
const REQUEST_WORDS: usize = 10;
const WORKER_WORDS: usize = 8;

/// The word of a request without an adapter.
const NO_LORA: u64 = u64::MAX;

/// The answer that refuses a request.
const SHED: u32 = u32::MAX;

/// Engines that an error lists at most.
const LISTED_MAX: usize = 16;

/// One router in one instance of a guest.
pub(crate) struct GuestRouter {
    limits: Limits,
    running: Running<dyn RouterInstance>,
    /// The flat lists of a call, kept so that routing allocates nothing here.
    /// Requests that end are gathered in it until the next call.
    call: RouteCall,
}

impl GuestRouter {
    pub(crate) fn new(name: String, limits: Limits, instance: Box<dyn RouterInstance>) -> Self {
        Self { limits, running: Running::new(name, instance), call: RouteCall::default() }
    }
}

impl Router for GuestRouter {
    fn route(&mut self, query: &RouteQuery<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        let Self { limits, running, call } = self;
        let result = running.call("route", |instance| {
            call.fill(query, workers);
            let items = 1 + workers.len() + call.ended.len() / ENDED_WORDS;
            let answer = instance.route(call, limits.budget(items, 0))?;
            accept(answer, query, workers)
        });
        call.ended.clear();
        result.map_err(|failure| RouteError { router: failure.guest, reason: failure.reason })
    }

    fn needs_overlap(&self) -> bool {
        true
    }

    fn needs_ended(&self) -> bool {
        true
    }

    fn ended(&mut self, request: &EndedRequest) {
        let EndedRequest { request, worker, output_tokens, failed } = *request;
        let words: [u64; ENDED_WORDS] = [request, worker.into(), output_tokens.into(), failed.into()];
        self.call.ended.extend(words);
    }
}

/// Reads the answer of one call.
fn accept(answer: u32, query: &RouteQuery<'_>, workers: &[WorkerLoad]) -> Result<Choice, CallFault> {
    let request = query.request;
    if answer == SHED {
        return if query.may_shed { Ok(Choice::Shed) } else { Err(CallFault::MustBeServed { request }) };
    }
    match workers.binary_search_by_key(&answer, |load| load.worker) {
        Ok(position) => Ok(Choice::Worker(position)),
        Err(_) => Err(CallFault::NoSuchWorker { chosen: answer, request, up: listed(workers) }),
    }
}

/// The indices of some engines, in words.
#[cold]
fn listed(workers: &[WorkerLoad]) -> String {
    let names: Vec<String> = workers.iter().take(LISTED_MAX).map(|load| load.worker.to_string()).collect();
    match workers.len() - names.len() {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

impl RouteCall {
    /// Lays out a request and the engines for it; what has ended stays.
    fn fill(&mut self, query: &RouteQuery<'_>, workers: &[WorkerLoad]) {
        let phase = match query.phase {
            RoutePhase::Whole => 0,
            RoutePhase::Prefill => 1,
            RoutePhase::Decode => 2,
        };
        let request: [u64; REQUEST_WORDS] = [
            query.request,
            query.prompt_tokens.into(),
            query.max_tokens.into(),
            i64::from(query.priority).cast_unsigned(),
            query.lora.map_or(NO_LORA, u64::from),
            query.tenant,
            query.session,
            query.block_size_tokens.into(),
            phase,
            query.may_shed.into(),
        ];
        self.now_ns = query.now_ns;
        self.request.clear();
        self.request.extend(request);
        self.blocks.clear();
        self.blocks.extend_from_slice(query.blocks);
        self.workers.clear();
        for load in workers {
            let words: [u64; WORKER_WORDS] = [
                load.worker.into(),
                load.running_requests.into(),
                load.waiting_requests.into(),
                load.max_num_seqs.into(),
                load.active_blocks.into(),
                load.total_blocks.into(),
                load.outstanding_prefill_tokens,
                load.overlap_blocks.into(),
            ];
            self.workers.extend(words);
        }
    }
}
