//! The threads of the server. Each has its own runtime, and a connection stays with its thread. If threads took
//! over each other's tasks, tasks would be woken twice, and the tokens of a step would reach clients in varying
//! order.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

/// Number of tasks that a thread runs before it checks the shared queue again. It exceeds the number of tasks that a
/// thread takes from this queue at once.
const IN_TURN: u32 = 1024;

/// Time for which an extra thread waits for the next large request. A waiting thread keeps memory that other threads
/// freed, until it allocates again or ends.
const KEEP_ALIVE: Duration = Duration::from_millis(10);

/// The threads that serve connections. They stop when this is dropped.
#[derive(Debug)]
pub struct ServerThreads {
    /// The runtime of the first thread, which also accepts connections.
    first: Runtime,
    others: Vec<Runtime>,
}

impl ServerThreads {
    /// Starts `count` threads, but at least one.
    pub fn start(count: usize) -> io::Result<Self> {
        let others = (1..count).map(|_| start_one()).collect::<Result<_, _>>()?;
        Ok(Self { first: start_one()?, others })
    }

    #[must_use]
    pub fn first(&self) -> &Runtime {
        &self.first
    }

    /// Returns the pool that assigns connections to these threads.
    #[must_use]
    pub fn pool(&self) -> ThreadPool {
        let handles = std::iter::once(&self.first).chain(&self.others).map(|runtime| runtime.handle().clone());
        ThreadPool { handles: handles.collect(), next: AtomicUsize::new(0) }
    }

    /// Stops the threads without waiting for their tasks.
    pub fn shut_down(self) {
        for runtime in self.others.into_iter().chain([self.first]) {
            runtime.shutdown_background();
        }
    }
}

/// Starts a runtime with one worker. The runtime can replace the worker while a large request blocks it. The worker
/// sends the tokens of a step as soon as the engine wakes it, so it has the same short time slices as engines.
fn start_one() -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).thread_name("server").on_thread_start(vcr_live::shorten_time_slice);
    // Run tasks in the order in which the engine wakes them. Otherwise one token would be sent early and the next
    // one late.
    builder.global_queue_interval(IN_TURN).thread_keep_alive(KEEP_ALIVE);
    builder.enable_all().build()
}

/// Assigns connections to threads in turn.
#[derive(Debug, Default)]
pub struct ThreadPool {
    handles: Vec<Handle>,
    next: AtomicUsize,
}

impl ThreadPool {
    /// The thread for the next connection. None if it is the accepting thread.
    pub(super) fn next(&self) -> Option<&Handle> {
        if self.handles.len() < 2 {
            return None;
        }
        let place = self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len();
        // The first thread is the accepting one.
        self.handles.get(place).filter(|_| place > 0)
    }
}
