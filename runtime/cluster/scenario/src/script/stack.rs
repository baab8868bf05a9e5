//! The thread of a script.
//!
//! Values of a script can contain each other: a closure that captures a closure, and so on. The
//! script engine frees them by recursion, so the depth that the limit of memory allows needs a stack
//! of its size. The system gives a stack its memory only where it is used.

use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

/// Stack sizes; the first size that the process may have is taken. A level of nested closures takes about 190
/// bytes of memory, of the 256 MiB that a script has, and 350 bytes of stack.
const STACK_BYTES: [usize; 3] = [1 << 30, 128 << 20, 8 << 20];

/// Does work on a thread with a large stack. The caller waits.
pub(crate) fn with_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    // A thread that does not start drops what it was given, so that is a reference.
    let work = Mutex::new(Some(work));
    let do_it = || {
        let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        work.expect("one thread takes it")()
    };
    std::thread::scope(|scope| {
        let start = |bytes| Builder::new().name("script".to_owned()).stack_size(bytes).spawn_scoped(scope, do_it).ok();
        let Some(thread) = STACK_BYTES.into_iter().find_map(start) else { return do_it() };
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deep(levels: usize) -> usize {
        let bytes = std::hint::black_box([1_u8; 1024]);
        if levels == 0 { 0 } else { usize::from(bytes[levels % 1024]) + deep(levels - 1) }
    }

    #[test]
    fn work_has_more_stack_than_a_usual_thread() {
        assert_eq!(with_large_stack(|| deep(32 << 10)), 32 << 10);
    }
}
