//! Serving, draining, and the reason why an engine stops serving.

/// The reason why an engine has stopped serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A shutdown is complete.
    ShutDown,
    /// All API servers of the frontend are lost.
    FrontendLost,
    /// A fault crashed the engine; `None`: it does not restart.
    Crashed { restart_ns: Option<u64> },
}

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

    /// Begins a shutdown, which waits for requests until `until_ns`.
    pub(crate) fn drain(&mut self, until_ns: u64) {
        self.drain_until_ns = Some(until_ns);
    }

    /// The end of the grace period, if a shutdown has begun.
    pub(crate) fn drain_until_ns(&self) -> Option<u64> {
        self.drain_until_ns
    }

    /// Stops serving after the current turn of the loop.
    pub(crate) fn end(&mut self, end: End) {
        self.end = Some(end);
    }

    /// The reason why serving has stopped; `None` while it continues.
    pub(crate) fn ended(&self) -> Option<End> {
        self.end
    }
}
