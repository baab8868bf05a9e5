//! Names of simulated requests, from their traces.

use std::fmt;
use std::sync::{Arc, OnceLock};

use vcr_trace::Trace;
use vcr_trace::capture::RecordedCall;

use crate::config::{RunConfig, WorkloadSource};
use crate::ledger::record::RequestRecord;

/// The traces of a run's workloads, to look up the names of requests.
#[derive(Clone, Default)]
pub struct RequestNames {
    /// Traces by workload; None for drawn workloads, and for traces without names.
    traces: Vec<Option<NamedTrace>>,
}

#[derive(Clone)]
struct NamedTrace {
    trace: Arc<Trace>,
    /// Session, turn and row of each request, sorted. Built on first use.
    places: OnceLock<Arc<[(u32, u32, u32)]>>,
}

impl fmt::Debug for RequestNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestNames").field("traces", &self.traces.len()).finish()
    }
}

impl NamedTrace {
    fn places(&self) -> &[(u32, u32, u32)] {
        self.places.get_or_init(|| {
            let rows = self.trace.requests.iter().zip(0..);
            let mut places: Vec<_> = rows.map(|(request, row)| (request.session, request.turn, row)).collect();
            places.sort_unstable();
            places.into()
        })
    }
}

impl RequestNames {
    /// The names of a run's requests.
    #[must_use]
    pub fn of(run: &RunConfig) -> Self {
        let traces = run.workloads.iter().map(|workload| match &workload.source {
            WorkloadSource::Trace { trace, .. } => {
                let has_names = trace.requests.iter().any(|request| request.request_id.is_some());
                has_names.then(|| NamedTrace { trace: Arc::clone(trace), places: OnceLock::new() })
            }
            WorkloadSource::Synthetic { .. } | WorkloadSource::Generated(_) => None,
        });
        Self { traces: traces.collect() }
    }

    /// The name of a request in its trace, if it has one.
    #[must_use]
    pub fn of_request(&self, record: &RequestRecord) -> Option<&str> {
        let (trace, row) = self.row(record.workload, record.session, record.turn)?;
        trace.requests[row].request_id.as_deref()
    }

    /// The recorded HTTP request, if the trace has it.
    pub(crate) fn call(&self, workload: u32, session: u64, turn: u32) -> Option<Arc<RecordedCall>> {
        let (trace, row) = self.row(workload, session, turn)?;
        trace.calls.get(row)?.clone()
    }

    fn row(&self, workload: u32, session: u64, turn: u32) -> Option<(&Trace, usize)> {
        let named = self.traces.get(workload as usize)?.as_ref()?;
        // Each copy of a trace has its own sessions.
        let session = (session % u64::from(named.trace.sessions.max(1))) as u32;
        let places = named.places();
        let at = places.binary_search_by_key(&(session, turn), |(session, turn, _)| (*session, *turn)).ok()?;
        Some((&named.trace, places[at].2 as usize))
    }
}
