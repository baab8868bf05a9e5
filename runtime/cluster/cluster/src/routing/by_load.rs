//! Routers that see the engines' loads: those of [`vcr_core::route`].

use vcr_core::ServingEngine;
use vcr_core::route::{Choice, EndedRequest, RouteError, RouteQuery, Router, WorkerLoad};

use super::{PoolRouter, RouteRequest, Routed, RoutedTo};
use crate::fleet::Worker;

pub(super) struct LoadRouter {
    router: Box<dyn Router>,
    /// Scratch.
    loads: Vec<WorkerLoad>,
}

impl LoadRouter {
    pub(super) fn new(router: Box<dyn Router>) -> Self {
        Self { router, loads: Vec::new() }
    }
}

impl PoolRouter for LoadRouter {
    fn route(&mut self, request: &RouteRequest<'_>, workers: &mut [Worker]) -> Result<Routed, RouteError> {
        let query = &request.query;
        let needs_overlap = self.router.needs_overlap();
        self.loads.clear();
        self.loads.extend(workers.iter().filter(|worker| worker.lifecycle().is_up()).map(|worker| {
            worker.load(if needs_overlap { worker.engine().cached_prefix_blocks(query.blocks) } else { 0 })
        }));
        if self.loads.is_empty() {
            return Ok(Routed::Nowhere);
        }
        choose(self.router.as_mut(), query, &self.loads)
    }

    fn requests_before(&self, worker: u32) -> Option<u64> {
        self.router.requests_before(worker)
    }

    fn ended(&mut self, _now_ns: u64, request: &EndedRequest) {
        if self.router.needs_ended() {
            self.router.ended(request);
        }
    }
}

fn choose(router: &mut dyn Router, query: &RouteQuery<'_>, loads: &[WorkerLoad]) -> Result<Routed, RouteError> {
    let refused = |reason: String| Err(RouteError { router: "router".to_owned(), reason });
    match router.route(query, loads)? {
        Choice::Shed if query.may_shed => Ok(Routed::Shed),
        Choice::Shed => refused("it refused a request that has been with an engine before".to_owned()),
        Choice::Worker(position) => match loads.get(position) {
            Some(load) => Ok(Routed::To(RoutedTo {
                worker: load.worker,
                overlap_blocks: router.needs_overlap().then_some(load.overlap_blocks),
            })),
            None => refused(format!("it chose position {position} of {} engines", loads.len())),
        },
    }
}
