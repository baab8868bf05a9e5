//! Messages of frontends and of other engines, from the first check to the submission of a request.

pub(crate) mod admit;
pub(crate) mod frontend;
pub(crate) mod routed;
pub(crate) mod sessions;
pub(crate) mod version;
use std::collections::BTreeMap;

use vcr_wire::EngineCoreRequest;

/// Delayed requests by the real time at which they reach the queue; requests due at the same time keep their order.
#[derive(Debug, Default)]
struct Arrivals {
    waiting: BTreeMap<(u64, u64), Box<EngineCoreRequest>>,
    count: u64,
}

impl Arrivals {
    fn delay(&mut self, request: Box<EngineCoreRequest>, due_ns: u64) {
        self.count += 1;
        self.waiting.insert((due_ns, self.count), request);
    }

    /// Takes the next request that is due.
    fn due(&mut self, now_ns: u64) -> Option<Box<EngineCoreRequest>> {
        let first = self.waiting.first_entry().filter(|first| first.key().0 <= now_ns)?;
        Some(first.remove())
    }

    fn next_ns(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|((due_ns, _), _)| *due_ns)
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Forgets a request. Returns `false` if it does not wait here.
    fn abort(&mut self, id: &str) -> bool {
        let key = self.waiting.iter().find(|(_, request)| request.request_id == id).map(|(key, _)| *key);
        key.is_some_and(|key| self.waiting.remove(&key).is_some())
    }

    fn forget_client(&mut self, client: usize) {
        self.waiting.retain(|_, request| request.client_index as usize != client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: &str) -> Box<EngineCoreRequest> {
        Box::new(EngineCoreRequest { request_id: id.to_owned(), ..EngineCoreRequest::default() })
    }

    #[test]
    fn requests_reach_the_queue_when_they_are_due() {
        let mut arrivals = Arrivals::default();
        for (id, due_ns) in [("long", 90), ("short", 40), ("same", 40), ("gone", 50)] {
            arrivals.delay(request(id), due_ns);
        }
        assert_eq!((arrivals.next_ns(), arrivals.len()), (Some(40), 4));
        assert!(arrivals.abort("gone") && !arrivals.abort("gone"));
        let mut due = |now_ns| arrivals.due(now_ns).map(|request| request.request_id);
        assert_eq!(due(39), None);
        assert_eq!([due(60), due(60), due(60)], [Some("short".to_owned()), Some("same".to_owned()), None]);
        arrivals.forget_client(0);
        assert_eq!(arrivals.next_ns(), None);
    }
}
