//! Finished prompts on their way from their last step to the decode engine that is told of them.

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

/// The answer of a finished prompt whose pages are not written yet: it says where the KV is, so it leaves when that is
/// there. On a GPU the step itself has written it.
pub(crate) struct LateAnswer {
    pub(crate) finished: Finished,
    pub(crate) message: EngineCoreOutput,
    /// The lane to its frontend.
    pub(crate) lane: u32,
    /// Whether it has the request's first token.
    pub(crate) is_first: bool,
}
