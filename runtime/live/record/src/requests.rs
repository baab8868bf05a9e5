//! All requests in progress.

use std::collections::{BTreeMap, HashMap};

use vcr_trace::capture::RequestRecord;

use crate::request::OpenRequest;

/// More requests are not tracked. Otherwise a frontend whose requests never end would fill the memory.
const MAX_OPEN: u32 = 1 << 18;

/// Requests by engine and request id.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    engines: BTreeMap<u32, HashMap<String, OpenRequest>>,
    open: u32,
    arrived: u64,
}

impl Requests {
    pub(crate) fn open(&self) -> u32 {
        self.open
    }

    pub(crate) fn has_room(&self) -> bool {
        self.open < MAX_OPEN
    }

    /// Adds a request. Returns an earlier request with the same id, whose end was not seen.
    pub(crate) fn insert(&mut self, rank: u32, id: &str, request: OpenRequest) -> Option<OpenRequest> {
        let before = self.remove(rank, id);
        self.open += 1;
        let request = request.placed(self.arrived, self.open);
        self.arrived += 1;
        self.engines.entry(rank).or_default().insert(id.to_owned(), request);
        before
    }

    pub(crate) fn get_mut(&mut self, rank: u32, id: &str) -> Option<&mut OpenRequest> {
        self.engines.get_mut(&rank)?.get_mut(id)
    }

    pub(crate) fn remove(&mut self, rank: u32, id: &str) -> Option<OpenRequest> {
        let request = self.engines.get_mut(&rank)?.remove(id)?;
        self.open -= 1;
        Some(request)
    }

    /// Removes the requests that `is_meant` selects. Returns their records in order of arrival.
    pub(crate) fn give_up(
        &mut self,
        why: Option<&str>,
        is_meant: impl Fn(u32, &OpenRequest) -> bool,
    ) -> Vec<RequestRecord> {
        let mut given_up: Vec<OpenRequest> = Vec::new();
        for (rank, requests) in &mut self.engines {
            given_up.extend(requests.extract_if(|_, request| is_meant(*rank, request)).map(|(_, request)| request));
        }
        self.engines.retain(|_, requests| !requests.is_empty());
        self.open -= given_up.len() as u32;
        given_up.sort_unstable_by_key(|request| request.number);
        given_up.into_iter().map(|request| request.unfinished(why)).collect()
    }
}
