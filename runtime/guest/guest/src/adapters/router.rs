//! A router that calls a guest.

use vcr_core::route::{Choice, EndedRequest, RouteError, RouteRequest, Router, WorkerLoad};

use crate::adapters::running::Running;
use crate::error::CallFault;
use crate::latest::{Chosen, RouteCall, RouterInstance};
use crate::limits::Limits;

/// Largest number of engines that an error lists.
const LISTED_MAX: usize = 16;

pub(crate) struct GuestRouter {
    limits: Limits,
    running: Running<dyn RouterInstance>,
    needs_details: bool,
    /// Requests that ended since the last call.
    ended: Vec<EndedRequest>,
}

impl GuestRouter {
    pub(crate) fn new(name: String, limits: Limits, instance: Box<dyn RouterInstance>) -> Self {
        let needs_details = instance.needs_details();
        Self { limits, running: Running::new(name, instance), needs_details, ended: Vec::new() }
    }
}

impl Router for GuestRouter {
    fn route(&mut self, query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        let Self { limits, running, ended, .. } = self;
        let result = running.call("route", |instance| {
            let budget = limits.budget(1 + workers.len() + ended.len(), 0);
            let answer = instance.route(RouteCall { ended, query, workers }, budget)?;
            accept(answer, query, workers)
        });
        ended.clear();
        result.map_err(|failure| RouteError { router: failure.guest, reason: failure.reason })
    }

    fn needs_overlap(&self) -> bool {
        true
    }

    fn needs_tiers(&self) -> bool {
        self.needs_details
    }

    fn needs_ended(&self) -> bool {
        true
    }

    fn ended(&mut self, request: &EndedRequest) {
        self.ended.push(*request);
    }
}

pub(crate) fn accept(answer: Chosen, query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, CallFault> {
    let request = query.id;
    match answer {
        Chosen::Refused if query.may_refuse => Ok(Choice::Refuse),
        Chosen::Refused => Err(CallFault::MustBeServed { request }),
        Chosen::Worker(chosen) => match workers.binary_search_by_key(&chosen, |load| load.worker) {
            Ok(_) => Ok(Choice::Worker(chosen)),
            Err(_) => Err(CallFault::NoSuchWorker { chosen, request, up: listed(workers) }),
        },
    }
}

/// The indices of the engines, as text.
#[cold]
fn listed(workers: &[WorkerLoad]) -> String {
    let names: Vec<String> = workers.iter().take(LISTED_MAX).map(|load| load.worker.to_string()).collect();
    match workers.len() - names.len() {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}
