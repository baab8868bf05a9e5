//! Ending the waiting of an engine, from other threads.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::link::error::LinkError;
use crate::link::system::WakeEvent;

/// Ends the waiting of a [`Waiter`](super::Waiter), from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<WakeEvent>);

impl Waker {
    pub(in crate::link) fn new() -> Result<Self, LinkError> {
        let event = WakeEvent::new().map_err(LinkError::system::<io::Error>("make a wake-up event"))?;
        Ok(Self(Arc::new(event)))
    }

    /// Readable when someone has called.
    pub(in crate::link) fn fd(&self) -> RawFd {
        self.0.fd()
    }

    /// Whether someone has called since the last time.
    pub(in crate::link) fn take_call(&self) -> bool {
        self.0.take_signal()
    }

    /// Ends the present wait, or the next one if there is none.
    pub fn wake(&self) {
        self.0.signal();
    }
}
