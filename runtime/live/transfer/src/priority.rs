//! The priority of threads that move bytes.

/// Additional niceness of these threads, so that an engine's own thread takes precedence when processors are scarce.
pub const MOVER_NICENESS: u8 = 5;

/// Raises the niceness of the calling thread and of threads that it starts. On Linux, other threads are not
/// affected. Failures are ignored.
pub fn lower_priority(niceness: u8) {
    if niceness > 0 {
        _ = rustix::process::setpriority_process(None, niceness.into());
    }
}
