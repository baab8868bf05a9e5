//! Facts about requests: where a request comes from, and how it ended. HTTP cannot transfer them between a run's
//! clients and the cluster behind their server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vcr_cluster::record::{FailReason, Outcome, RequestRecord};
use vcr_cluster::{IssuedRequest, RequestOrigin};

use crate::client::completions::{Completions, Part, failed};
use crate::drive::{AnswerReporter, Answered, Service};

#[derive(Default)]
struct Contents {
    origins: BTreeMap<u64, RequestOrigin>,
    ended: BTreeMap<u64, RequestRecord>,
}

/// The facts about each request, by tag. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Register(Arc<Mutex<Contents>>);

impl Register {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        // A panic under this lock leaves the contents consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn origin(&self, tag: u64) -> Option<RequestOrigin> {
        self.contents().origins.get(&tag).copied()
    }

    pub(crate) fn ended(&self, tag: u64, record: RequestRecord) {
        self.contents().ended.insert(tag, record);
    }

    fn sent(&self, tag: u64, origin: RequestOrigin) {
        let mut contents = self.contents();
        contents.origins.insert(tag, origin);
        contents.ended.remove(&tag);
    }

    fn take_ended(&self, tag: u64) -> Option<RequestRecord> {
        let mut contents = self.contents();
        contents.origins.remove(&tag);
        contents.ended.remove(&tag)
    }
}

/// Sends requests to the server of a cluster.
pub(crate) struct ToCluster {
    pub(crate) server: Completions,
    pub(crate) register: Register,
}

impl Service for ToCluster {
    async fn answer(&self, request: &IssuedRequest, reporter: &AnswerReporter) -> Answered {
        self.register.sent(request.tag, request.origin);
        let answered = self.server.exchange(request, Part::Whole, reporter).await;
        let record = self.register.take_ended(request.tag);
        if let Some(record) = &record {
            reporter.adopt(record);
        }
        match (answered, record.map(|record| record.outcome)) {
            (Ok(answer), _) => Answered::Whole(answer),
            // The server's stream says only that an error occurred.
            (Err(_), Some(Outcome::Shed)) => Answered::Shed,
            (Err(_), Some(Outcome::Failed(FailReason::EngineCrash))) => Answered::Lost(FailReason::EngineCrash),
            (Err(_), Some(Outcome::Failed(reason))) => Answered::Failed(reason),
            (Err(error), _) => failed(&error, reporter),
        }
    }
}
