//! Serving, draining, and the reason why an engine stops to serve.

/// Why an engine serves no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A shutdown is complete.
    ShutDown,
    /// All its API servers are lost.
    FrontendLost,
    /// A fault crashed it; `None` if it does not restart.
    Crashed { restart_ns: Option<u64> },
}

/// Progress of one engine from serving to its end.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    drain_until_ns: Option<u64>,
    end: Option<End>,
}

impl Lifecycle {
    /// Whether no shutdown has begun.
    pub(crate) fn is_running(&self) -> bool {
        self.drain_until_ns.is_none()
    }

    /// Begins a shutdown, which waits for requests until then.
    pub(crate) fn drain(&mut self, until_ns: u64) {
        self.drain_until_ns = Some(until_ns);
    }

    /// The end of a shutdown's grace period, if one has begun.
    pub(crate) fn drain_until_ns(&self) -> Option<u64> {
        self.drain_until_ns
    }

    /// Ends serving with the current turn of the loop.
    pub(crate) fn end(&mut self, end: End) {
        self.end = Some(end);
    }

    /// The end, if it has arrived.
    pub(crate) fn ended(&self) -> Option<End> {
        self.end
    }
}
