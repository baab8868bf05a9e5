//! Finished prompts between their last step and the notice of their decode engine.

use std::collections::HashMap;

use vcr_core::RequestId;
use vcr_transfer::Room;
use vcr_wire::{EngineCoreOutput, VllmMinor};

pub(crate) struct Finished {
    pub(crate) id: Box<str>,
    pub(crate) core: RequestId,
    /// Block numbers by KV-cache group.
    pub(crate) blocks: Vec<Vec<u32>>,
    /// Contents of the prompt's blocks, if bytes are moved.
    pub(crate) contents: Vec<Vec<u64>>,
    pub(crate) num_tokens: u32,
    pub(crate) cached_tokens: u32,
    pub(crate) tensor_parallel_size: u32,
    pub(crate) version: VllmMinor,
    /// The room in which a decode engine waits for the prompt, now or later.
    pub(crate) room: Option<Room>,
}

/// The answer to a finished prompt whose pages are not written yet. The answer says where the KV is, so it is sent
/// when the KV is written. On a GPU, the step itself writes the KV.
pub(crate) struct LateAnswer {
    pub(crate) finished: Finished,
    pub(crate) message: EngineCoreOutput,
    /// The channel to the frontend.
    pub(crate) channel: u32,
    /// Whether the message has the request's first token.
    pub(crate) is_first: bool,
}

#[derive(Default)]
pub(crate) struct LateAnswers {
    /// Answers whose pages are being written, by the mover's number of the write.
    waiting: HashMap<u64, LateAnswer>,
    /// Answers whose pages are written.
    written: Vec<LateAnswer>,
}

impl LateAnswers {
    pub(crate) fn insert(&mut self, id: u64, answer: LateAnswer) {
        self.waiting.insert(id, answer);
    }

    /// Whether no answer waits for pages.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Records that the pages of an answer are written.
    pub(crate) fn finish(&mut self, id: u64) {
        self.written.extend(self.waiting.remove(&id));
    }

    /// Takes the answers whose pages were written since the last call.
    pub(crate) fn take_written(&mut self) -> Vec<LateAnswer> {
        std::mem::take(&mut self.written)
    }

    /// Takes the answer of a waiting request, with the mover's number of the write.
    pub(crate) fn remove(&mut self, request: &str) -> Option<(u64, LateAnswer)> {
        let (&id, _) = self.waiting.iter().find(|(_, answer)| &*answer.finished.id == request)?;
        self.waiting.remove(&id).map(|answer| (id, answer))
    }

    /// IDs of the requests whose answers wait.
    pub(crate) fn names(&self) -> Vec<Box<str>> {
        let mut names: Vec<_> = self.waiting.values().map(|answer| answer.finished.id.clone()).collect();
        names.sort_unstable();
        names
    }
}
