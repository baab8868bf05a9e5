//! The priority of threads that move bytes.

/// By how much they are nicer than others, so that an engine's own thread goes first where processors are short.
pub const MOVER_NICENESS: u8 = 5;

/// Makes the calling thread nicer, and those that it starts. Of this thread alone on Linux, and no more than an attempt.
pub fn lower_priority(niceness: u8) {
    if niceness > 0 {
        _ = rustix::process::setpriority_process(None, niceness.into());
    }
}
