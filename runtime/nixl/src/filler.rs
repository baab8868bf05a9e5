//! The thread that writes the pattern of prompts while they are computed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use vcr_transfer::{Arena, ErrorKind, TransferError};

/// By how much it is nicer than the engine's thread.
const NICENESS: i32 = 5;

/// Writes the pattern that blocks are wanted with, one after the other. Whoever needs a block earlier writes it.
pub(crate) struct Filler {
    blocks: Option<Sender<Vec<u32>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Filler {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no more of them.
    pub(crate) fn start(arena: &Arc<Arena>) -> Result<Self, TransferError> {
        let (blocks, inbox) = channel::<Vec<u32>>();
        let stop = Arc::new(AtomicBool::new(false));
        let (arena, stopped) = (Arc::clone(arena), Arc::clone(&stop));
        let fill = move || {
            // Of this thread alone, on Linux. Best effort.
            _ = rustix::process::setpriority_process(None, NICENESS);
            for block in inbox.iter().flatten() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                arena.materialize(block);
                // A step that is due goes first.
                std::thread::yield_now();
            }
        };
        let thread = std::thread::Builder::new().name("vcr-nixl-fill".to_owned()).spawn(fill).map_err(|reason| {
            let message = format!("cannot start the thread that writes the KV of prompts: {reason}");
            TransferError::new(ErrorKind::Local, message)
        })?;
        Ok(Self { blocks: Some(blocks), stop, thread: Some(thread) })
    }

    /// Passes blocks on.
    pub(crate) fn fill(&self, blocks: Vec<u32>) {
        if let Some(sender) = &self.blocks {
            _ = sender.send(blocks);
        }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.blocks = None;
        if let Some(thread) = self.thread.take() {
            // If it panicked, that was reported where it happened.
            _ = thread.join();
        }
    }
}
