//! How an engine stops: it lets its requests end, or aborts them.

use vcr_wire::FinishReason;

use crate::error::LiveError;
use crate::routed::Routes;
use crate::server::{End, Server, Shutdown};

/// How long beyond the time of a shutdown an engine waits for others to abort
/// what they compute for it: far longer than they take.
const AWAY_NS: u64 = 1_000_000_000;

impl Server {
    /// vLLM: requests under way are aborted at once, unless there is a time
    /// for them.
    pub(crate) fn begin_shutdown(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let timeout_ns = self.config.shutdown_timeout_ns;
        tracing::info!(rank = self.rank, requests = self.requests.len(), "shutting down");
        self.shutdown = Shutdown::Draining { until_ns: now_ns.saturating_add(timeout_ns) };
        if timeout_ns == 0 {
            self.abort_all(now_ns)?;
        }
        self.show_soon();
        Ok(())
    }

    /// Ends a shutdown: with its time for what is left, and then with the engine.
    pub(crate) fn end_shutdown(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let Shutdown::Draining { until_ns } = self.shutdown else { return Ok(()) };
        if until_ns <= now_ns && self.requests.len() > 0 {
            self.abort_all(now_ns)?;
        }
        // What is away ends with the engines that have it, which stop too.
        let has_away = self.routes.as_ref().is_some_and(Routes::has_away);
        let waits = has_away && now_ns < until_ns.saturating_add(AWAY_NS);
        if self.num_unfinished() == 0 && self.pipeline.is_empty() && !waits {
            self.end = Some(End::ShutDown);
        }
        Ok(())
    }

    /// Ends all requests, and tells their frontends.
    pub(crate) fn abort_all(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let mut aborted: Vec<u64> = self.player.tags().collect();
        self.engine.abort_all(|tag| aborted.push(tag));
        let mut by_client: Vec<(u32, Vec<Box<str>>)> = Vec::new();
        for tag in aborted {
            let Some(request) = self.forget(tag, FinishReason::Abort) else { continue };
            match by_client.iter_mut().find(|(client, _)| *client == request.client) {
                Some((_, ids)) => ids.push(request.id),
                None => by_client.push((request.client, vec![request.id])),
            }
        }
        for (client, ids) in by_client {
            let ids: Vec<&str> = ids.iter().map(|id| &**id).collect();
            self.outputs.send_finish(client, &ids, FinishReason::Abort, None, now_ns)?;
        }
        self.may_decide = true;
        Ok(())
    }
}
