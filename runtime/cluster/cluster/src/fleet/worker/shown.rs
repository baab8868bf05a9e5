//! Output tokens that an engine keeps until a server sends them.

use vcr_core::TokenSource;

/// A range of the model's token ids. Drawn tokens are mapped into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    /// The lowest token id.
    pub first: u32,
    /// The number of token ids, at least one.
    pub count: u32,
}

/// The request, the index in the output, and the token.
pub(crate) type ShownToken = (u64, u32, u32);

pub(crate) struct ShownTokens {
    range: TokenRange,
    tokens: Vec<ShownToken>,
}

impl ShownTokens {
    pub(super) fn new(range: TokenRange) -> Self {
        Self { range, tokens: Vec::new() }
    }

    pub(super) fn take(&mut self) -> Vec<ShownToken> {
        std::mem::take(&mut self.tokens)
    }
}

/// A token source that also keeps its tokens for the server.
pub(super) struct Showing<'a, S> {
    pub(super) source: S,
    /// Whether the tokens are drawn, so that they must be mapped into the range.
    pub(super) are_drawn: bool,
    pub(super) shown: &'a mut ShownTokens,
}

impl<S: TokenSource> TokenSource for Showing<'_, S> {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        let token = self.source.token(tag, output_index);
        let TokenRange { first, count } = self.shown.range;
        let token = if self.are_drawn { first + token % count.max(1) } else { token };
        self.shown.tokens.push((tag, output_index, token));
        token
    }

    fn extra_tokens(&mut self, tag: u64, max_extra: u32) -> u32 {
        self.source.extra_tokens(tag, max_extra)
    }

    fn accepted_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        self.source.accepted_drafts(tag, num_drafts)
    }
}
