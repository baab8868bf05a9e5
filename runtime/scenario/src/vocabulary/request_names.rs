//! Names of simulated requests: those that traces give them.

use std::sync::Arc;

use vcr_cluster::record::RequestRecord;
use vcr_cluster::{WorkloadConfig, WorkloadSource};
use vcr_trace::Trace;

/// The traces of a run's workloads, and where in them a turn of a session is.
#[derive(Clone)]
pub(crate) struct RequestNames {
    /// By workload; none for those that are drawn.
    traces: Vec<Option<NamedTrace>>,
}

#[derive(Clone)]
struct NamedTrace {
    trace: Arc<Trace>,
    /// Sessions and turns with the places of their requests, sorted.
    places: Arc<[(u32, u32, u32)]>,
}

impl RequestNames {
    pub(crate) fn of(workloads: &[WorkloadConfig]) -> Self {
        let traces = workloads.iter().map(|workload| match &workload.source {
            WorkloadSource::Trace { trace, .. } => {
                let rows = trace.requests.iter().zip(0..);
                let mut places: Vec<_> = rows.map(|(request, row)| (request.session, request.turn, row)).collect();
                places.sort_unstable();
                Some(NamedTrace { trace: Arc::clone(trace), places: places.into() })
            }
            WorkloadSource::Synthetic { .. } => None,
        });
        Self { traces: traces.collect() }
    }

    /// The name of a request in its trace, if it has one.
    pub(crate) fn of_request(&self, record: &RequestRecord) -> Option<String> {
        let NamedTrace { trace, places } = self.traces.get(record.workload as usize)?.as_ref()?;
        // Copies of a trace have sessions of their own.
        let session = (record.session % u64::from(trace.sessions.max(1))) as u32;
        let at = places.binary_search_by_key(&(session, record.turn), |(session, turn, _)| (*session, *turn)).ok()?;
        trace.requests[places[at].2 as usize].request_id.as_deref().map(str::to_owned)
    }
}
