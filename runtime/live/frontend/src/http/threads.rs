//! The threads of the server. Each has a runtime of its own, and a connection stays with
//! its thread: between threads that take each other's work, tasks are woken twice, and the
//! tokens of a step reach clients in another order at each step.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

/// Tasks that a thread has taken over and runs before it looks for others' wake-ups again, at
/// most; more than it takes over at once.
const IN_TURN: u32 = 1024;

/// How long a thread waits for the next large request. Memory that others return to a waiting
/// thread stays occupied until it allocates again or ends.
const KEEP_ALIVE: Duration = Duration::from_millis(10);

/// Threads that serve connections, until this value is dropped.
#[derive(Debug)]
pub struct ServerThreads {
    /// The first one, which also accepts connections.
    first: Runtime,
    others: Vec<Runtime>,
}

impl ServerThreads {
    /// Starts `count` threads, or one if that is 0.
    pub fn start(count: usize) -> io::Result<Self> {
        let others = (1..count).map(|_| start_one()).collect::<Result<_, _>>()?;
        Ok(Self { first: start_one()?, others })
    }

    #[must_use]
    pub fn first(&self) -> &Runtime {
        &self.first
    }

    /// The dealer, which assigns connections to them.
    #[must_use]
    pub fn dealer(&self) -> ThreadPool {
        let handles = std::iter::once(&self.first).chain(&self.others).map(|runtime| runtime.handle().clone());
        ThreadPool { handles: handles.collect(), next: AtomicUsize::new(0) }
    }

    /// Ends them without waiting for their tasks.
    pub fn shut_down(self) {
        for runtime in self.others.into_iter().chain([self.first]) {
            runtime.shutdown_background();
        }
    }
}

/// One worker, but a runtime that can replace it while a large request occupies it. It writes
/// the tokens of a step as soon as the engine wakes it, and so has time slices as the engine's.
fn start_one() -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).thread_name("server").on_thread_start(vcr_live::shorten_time_slice);
    // Tasks run in the order in which the engine wakes them: one out of order would send a token
    // early and its next one late.
    builder.global_queue_interval(IN_TURN).thread_keep_alive(KEEP_ALIVE);
    builder.enable_all().build()
}

/// Deals connections to threads, in turn.
#[derive(Debug, Default)]
pub struct ThreadPool {
    handles: Vec<Handle>,
    next: AtomicUsize,
}

impl ThreadPool {
    /// The thread of the next connection; none if that is the one that accepts it.
    pub(super) fn next(&self) -> Option<&Handle> {
        if self.handles.len() < 2 {
            return None;
        }
        let place = self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len();
        // The first one accepts.
        self.handles.get(place).filter(|_| place > 0)
    }
}
