//! Damages response bodies.

use std::collections::VecDeque;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::Value;
use tokio::time::sleep;

use super::error_body::error_events;
use super::events::{EventSplitter, data, has_token, is_done, is_usage_only, without_usage};
use super::kind::FaultKind;
use super::short::{ended_by_itself, stopped};
use crate::http::ConnectionControl;

#[derive(Debug)]
enum Action {
    Send(Bytes),
    Wait(Duration),
    WaitForEver,
    Reset,
    End,
}

/// A response body with a fault.
struct Faulty {
    body: BodyDataStream,
    kind: FaultKind,
    is_stream: bool,
    connection: Option<ConnectionControl>,
    events: EventSplitter,
    actions: VecDeque<Action>,
    tokens: u32,
    /// Whether the fault has happened. It happens only once.
    is_over: bool,
    has_ended: bool,
}

/// The body's error after a reset. If the connection is not known, this error makes the server close it.
#[derive(Debug, thiserror::Error)]
#[error("a fault resets the connection")]
struct ConnectionReset;

/// Returns the body that the client gets. `is_stream` is true for server-sent events and false for one JSON value.
pub(super) fn faulty_body(body: Body, kind: FaultKind, is_stream: bool, connection: Option<ConnectionControl>) -> Body {
    let faulty = Faulty {
        body: body.into_data_stream(),
        kind,
        is_stream,
        connection,
        events: EventSplitter::default(),
        actions: VecDeque::new(),
        tokens: 0,
        is_over: false,
        has_ended: false,
    };
    Body::from_stream(stream::unfold(faulty, |mut faulty| async move {
        let item = faulty.next().await?;
        Some((item, faulty))
    }))
}

impl Faulty {
    async fn next(&mut self) -> Option<Result<Bytes, axum::Error>> {
        loop {
            match self.actions.pop_front() {
                Some(Action::Send(bytes)) if bytes.is_empty() => {}
                Some(Action::Send(bytes)) => return Some(Ok(bytes)),
                Some(Action::Wait(duration)) => sleep(duration).await,
                Some(Action::WaitForEver) => std::future::pending().await,
                Some(Action::Reset) => {
                    self.finish();
                    if let Some(connection) = &self.connection {
                        connection.reset();
                    }
                    return Some(Err(axum::Error::new(ConnectionReset)));
                }
                Some(Action::End) => self.finish(),
                None if self.has_ended => return None,
                None => match self.body.next().await {
                    Some(Ok(part)) => {
                        self.events.push(&part);
                        while self.is_stream
                            && let Some(event) = self.events.next()
                        {
                            self.event(event);
                        }
                    }
                    Some(Err(error)) => {
                        self.finish();
                        return Some(Err(error));
                    }
                    None => {
                        self.has_ended = true;
                        if let Some(rest) = self.events.rest() {
                            if self.is_stream { self.send(rest) } else { self.value(rest) }
                        }
                    }
                },
            }
        }
    }

    /// Ends the body. Dropping the original body aborts the request.
    fn finish(&mut self) {
        self.has_ended = true;
        self.actions.clear();
        self.body = Body::empty().into_data_stream();
    }

    fn send(&mut self, bytes: Bytes) {
        if let FaultKind::Slow { every_ns, bytes: size } = self.kind {
            for part in bytes.chunks(size) {
                self.actions.push_back(Action::Wait(Duration::from_nanos(every_ns)));
                self.actions.push_back(Action::Send(bytes.slice_ref(part)));
            }
        } else {
            self.actions.push_back(Action::Send(bytes));
        }
    }

    /// Sends an event of a stream, with the fault if it is due.
    fn event(&mut self, event: Bytes) {
        if self.is_due(&event) {
            self.is_over = true;
            match self.kind.clone() {
                FaultKind::Reset { .. } => self.actions.push_back(Action::Reset),
                FaultKind::Stall { for_ns, .. } => {
                    let wait = for_ns.map_or(Action::WaitForEver, |ns| Action::Wait(Duration::from_nanos(ns)));
                    self.actions.push_back(wait);
                    self.send(event);
                }
                FaultKind::Truncate { .. } => {
                    self.send(event.slice(..event.len() / 2));
                    self.actions.push_back(Action::End);
                }
                FaultKind::Malformed { .. } => {
                    let broken = data(&event).map_or_else(String::new, broken_json);
                    self.send(format!("data: {broken}\n\n").into());
                }
                FaultKind::ErrorEvent { code, message, .. } => {
                    let message = message.unwrap_or_else(|| "Internal server error".to_owned());
                    self.send(error_events(&event, code, &message).into());
                    self.actions.push_back(Action::End);
                }
                _ => self.send(event),
            }
            return;
        }
        match &self.kind {
            FaultKind::Done { times } if is_done(&event) => {
                for _ in 0..*times {
                    self.actions.push_back(Action::Send(event.clone()));
                }
            }
            FaultKind::Short { .. } => {
                let ended = ended_by_itself(&event);
                self.send(ended.unwrap_or(event));
            }
            FaultKind::NoUsage if is_usage_only(&event) => {}
            FaultKind::NoUsage => {
                let less = data(&event).and_then(without_usage).map(|less| {
                    let head = std::str::from_utf8(&event).ok().and_then(|text| text.split_once("data:"));
                    Bytes::from(format!("{}data: {less}\n\n", head.map_or("", |(head, _)| head)))
                });
                self.send(less.unwrap_or(event));
            }
            _ => self.send(event),
        }
    }

    /// Whether the fault happens at this event: the first, or the first after this many tokens. If the stream is
    /// shorter, the fault happens at its end.
    fn is_due(&mut self, event: &[u8]) -> bool {
        let after_tokens = match &self.kind {
            FaultKind::Reset { after_tokens }
            | FaultKind::Stall { after_tokens, .. }
            | FaultKind::Truncate { after_tokens }
            | FaultKind::Malformed { after_tokens }
            | FaultKind::ErrorEvent { after_tokens, .. } => after_tokens.unwrap_or(0),
            _ => return false,
        };
        let is_due = !self.is_over && (self.tokens >= after_tokens || is_done(event));
        self.tokens += u32::from(has_token(event));
        is_due
    }

    /// Sends a body that is one JSON value, with the fault.
    fn value(&mut self, whole: Bytes) {
        match &self.kind {
            FaultKind::Reset { .. } => {
                self.send(whole.slice(..whole.len() / 2));
                self.actions.push_back(Action::Reset);
            }
            FaultKind::Truncate { .. } => self.send(whole.slice(..whole.len() / 2)),
            FaultKind::Malformed { .. } => self.send(broken_json(&String::from_utf8_lossy(&whole)).into()),
            FaultKind::NoUsage => {
                let less = std::str::from_utf8(&whole).ok().and_then(without_usage);
                self.send(less.map_or(whole, Bytes::from));
            }
            FaultKind::Short { .. } => {
                let ended = std::str::from_utf8(&whole).ok().and_then(stopped);
                self.send(ended.map_or(whole, Bytes::from));
            }
            _ => self.send(whole),
        }
    }
}

/// Makes a JSON text invalid, if possible by replacing its last bracket.
fn broken_json(text: &str) -> String {
    let broken = match text.trim_end().strip_suffix('}') {
        Some(open) => format!("{open}]"),
        None => format!("{text}}}"),
    };
    debug_assert!(serde_json::from_str::<Value>(&broken).is_err());
    broken
}
