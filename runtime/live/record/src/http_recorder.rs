//! The thread that writes HTTP exchanges to a capture.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use vcr_trace::capture::{CAPTURE_FORMAT, CAPTURE_VERSION, CaptureEnd, CaptureLine, CaptureMeta, Holds};

use crate::counts::{Counts, RecordSummary};
use crate::error::RecordError;
use crate::http::{Exchange, HttpObserver, HttpRules, RedactRules, TokenCounter, lines_of, now_ns};
use crate::parts::{Parts, Rotation};
use crate::queue::Queue;
use crate::recorder::{spawn, write_down};
use crate::request::Detail;
use crate::writer::Writer;

/// Settings of an [`HttpRecorder`].
#[derive(Clone)]
pub struct HttpRecordConfig {
    /// The capture's first file.
    pub out: PathBuf,
    /// Whether existing files may be replaced.
    pub replace: bool,
    /// When to start a new file.
    pub rotation: Rotation,
    /// The model's name.
    pub model: Option<String>,
    /// The accelerator's name.
    pub gpu: Option<String>,
    /// Secrets in addition to the known ones.
    pub redact: RedactRules,
    /// Limit of the data waiting to be written, in bytes.
    pub queue_bytes: usize,
    /// Limit of a decoded body, in bytes.
    pub max_body_bytes: usize,
    /// Counts the tokens of exchanges without usage.
    pub count_tokens: Option<TokenCounter>,
    /// Whether to continue an existing capture.
    pub continues: bool,
    /// Called with each exchange that was written.
    pub observer: Option<HttpObserver>,
}

impl HttpRecordConfig {
    fn meta(&self) -> CaptureMeta {
        CaptureMeta {
            model: self.model.clone(),
            gpu: self.gpu.clone(),
            redacted_json: self.redact.json.iter().map(ToString::to_string).collect(),
            redacted_headers: self.redact.headers.clone(),
            redacted_query: self.redact.query.clone(),
            ..meta("record --upstream")
        }
    }
}

fn meta(source: &str) -> CaptureMeta {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    CaptureMeta {
        format: CAPTURE_FORMAT.to_owned(),
        version: CAPTURE_VERSION,
        source: Some(source.to_owned()),
        started_unix_ns: since_1970.as_nanos().try_into().ok(),
        holds: Holds { http: true, ..Holds::default() },
        ..CaptureMeta::default()
    }
}

/// Returns a capture of one exchange, without secrets. `max_body_bytes` limits a decoded body.
///
/// # Errors
/// Never, because it writes to memory.
pub fn capture_of(exchange: &Exchange, max_body_bytes: usize) -> serde_json::Result<String> {
    let (http, request) = lines_of(exchange, &RedactRules::default(), max_body_bytes);
    let end =
        CaptureEnd { at_ns: http.end_ns, requests: u64::from(request.is_some()), unfinished: 0, continues: false };
    let head = [CaptureLine::Meta(Box::new(meta("page"))), CaptureLine::Http(Box::new(http))];
    let request = request.map(|request| CaptureLine::Request(Box::new(request)));
    let lines = head.into_iter().chain(request).chain([CaptureLine::End(end)]);
    lines.map(|line| Ok(serde_json::to_string(&line)? + "\n")).collect()
}

/// Writes HTTP exchanges to a capture, on its own thread.
pub struct HttpRecorder {
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    writer: Mutex<Option<JoinHandle<Result<(), RecordError>>>>,
}

impl HttpRecorder {
    /// Starts a capture.
    pub fn start(config: &HttpRecordConfig) -> Result<Self, RecordError> {
        let counts = Arc::<Counts>::default();
        let (parts, start_ns) = match config.continues && config.out.exists() {
            false => (Parts::new(&config.out, config.rotation, config.replace, config.meta())?, now_ns()),
            true => {
                let (parts, old) = Parts::continued(&config.out)?;
                counts.http.set(old.http);
                (parts, now_ns().saturating_sub(old.end_ns))
            }
        };
        let queue = Arc::new(Queue::new(config.queue_bytes));
        let rules = HttpRules {
            redact: config.redact.clone(),
            max_body_bytes: config.max_body_bytes,
            count_tokens: config.count_tokens.clone(),
            observer: config.observer.clone(),
        };
        let writer = Writer::new(parts, Detail::none(), start_ns, Arc::clone(&counts)).with_http(rules);
        let (source, counted) = (Arc::clone(&queue), Arc::clone(&counts));
        let writer = spawn("writer", move || write_down(&source, writer, &counted))?;
        Ok(Self { queue, counts, writer: Mutex::new(Some(writer)) })
    }

    /// Records a finished exchange without blocking. If the queue is full, the exchange is only counted.
    pub fn record(&self, exchange: Exchange) {
        self.queue.push_exchange(exchange);
    }

    /// Counts of the recording so far.
    #[must_use]
    pub fn summary(&self) -> RecordSummary {
        self.counts.summary()
    }

    /// Ends the capture. Later exchanges are lost.
    pub fn finish(&self) -> Result<RecordSummary, RecordError> {
        self.queue.close();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let written = writer.map(|writer| writer.join().unwrap_or(Err(RecordError::Panicked("recorder"))));
        written.unwrap_or(Ok(())).map(|()| self.counts.summary())
    }
}
