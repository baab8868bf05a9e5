//! The engine: its state, and the arrival and end of requests.

use std::collections::{BTreeSet, VecDeque};

use crate::engine::RejectReason;
use crate::plan::{StepOutputs, StepPlan};
use crate::request::table::RequestTable;
use crate::request::{KvRole, Request, RequestId, RequestSpec, RequestStatus};
use crate::stats::EngineStats;
use crate::ticks::TickConfig;

/// The place of a waiting request. Smaller places are tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    rank: i64,
    arrival_ns: u64,
    sequence: u64,
    pub(super) id: RequestId,
}

/// A simulated engine that schedules by ticks.
#[derive(Debug)]
pub struct TickEngine {
    pub(super) config: TickConfig,
    pub(super) requests: RequestTable,
    /// Number of reserved pages by request slot; 0 without a reservation.
    pub(super) reserved: Vec<u32>,
    pub(super) num_free_pages: u32,
    pub(super) waiting: BTreeSet<Place>,
    /// Admitted requests. The first one decodes next.
    pub(super) active: VecDeque<RequestId>,
    pub(super) plan: StepPlan,
    pub(super) step_in_flight: bool,
    pub(super) applied_steps: u64,
    pub(super) outputs: StepOutputs,
    pub(super) stats: EngineStats,
    pub(super) outstanding_prefill_tokens: u64,
}

impl TickEngine {
    /// An idle engine.
    #[must_use]
    pub fn new(config: TickConfig) -> Self {
        Self {
            num_free_pages: config.total_kv_pages(),
            config,
            requests: RequestTable::default(),
            reserved: Vec::new(),
            waiting: BTreeSet::new(),
            active: VecDeque::new(),
            plan: StepPlan::default(),
            step_in_flight: false,
            applied_steps: 0,
            outputs: StepOutputs::default(),
            stats: EngineStats::default(),
            outstanding_prefill_tokens: 0,
        }
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &TickConfig {
        &self.config
    }

    pub(super) fn check_lengths(&self, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason> {
        if prompt_tokens == 0 {
            return Err(RejectReason::EmptyPrompt);
        }
        if prompt_tokens > self.config.prefill_tokens_per_tick() {
            return Err(RejectReason::ExceedsPrefillBudget);
        }
        if self.config.reserved_pages(prompt_tokens, max_tokens) > self.config.total_kv_pages() {
            return Err(RejectReason::ExceedsKvPool);
        }
        Ok(())
    }

    pub(super) fn enqueue(&mut self, spec: RequestSpec) -> Result<RequestId, RejectReason> {
        if spec.prompt.len_tokens == 0 {
            return Err(RejectReason::EmptyPrompt);
        }
        if self.requests.find(spec.tag).is_some() {
            return Err(RejectReason::DuplicateRequest);
        }
        if spec.lora.is_some() {
            return Err(RejectReason::AdaptersOff);
        }
        if spec.structured {
            return Err(RejectReason::StructuredNotSimulated);
        }
        if spec.kv_role != KvRole::Local {
            return Err(RejectReason::KvTransfersOff);
        }
        let sequence = self.requests.next_sequence();
        let request = Request::new(spec, sequence, self.config.page_size_tokens(), u32::MAX);
        self.outstanding_prefill_tokens += u64::from(request.prefill_target_tokens);
        let id = self.requests.insert(request);
        self.reserved.resize(self.reserved.len().max(id.index() + 1), 0);
        self.waiting.insert(self.place(id));
        Ok(id)
    }

    fn place(&self, id: RequestId) -> Place {
        let request = &self.requests[id];
        Place { rank: request.rank, arrival_ns: request.arrival_ns, sequence: request.sequence, id }
    }

    pub(super) fn abort_request(&mut self, id: RequestId) {
        match self.requests[id].status {
            RequestStatus::Waiting => {
                let place = self.place(id);
                self.waiting.remove(&place);
            }
            RequestStatus::Running => self.active.retain(|&other| other != id),
            RequestStatus::Finished => return,
            status => unreachable!("{status:?}: no request of this scheduler is preempted or waits for KV"),
        }
        self.outstanding_prefill_tokens -= u64::from(self.requests[id].outstanding_prefill_tokens());
        self.drop_request(id);
    }

    /// Returns the pages of a request that has left all lists.
    pub(super) fn drop_request(&mut self, id: RequestId) {
        self.num_free_pages += std::mem::take(&mut self.reserved[id.index()]);
        self.requests.retire(id, self.stats.steps);
        self.requests.recycle(self.applied_steps);
    }
}
