//! One engine's part in routing: the requests that it delegated, and the requests of other engines that it computes.
//!
//! The engine to which the frontend sent a request is the *origin*. The origin knows the request's ID and the
//! engine that computes the request, and forwards that engine's outputs to the frontend. The computing engine
//! treats the request like any other, except for the channel of its outputs (`egress/outputs.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use vcr_core::AnyEngine;
use vcr_core::kv_event::KvEventLog;
use vcr_core::route::{RouteError, RouteRequest};

use crate::routing::dispatcher::{Decision, Dispatcher, PeerMessage, RouteHandle, RoutedRequest};

pub(crate) struct Routes {
    dispatcher: Arc<Dispatcher>,
    /// Index among the engines of the process.
    index: usize,
    /// Requests of this engine's frontend that other engines compute, by ID.
    delegated: BTreeMap<Box<str>, Delegated>,
    /// Requests taken since the last report of the load.
    taken: Vec<RouteHandle>,
    /// Ended requests of other engines, whose last outputs are being sent.
    ended: Vec<(usize, RouteHandle, Box<str>)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Delegated {
    handle: RouteHandle,
    pub(crate) engine: usize,
    pub(crate) client: u32,
}

impl Routes {
    /// The routes of an engine that is about to serve. They must exist before the frontend counts on the engine: a
    /// router that knew only some of the engines would send all requests to those.
    pub(crate) fn new(dispatcher: Arc<Dispatcher>, index: usize) -> Self {
        dispatcher.open(index);
        Self { dispatcher, index, delegated: BTreeMap::new(), taken: Vec::new(), ended: Vec::new() }
    }

    pub(crate) fn has_delegated(&self) -> bool {
        !self.delegated.is_empty()
    }

    pub(crate) fn is_delegated(&self, id: &str) -> bool {
        self.delegated.contains_key(id)
    }

    /// Asks the router; `None` if no engine takes requests.
    pub(crate) fn decide(&self, query: RouteRequest<'_>) -> Result<Option<Decision>, RouteError> {
        self.dispatcher.route(query)
    }

    pub(crate) fn delegate(&mut self, engine: usize, routed: Box<RoutedRequest>) -> Result<(), Box<RoutedRequest>> {
        let (handle, client) = (routed.handle, routed.request.client_index);
        let id = routed.request.request_id.clone().into_boxed_str();
        match self.dispatcher.send(engine, PeerMessage::Request(routed)) {
            Ok(()) => {
                self.delegated.insert(id, Delegated { handle, engine, client });
                Ok(())
            }
            Err(message) => {
                self.dispatcher.cancel(engine, handle);
                let PeerMessage::Request(routed) = message else { unreachable!("it is the message that was sent") };
                Err(routed)
            }
        }
    }

    pub(crate) fn receive(&self) -> Vec<PeerMessage> {
        self.dispatcher.receive(self.index)
    }

    /// Aborts a delegated request. Returns `false` if no delegated request has this ID.
    pub(crate) fn abort(&mut self, id: &str) -> bool {
        let Some((id, delegated)) = self.delegated.remove_entry(id) else { return false };
        // Sending fails only if the other engine is lost, and then the request has ended too.
        _ = self.dispatcher.send(delegated.engine, PeerMessage::Abort(delegated.handle, id));
        true
    }

    pub(crate) fn abort_client(&mut self, client: usize) {
        let of_client = |delegated: &Delegated| delegated.client as usize == client;
        let ids: Vec<_> =
            self.delegated.iter().filter(|(_, delegated)| of_client(delegated)).map(|(id, _)| id.clone()).collect();
        for id in ids {
            self.abort(&id);
        }
    }

    /// Forgets a delegated request, unless its ID belongs to another request by now.
    pub(crate) fn take_back(&mut self, handle: RouteHandle, id: &str) -> Option<Delegated> {
        let is_same = self.delegated.get(id).is_some_and(|delegated| delegated.handle == handle);
        if is_same { self.delegated.remove(id) } else { None }
    }

    /// Records that a request which was routed here has been taken or refused.
    pub(crate) fn acknowledge(&mut self, handle: RouteHandle) {
        self.taken.push(handle);
    }

    pub(crate) fn report_load(&mut self, engine: &AnyEngine, last_step_ns: u64, takes_requests: bool) {
        let mut status = self.dispatcher.status(self.index);
        status.takes_requests = takes_requests;
        status.last_step_ns = last_step_ns;
        status.report_load(engine, &self.taken);
        drop(status);
        self.taken.clear();
    }

    pub(crate) fn report_cache_events(&self, log: &KvEventLog) {
        self.dispatcher.apply_cache_events(self.index, log);
    }

    /// Records the end of a request that was routed here. [`Routes::notify_origins`] reports the end to the request's
    /// origin after the outputs.
    pub(crate) fn end(&mut self, origin: usize, handle: RouteHandle, id: &str, output_tokens: u32, failed: bool) {
        self.dispatcher.ended(self.index, handle.number, output_tokens, failed);
        if origin != self.index {
            self.ended.push((origin, handle, id.into()));
        }
    }

    /// Notifies the origins of ended requests.
    pub(crate) fn notify_origins(&mut self) {
        for (origin, handle, id) in self.ended.drain(..) {
            // The frontend of a lost origin does not wait.
            _ = self.dispatcher.send(origin, PeerMessage::Ended(handle, id));
        }
    }

    /// Rejects a routed request, which then fails at its origin.
    pub(crate) fn reject(&self, routed: RoutedRequest) {
        self.dispatcher.cancel(self.index, routed.handle);
        self.lose(routed.origin, routed.handle, routed.request.request_id.into_boxed_str());
    }

    /// Tells the origin that its request is lost.
    fn lose(&self, origin: usize, handle: RouteHandle, id: Box<str>) {
        _ = self.dispatcher.send(origin, PeerMessage::Lost(handle, id));
    }

    /// Stops serving. Aborts the requests that other engines compute for this one, and reports the routed requests
    /// in `unfinished` as lost. Each of these has its origin and its number of output tokens.
    pub(crate) fn close<'a>(mut self, unfinished: impl Iterator<Item = (RouteHandle, usize, &'a str, u32)>) {
        self.notify_origins();
        for message in self.dispatcher.close(self.index) {
            if let PeerMessage::Request(routed) = message {
                self.reject(*routed);
            }
        }
        for (handle, origin, id, output_tokens) in unfinished {
            self.dispatcher.ended(self.index, handle.number, output_tokens, true);
            if origin != self.index {
                self.lose(origin, handle, id.into());
            }
        }
        while let Some((id, delegated)) = self.delegated.pop_first() {
            _ = self.dispatcher.send(delegated.engine, PeerMessage::Abort(delegated.handle, id));
        }
    }
}
