//! Executes scripts on threads with large stacks.
//!
//! Values of a script can contain each other, such as closures that capture closures. The script engine frees them
//! by recursion, so the depth that the memory limit allows needs a large stack. The operating system only allocates
//! the used part of a stack.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Stack sizes. The first size that the process can get is used. A level of nested closures takes about 190 bytes
/// of the 256 MiB that a script may use, and 350 bytes of stack.
const STACK_BYTES: [usize; 3] = [1 << 30, 128 << 20, 8 << 20];

thread_local! {
    /// Whether this thread has a large stack.
    static IS_LARGE: Cell<bool> = const { Cell::new(false) };
}

/// Calls `work` on a thread with a large stack, which may be this thread. The caller waits for the result.
pub(crate) fn with_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if IS_LARGE.get() {
        return work();
    }
    // A thread that cannot be started drops its closure, so the work is passed by reference.
    let work = Mutex::new(Some(work));
    let do_it = || {
        let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        work.expect("one thread takes it")()
    };
    std::thread::scope(|scope| {
        let Some(thread) = start(scope, &do_it) else { return do_it() };
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Starts a thread with a large stack. None if the process may not have another thread.
pub(crate) fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: &'scope (impl Fn() -> T + Sync),
) -> Option<ScopedJoinHandle<'scope, T>> {
    let on_large = || {
        IS_LARGE.set(true);
        work()
    };
    let of = |bytes| Builder::new().name("script".to_owned()).stack_size(bytes).spawn_scoped(scope, on_large).ok();
    STACK_BYTES.into_iter().find_map(of)
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
