//! The Python frontend's multimodal processor cache.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::engine::EngineRecorder;
use super::table::Name;

/// Capacity of the cache in media. vLLM's cache is limited by `--mm-processor-cache-gb` instead.
const ROOM: usize = 65_536;

/// The latest [`ROOM`] media of requests.
#[derive(Debug, Default)]
pub(super) struct MediaCache(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    hashes: BTreeSet<String>,
    order: VecDeque<String>,
}

impl MediaCache {
    /// Looks up a request's media by their hashes.
    pub(super) fn look_up(&self, media: &[String], engine: &EngineRecorder) {
        if media.is_empty() {
            return;
        }
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut hits = 0;
        for hash in media {
            if seen.hashes.insert(hash.clone()) {
                seen.order.push_back(hash.clone());
                if seen.order.len() > ROOM
                    && let Some(oldest) = seen.order.pop_front()
                {
                    seen.hashes.remove(&oldest);
                }
            } else {
                hits += 1;
            }
        }
        engine.media(media.len() as u64, hits);
    }
}

impl EngineRecorder {
    /// Counts lookups and hits.
    fn media(&self, queries: u64, hits: u64) {
        self.count(Name::MmCacheQueries, queries);
        self.count(Name::MmCacheHits, hits);
    }
}
