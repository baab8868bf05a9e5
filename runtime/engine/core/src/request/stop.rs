//! Stops of a request before its length: vLLM's `check_stop`, without lengths.

/// When a request ends before its length, as vLLM's `check_stop` has it (0.30
/// to 0.33, `vllm/v1/core/sched/utils.py`). For each output token `tokens` are
/// asked first, then the length, then `repetition`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopRules {
    /// Output tokens any of which ends the request, in any order: end of
    /// sequence and the client's `stop_token_ids`.
    pub tokens: Vec<u32>,
    /// Output tokens before which `repetition` is not asked. They do not keep
    /// `tokens` from ending the request: as vLLM's sampler never gives one of
    /// those before, so must the [`crate::TokenSource`].
    pub min_tokens: u32,
    /// Ends outputs that repeat themselves.
    pub repetition: Option<Repetition>,
}

/// Outputs end once they end with a pattern that is there `min_count` times in
/// a row (vLLM's `RepetitionDetectionParams`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repetition {
    /// Length of the longest pattern that counts, in tokens. With 0 none does.
    pub max_pattern_tokens: u32,
    /// Length of the shortest pattern that counts, in tokens. 0 is the same as 1.
    pub min_pattern_tokens: u32,
    /// Number of times that the pattern must be there in all. Below 2 nothing counts.
    pub min_count: u32,
}

impl StopRules {
    /// One token that ends the request, and nothing else does.
    #[must_use]
    pub fn of_token(token: u32) -> Self {
        Self { tokens: vec![token], ..Self::default() }
    }

    /// Brings the rules into the form in which they are asked; none if they can
    /// never end a request.
    pub(crate) fn prepared(mut self: Box<Self>) -> Option<Box<Self>> {
        // Clients may name half a vocabulary.
        self.tokens.sort_unstable();
        self.repetition = self.repetition.filter(Repetition::can_end_outputs);
        (!self.tokens.is_empty() || self.repetition.is_some()).then_some(self)
    }

    /// Whether `token` ends the request. Asked of prepared rules only.
    pub(crate) fn end_at_token(&self, token: u32) -> bool {
        self.tokens.binary_search(&token).is_ok()
    }

    /// Whether these outputs repeat themselves too often.
    pub(crate) fn end_by_repetition(&self, outputs: &[u32]) -> bool {
        outputs.len() >= self.min_tokens as usize
            && self.repetition.is_some_and(|repetition| repetition.is_at_end_of(outputs))
    }
}

impl Repetition {
    fn can_end_outputs(&self) -> bool {
        self.min_count >= 2 && self.max_pattern_tokens >= self.min_pattern_tokens.max(1)
    }

    fn is_at_end_of(&self, outputs: &[u32]) -> bool {
        let count = self.min_count as usize;
        let longest = (self.max_pattern_tokens as usize).min(outputs.len() / count);
        (self.min_pattern_tokens.max(1) as usize..=longest).any(|pattern| {
            let tail = &outputs[outputs.len() - pattern * count..];
            // Every token is the one a pattern before it. The end differs soonest.
            tail[pattern..].iter().rev().eq(tail[..tail.len() - pattern].iter().rev())
        })
    }
}
