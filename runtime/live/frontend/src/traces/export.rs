//! Sends spans to a collector in batches, from its own thread.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::endpoint::Endpoint;
use super::proto::{
    ExportTraceServiceRequest, InstrumentationScope, KeyValue, Resource, ResourceSpans, ScopeSpans, Span, Value,
};
use super::transport::Transport;

/// The maximum number of waiting spans. More are dropped, so that a collector that does not answer takes little
/// memory.
const MAX_WAITING: usize = 2048;
/// The maximum number of spans per message.
const MAX_BATCH: usize = 512;
/// The longest time that a span waits for others.
const MAX_WAIT: Duration = Duration::from_secs(1);

enum Item {
    Span(Box<Span>),
    End,
}

/// Passes spans to the exporter.
#[derive(Clone, Debug)]
pub struct SpanSender(SyncSender<Item>);

impl SpanSender {
    /// Sends a span without blocking.
    pub(super) fn send(&self, span: Span) {
        if self.0.try_send(Item::Span(Box::new(span))).is_err() {
            tracing::debug!("a span is dropped: too many wait for the collector");
        }
    }
}

/// The thread that sends spans.
#[derive(Debug)]
pub struct TraceExporter {
    sender: SpanSender,
    thread: JoinHandle<()>,
}

impl TraceExporter {
    /// Starts the thread. The collector's certificate is checked against the system's authorities and the PEM text
    /// `authorities`.
    ///
    /// # Errors
    /// When the authorities are invalid, or no thread can be started.
    pub fn start(endpoint: Endpoint, service_name: String, authorities: Option<&[u8]>) -> io::Result<Self> {
        let (sender, items) = sync_channel(MAX_WAITING);
        let transport = Transport::new(endpoint.clone(), authorities)?;
        let collector = Collector { endpoint, transport, service_name, is_failing: false };
        let thread = std::thread::Builder::new().name("traces".to_owned()).spawn(move || run(&items, collector))?;
        Ok(Self { sender: SpanSender(sender), thread })
    }

    /// Returns a sender of spans.
    #[must_use]
    pub fn sender(&self) -> SpanSender {
        self.sender.clone()
    }

    /// Sends the remaining spans, if the collector accepts them, and stops the thread.
    pub fn finish(self) {
        // If the queue is full, the collector does not answer.
        if self.sender.0.try_send(Item::End).is_ok() {
            _ = self.thread.join();
        }
    }
}

fn run(items: &Receiver<Item>, mut collector: Collector) {
    let mut batch = Vec::new();
    let mut is_ended = false;
    while !is_ended {
        match items.recv() {
            Ok(Item::Span(span)) => batch.push(*span),
            Ok(Item::End) | Err(_) => return,
        }
        let until = Instant::now() + MAX_WAIT;
        while batch.len() < MAX_BATCH && !is_ended {
            match items.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Item::Span(span)) => batch.push(*span),
                Ok(Item::End) | Err(RecvTimeoutError::Disconnected) => is_ended = true,
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        collector.send(std::mem::take(&mut batch));
    }
}

struct Collector {
    /// The collector's address, for the log.
    endpoint: Endpoint,
    transport: Transport,
    service_name: String,
    /// Whether the last message failed. Only the first failure is logged.
    is_failing: bool,
}

impl Collector {
    fn send(&mut self, spans: Vec<Span>) {
        let count = spans.len();
        match self.transport.send(self.message(spans)) {
            Ok(()) => self.is_failing = false,
            Err(error) if self.is_failing => tracing::debug!(count, %error, "spans are lost"),
            Err(error) => {
                self.is_failing = true;
                tracing::warn!(endpoint = %self.endpoint, %error, "traces cannot be sent; their spans are lost");
            }
        }
    }

    fn message(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let scope =
            InstrumentationScope { name: "vllm.llm_engine".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
        let name = KeyValue::new("service.name", Value::Text(self.service_name.clone()));
        ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(Resource { attributes: vec![name] }),
                scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
            }],
        }
    }
}
