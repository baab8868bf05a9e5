//! Data of requests that is kept for a capture, besides their records.

use vcr_trace::capture::PromptChain;

/// Outputs whose times are kept, over all requests of a run: 256 MiB of them.
const MAX_OUTPUTS: usize = 16 << 20;

/// Data of a request that is kept for a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptRequest {
    /// When the engine emitted each output of its last attempt, and the tokens of each. Not
    /// all of them in runs with very many.
    pub outputs: Vec<(u64, u32)>,
    /// The hashes of its prompt, where the run knows its tokens.
    pub prompt: Option<PromptChain>,
}

/// Requests by tag.
#[derive(Debug, Default)]
pub(super) struct Kept {
    requests: Vec<KeptRequest>,
    outputs: usize,
}

impl Kept {
    pub(super) fn arrive(&mut self) {
        self.requests.push(KeptRequest::default());
    }

    pub(super) fn enter_prompt(&mut self, tag: u64, prompt: PromptChain) {
        self.requests[tag as usize].prompt = Some(prompt);
    }

    pub(super) fn emit(&mut self, tag: u64, num_tokens: u32, at_ns: u64) {
        if num_tokens > 0 && self.outputs < MAX_OUTPUTS {
            self.requests[tag as usize].outputs.push((at_ns, num_tokens));
            self.outputs += 1;
        }
    }

    /// A request has lost its outputs.
    pub(super) fn lose(&mut self, tag: u64) {
        self.requests[tag as usize].outputs.clear();
    }

    pub(super) fn into_requests(self) -> Vec<KeptRequest> {
        self.requests
    }
}
