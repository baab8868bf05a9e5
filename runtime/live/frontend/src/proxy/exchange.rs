//! Copies exchanges as they pass.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body as AxumBody;
use hyper::header::HeaderMap;
use vcr_record::HttpRecorder;
use vcr_record::http::{Exchange, now_ns};
use vcr_trace::capture::HttpEnd;

use crate::page::pairs;
use crate::tee::{Passed, Seen, Tee};

/// An exchange in progress. It is recorded when this is dropped. Until the end is known, it counts as one whose
/// client disconnected.
pub(crate) struct OpenExchange {
    exchange: Exchange,
    request: Arc<Mutex<Copied>>,
    end: HttpEnd,
    max_body_bytes: usize,
    /// The number of copied response bytes.
    kept_bytes: usize,
    recorder: Arc<HttpRecorder>,
    under_way: Arc<AtomicU32>,
}

/// A copy of a body, up to a limit.
#[derive(Default)]
struct Copied {
    bytes: Vec<u8>,
    left_out_bytes: u64,
}

impl OpenExchange {
    /// Starts an exchange whose request head has just arrived.
    pub(crate) fn begin(
        exchange: Exchange,
        max_body_bytes: usize,
        recorder: Arc<HttpRecorder>,
        under_way: Arc<AtomicU32>,
    ) -> Self {
        let concurrency = under_way.fetch_add(1, Ordering::Relaxed) + 1;
        let exchange = Exchange { arrived_ns: now_ns(), concurrency, ..exchange };
        let (request, end) = (Arc::default(), HttpEnd::ClientGone);
        Self { exchange, request, end, max_body_bytes, kept_bytes: 0, recorder, under_way }
    }

    fn since_arrival_ns(&self) -> u64 {
        now_ns().saturating_sub(self.exchange.arrived_ns)
    }

    /// Copies the request body as it passes.
    pub(crate) fn request_body(&self, body: AxumBody) -> AxumBody {
        let copy = RequestCopy { copied: Arc::clone(&self.request), max_body_bytes: self.max_body_bytes };
        AxumBody::new(Tee::new(body, copy))
    }

    pub(crate) fn answered(&mut self, status: u16, headers: &HeaderMap) {
        self.exchange.head_ns = Some(self.since_arrival_ns());
        self.exchange.status = Some(status);
        self.exchange.headers = pairs(headers);
    }

    /// Records that the server gave no response.
    pub(crate) fn failed(&mut self, message: String) {
        self.end = HttpEnd::ServerLost;
        self.exchange.error = Some(message);
    }
}

impl Drop for OpenExchange {
    fn drop(&mut self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        let mut exchange = std::mem::take(&mut self.exchange);
        exchange.end_ns = now_ns().saturating_sub(exchange.arrived_ns);
        exchange.end = self.end;
        let mut copied = lock(&self.request);
        exchange.request_body = std::mem::take(&mut copied.bytes);
        exchange.request_left_out_bytes = copied.left_out_bytes;
        self.recorder.record(exchange);
    }
}

fn lock(copied: &Mutex<Copied>) -> MutexGuard<'_, Copied> {
    copied.lock().unwrap_or_else(PoisonError::into_inner)
}

struct RequestCopy {
    copied: Arc<Mutex<Copied>>,
    max_body_bytes: usize,
}

impl Seen for RequestCopy {
    fn part(&mut self, bytes: &[u8]) {
        let mut copied = lock(&self.copied);
        if copied.left_out_bytes > 0 || copied.bytes.len() + bytes.len() > self.max_body_bytes {
            copied.left_out_bytes += bytes.len() as u64;
        } else {
            copied.bytes.extend_from_slice(bytes);
        }
    }

    fn ended(&mut self, _: Passed) {}
}

impl Seen for OpenExchange {
    fn part(&mut self, bytes: &[u8]) {
        let after_ns = self.since_arrival_ns();
        if self.exchange.left_out_bytes > 0 || self.kept_bytes + bytes.len() > self.max_body_bytes {
            self.exchange.left_out_bytes += bytes.len() as u64;
        } else if !bytes.is_empty() {
            self.kept_bytes += bytes.len();
            self.exchange.chunks.push((after_ns, bytes.to_vec()));
        }
    }

    fn ended(&mut self, end: Passed) {
        match end {
            Passed::Whole if self.end == HttpEnd::ClientGone => self.end = HttpEnd::Whole,
            Passed::Failed(message) => self.failed(message),
            Passed::Whole | Passed::Left => {}
        }
    }
}
