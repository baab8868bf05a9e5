//! Ends of requests by workload: their causes, and the tokens that requests received.

use std::collections::BTreeMap;

use crate::ledger::record::{FailReason, Outcome, RequestRecord};

#[derive(Clone, Debug, Default)]
pub(super) struct EndsOfWorkload {
    pub(super) rejections: BTreeMap<String, u64>,
    pub(super) failures: BTreeMap<String, u64>,
    pub(super) tokens: u64,
}

#[derive(Debug)]
pub(super) struct Ends(Vec<EndsOfWorkload>);

impl Ends {
    /// Empty counts for `workloads` workloads.
    pub(super) fn of_workloads(workloads: usize) -> Self {
        Self(vec![EndsOfWorkload::default(); workloads])
    }

    pub(super) fn count(&mut self, record: &RequestRecord) {
        let own = &mut self.0[record.workload as usize];
        match record.outcome {
            Outcome::Rejected(reason) => *own.rejections.entry(reason.to_string()).or_insert(0) += 1,
            Outcome::Failed(reason) => *own.failures.entry(reason.to_string()).or_insert(0) += 1,
            Outcome::Completed | Outcome::Shed | Outcome::GivenUp(_) | Outcome::Unfinished => {}
        }
        // After injected failures and cancellations, the record keeps its tokens, which also count as wasted.
        if !matches!(record.outcome, Outcome::Failed(FailReason::Injected) | Outcome::GivenUp(_)) {
            own.tokens += u64::from(record.output_tokens);
        }
    }

    pub(super) fn of(&self, workload: usize) -> &EndsOfWorkload {
        &self.0[workload]
    }

    pub(super) fn of_all(&self) -> EndsOfWorkload {
        let mut all = EndsOfWorkload::default();
        for own in &self.0 {
            own.rejections
                .iter()
                .for_each(|(reason, count)| *all.rejections.entry(reason.clone()).or_insert(0) += count);
            own.failures.iter().for_each(|(reason, count)| *all.failures.entry(reason.clone()).or_insert(0) += count);
            all.tokens += own.tokens;
        }
        all
    }
}
