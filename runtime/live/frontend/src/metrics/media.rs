//! The Python frontend's cache of media for its processor.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::engine::EngineRecorder;
use super::table::Name;

/// Media that the cache holds. vLLM's holds as many as fit into `--mm-processor-cache-gb`.
const ROOM: usize = 65_536;

/// Media of requests, the newest [`ROOM`] of them.
#[derive(Debug, Default)]
pub(super) struct MediaCache(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    hashes: BTreeSet<String>,
    order: VecDeque<String>,
}

impl MediaCache {
    /// Looks up the media of a request, by their hashes.
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
    /// Counts looked-up media, and the found ones among them.
    fn media(&self, queries: u64, hits: u64) {
        self.count(Name::MmCacheQueries, queries);
        self.count(Name::MmCacheHits, hits);
    }
}
