//! Notifications about requests for a router that runs elsewhere.
//!
//! Engines that are simulated by themselves ([`crate::simulation`]'s lanes) have no router at
//! hand. They note first tokens and ends, which reach it later, in order of time.

use vcr_core::route::{EndedRequest, RouteError, WorkerLoad};

use super::{PoolRouter, RouteRequest, Routed};
use crate::fleet::Worker;

/// Something that has happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) at_ns: u64,
    pub(crate) request: u64,
    /// How it ended; none where its first token has come.
    pub(crate) ended: Option<EndedRequest>,
}

/// Takes notes, or none.
pub(super) struct NoteTaker {
    notes: Option<Vec<Note>>,
}

impl NoteTaker {
    pub(super) fn new(takes_notes: bool) -> Self {
        Self { notes: takes_notes.then(Vec::new) }
    }
}

impl PoolRouter for NoteTaker {
    fn route(&mut self, _request: &RouteRequest<'_>, _workers: &mut [Worker]) -> Result<Routed, RouteError> {
        Err(routed_elsewhere())
    }

    fn route_by_loads(&mut self, _request: &RouteRequest<'_>, _loads: &[WorkerLoad]) -> Result<Routed, RouteError> {
        Err(routed_elsewhere())
    }

    fn take_notes(&mut self, into: &mut Vec<Note>) {
        self.notes.iter_mut().for_each(|notes| into.append(notes));
    }

    fn prefilled(&mut self, at_ns: u64, request: u64) {
        self.notes.iter_mut().for_each(|notes| notes.push(Note { at_ns, request, ended: None }));
    }

    fn ended(&mut self, at_ns: u64, request: &EndedRequest) {
        let note = Note { at_ns, request: request.request, ended: Some(*request) };
        self.notes.iter_mut().for_each(|notes| notes.push(note));
    }
}

/// A request that an engine loses is beyond its lane. The lane fails, and the run is repeated
/// on one thread, whose router can route it.
fn routed_elsewhere() -> RouteError {
    RouteError {
        router: "router".to_owned(),
        reason: "an engine that is simulated by itself routes nothing".to_owned(),
    }
}
