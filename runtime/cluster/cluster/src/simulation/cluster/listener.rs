//! The observer of a cluster that its caller steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use vcr_core::{AnyEngine, Compilation};

use super::{ClusterOutput, SUBMITTED};
use crate::ledger::record::RequestRecord;
use crate::observe::{Incident, Observer, RequestName, StepRecord, StepSink};

/// Collects the outputs for the caller.
#[derive(Default)]
pub(super) struct Listener {
    wants_tokens: bool,
    wants_series: bool,
    outputs: Vec<ClusterOutput>,
    steps: Option<Arc<dyn StepSink>>,
    /// Numbers of requests for that receiver, by their numbers in the run.
    names: BTreeMap<u64, u64>,
}

impl Listener {
    pub(super) fn new(wants_tokens: bool) -> Self {
        Self { wants_tokens, ..Self::default() }
    }

    /// The observer of a cluster behind a server, which gets an output for each token.
    pub(super) fn behind_server(wants_series: bool, steps: Option<Arc<dyn StepSink>>) -> Self {
        Self { wants_tokens: true, wants_series, steps, ..Self::default() }
    }

    /// Sets the number by which observers of steps know a request.
    pub(super) fn name(&mut self, request: u64, number: u64) {
        if self.steps.is_some() {
            self.names.insert(request, number);
        }
    }

    /// Takes the outputs that the caller has not received yet.
    pub(super) fn take_outputs(&mut self) -> Vec<ClusterOutput> {
        std::mem::take(&mut self.outputs)
    }

    /// Keeps the allocation of `outputs` for reuse.
    pub(super) fn keep_room(&mut self, outputs: Vec<ClusterOutput>) {
        self.outputs = outputs;
    }
}

impl Observer for Listener {
    fn wants_steps(&self) -> bool {
        self.wants_tokens
    }

    fn wants_series(&self) -> bool {
        self.wants_series
    }

    fn wants_requests(&self) -> bool {
        true
    }

    fn tokens(&mut self, request: u64, num_tokens: u32, at_ns: u64) {
        self.outputs.push(ClusterOutput::Tokens { request, num_tokens, at_ns });
    }

    fn submitted(&mut self, worker: u32, tag: u64) {
        let Some(steps) = &self.steps else { return };
        match self.names.get(&tag) {
            Some(number) => steps.submitted(worker, tag, RequestName::Number(*number)),
            None => steps.submitted(worker, tag, RequestName::Text(&format!("{SUBMITTED}-{tag}"))),
        }
    }

    fn aborted(&mut self, worker: u32, tag: u64) {
        if let Some(steps) = &self.steps {
            steps.aborted(worker, tag);
        }
    }

    fn compiled(&mut self, worker: u32, tag: u64, compilation: Compilation) {
        if let Some(steps) = &self.steps {
            steps.compiled(worker, tag, compilation);
        }
    }

    fn failed(&mut self, worker: u32, tag: u64) {
        if let Some(steps) = &self.steps {
            steps.failed(worker, tag);
        }
    }

    fn scheduled(&mut self, worker: u32, engine: &AnyEngine) {
        if let Some(steps) = &self.steps {
            steps.scheduled(worker, engine);
        }
    }

    fn started(&mut self, step: &StepRecord<'_>) {
        if let Some(steps) = &self.steps {
            steps.started(step.worker, (step.start_ns, step.end_ns), step.plan, step.engine);
        }
    }

    fn applied(&mut self, worker: u32, start_ns: u64, end_ns: u64, engine: &AnyEngine) {
        if let Some(steps) = &self.steps {
            steps.applied(worker, start_ns, end_ns, engine);
        }
    }

    fn incident(&mut self, worker: u32, at_ns: u64, incident: Incident) {
        let Some(steps) = &self.steps else { return };
        if incident.ends_engine() {
            steps.ended(worker);
        }
        steps.incident(worker, at_ns, incident);
    }

    fn ended(&mut self, request: u64, record: &RequestRecord) {
        self.outputs.push(ClusterOutput::Ended { request, record: Box::new(record.clone()) });
    }
}
