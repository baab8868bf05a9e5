//! Ending the waiting of an engine, from other threads.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::error::LinkError;

/// Ends the waiting of a [`Waiter`](super::Waiter), from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(super) fn new() -> Result<Self, LinkError> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let bell = eventfd(0, flags).map_err(LinkError::system::<Errno>("make a bell"))?;
        Ok(Self(Arc::new(bell)))
    }

    /// Readable when someone has called.
    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Whether someone has called since the last time.
    pub(super) fn take_call(&self) -> bool {
        rustix::io::read(&*self.0, &mut [0; 8]).is_ok()
    }

    /// Ends the present waiting, or the next one if there is none.
    pub fn wake(&self) {
        // Fails only when it was woken 2^64 times without looking.
        _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}
