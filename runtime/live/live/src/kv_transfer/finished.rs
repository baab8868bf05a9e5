//! Finished prompts between their last step and the notification of their decode engine.

use std::collections::HashMap;

use vcr_core::RequestId;
use vcr_transfer::Room;
use vcr_wire::{EngineCoreOutput, VllmMinor};

/// A finished prompt.
pub(crate) struct Finished {
    pub(crate) id: Box<str>,
    pub(crate) core: RequestId,
    /// By KV-cache group.
    pub(crate) blocks: Vec<Vec<u32>>,
    /// Contents of the prompt's blocks, if bytes move.
    pub(crate) contents: Vec<Vec<u64>>,
    pub(crate) num_tokens: u32,
    pub(crate) cached_tokens: u32,
    pub(crate) tensor_parallel_size: u32,
    pub(crate) version: VllmMinor,
    /// Where a decode engine waits for it, or will.
    pub(crate) room: Option<Room>,
}

/// The answer to a finished prompt whose pages are not written yet. It names the place of the KV,
/// so it is sent when the KV is there. On a GPU the step itself has written it.
pub(crate) struct LateAnswer {
    pub(crate) finished: Finished,
    pub(crate) message: EngineCoreOutput,
    /// The channel to its frontend.
    pub(crate) channel: u32,
    /// Whether it has the request's first token.
    pub(crate) is_first: bool,
}

/// The answers that wait for pages.
#[derive(Default)]
pub(crate) struct LateAnswers {
    /// Answers whose pages are still being written, by the number under which the mover writes them.
    waiting: HashMap<u64, LateAnswer>,
    /// Answers whose pages are written.
    written: Vec<LateAnswer>,
}

impl LateAnswers {
    pub(crate) fn insert(&mut self, id: u64, answer: LateAnswer) {
        self.waiting.insert(id, answer);
    }

    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The pages of one are written.
    pub(crate) fn finish(&mut self, id: u64) {
        self.written.extend(self.waiting.remove(&id));
    }

    /// Takes the answers whose pages were written since the last call.
    pub(crate) fn take_written(&mut self) -> Vec<LateAnswer> {
        std::mem::take(&mut self.written)
    }

    /// Takes the answer of a request that waits, with the mover's number.
    pub(crate) fn remove(&mut self, request: &str) -> Option<(u64, LateAnswer)> {
        let (&id, _) = self.waiting.iter().find(|(_, answer)| &*answer.finished.id == request)?;
        self.waiting.remove(&id).map(|answer| (id, answer))
    }

    /// Names of all that wait.
    pub(crate) fn names(&self) -> Vec<Box<str>> {
        let mut names: Vec<_> = self.waiting.values().map(|answer| answer.finished.id.clone()).collect();
        names.sort_unstable();
        names
    }
}
