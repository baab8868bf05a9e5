//! Lets other threads end the wait of an engine.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::link::error::LinkError;
use crate::link::system::WakeEvent;

/// Ends the wait of a [`Waiter`](super::Waiter), from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<WakeEvent>);

impl Waker {
    pub(in crate::link) fn new() -> Result<Self, LinkError> {
        let event = WakeEvent::new().map_err(LinkError::system::<io::Error>("make a wake-up event"))?;
        Ok(Self(Arc::new(event)))
    }

    /// Readable after a call of [`Waker::wake`].
    pub(in crate::link) fn fd(&self) -> RawFd {
        self.0.fd()
    }

    /// Whether [`Waker::wake`] was called since the last time.
    pub(in crate::link) fn take_call(&self) -> bool {
        self.0.take_signal()
    }

    /// Ends the current wait, or else the next one.
    pub fn wake(&self) {
        self.0.signal();
    }
}
