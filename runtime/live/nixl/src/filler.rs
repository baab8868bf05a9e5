//! The thread that writes patterns: most while a prompt is computed, and the rest when the prompt is finished.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use vcr_transfer::{Arena, ErrorKind, Held, MOVER_NICENESS, PlaneEvent, TransferError, Wake, lower_priority};

use crate::shared::Shared;

/// Pause between two checks of blocks that NIXL may still write to.
const NAP: Duration = Duration::from_micros(200);

enum Job {
    /// Blocks whose pattern is to be written.
    Prepare(Vec<u32>),
    Finish(Finish),
}

/// A finished prompt with blocks that are not written yet.
pub(crate) struct Finish {
    pub(crate) id: u64,
    /// Blocks whose pattern is to be written.
    pub(crate) missing: Vec<u32>,
    /// Blocks that NIXL may still write to. Their content is set later.
    pub(crate) busy: Vec<Held>,
}

/// Writes patterns: those of finished prompts first, one block of each prompt in turn.
pub(crate) struct Filler {
    jobs: Option<Sender<Job>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Filler {
    pub(crate) fn start(arena: &Arc<Arena>, shared: &Arc<Shared>, wake: &Wake) -> Result<Self, TransferError> {
        let (jobs, inbox) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let writer = Writer {
            arena: Arc::clone(arena),
            shared: Arc::clone(shared),
            wake: Arc::clone(wake),
            prepared: VecDeque::new(),
            finished: Vec::new(),
        };
        let stopped = Arc::clone(&stop);
        let write = move || {
            lower_priority(MOVER_NICENESS);
            writer.run(&inbox, &stopped);
        };
        let thread = std::thread::Builder::new().name("vcr-nixl-fill".to_owned()).spawn(write).map_err(|reason| {
            let message = format!("cannot start the thread that writes the KV of prompts: {reason}");
            TransferError::new(ErrorKind::Local, message)
        })?;
        Ok(Self { jobs: Some(jobs), stop, thread: Some(thread) })
    }

    /// Has the pattern of these blocks written.
    pub(crate) fn prepare(&self, blocks: Vec<u32>) {
        self.pass(Job::Prepare(blocks));
    }

    /// Has the unwritten blocks of a finished prompt written. [`PlaneEvent::Written`] follows, unless the write is
    /// closed before.
    pub(crate) fn finish(&self, finish: Finish) {
        self.pass(Job::Finish(finish));
    }

    fn pass(&self, job: Job) {
        if let Some(sender) = &self.jobs {
            _ = sender.send(job);
        }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            _ = thread.join();
        }
    }
}

struct Writer {
    arena: Arc<Arena>,
    shared: Arc<Shared>,
    wake: Wake,
    prepared: VecDeque<u32>,
    finished: Vec<Finish>,
}

impl Writer {
    fn run(mut self, inbox: &Receiver<Job>, stopped: &AtomicBool) {
        let mut has_work = false;
        while !stopped.load(Ordering::Acquire) {
            if !has_work {
                match inbox.recv_timeout(if self.finished.is_empty() { Duration::MAX } else { NAP }) {
                    Ok(job) => self.take(job),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            inbox.try_iter().for_each(|job| self.take(job));
            has_work = self.write_finished() || self.write_prepared();
            // Yield to a step that is due.
            std::thread::yield_now();
        }
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Prepare(blocks) => self.prepared.extend(blocks),
            Job::Finish(finish) => self.finished.push(finish),
        }
    }

    /// Writes one block of each finished prompt. Returns whether there was one.
    fn write_finished(&mut self) -> bool {
        let mut has_written = false;
        let (arena, shared, wake) = (&self.arena, &self.shared, &self.wake);
        self.finished.retain_mut(|finish| {
            if let Some(block) = finish.missing.pop() {
                arena.materialize(block);
                has_written = true;
            }
            // Do nothing for a cancelled write: another prompt may have its blocks.
            let is_open = shared.while_open(finish.id, || {
                for held in finish.busy.extract_if(.., |held| !shared.is_busy(held.block)) {
                    arena.want(held.block, held.content);
                    finish.missing.push(held.block);
                }
            });
            if is_open && finish.missing.is_empty() && finish.busy.is_empty() {
                if shared.report(PlaneEvent::Written { id: finish.id }) {
                    wake();
                }
                return false;
            }
            is_open
        });
        has_written
    }

    /// Writes one block of a prompt that is being computed. Returns whether there was one.
    fn write_prepared(&mut self) -> bool {
        self.prepared.pop_front().is_some_and(|block| {
            self.arena.materialize(block);
            true
        })
    }
}
