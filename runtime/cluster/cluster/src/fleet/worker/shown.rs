//! Output tokens that an engine keeps for a server to send.

use vcr_core::TokenSource;

/// The model's tokens that replace drawn ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    /// The first of them.
    pub first: u32,
    /// Their number, at least one.
    pub count: u32,
}

/// A token with its request and its place in the output.
pub(crate) type ShownToken = (u64, u32, u32);

/// Tokens that an engine has generated since the last call.
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

/// A source that passes its tokens on.
pub(super) struct Showing<'a, S> {
    pub(super) source: S,
    /// Whether they are drawn, and so no tokens of a model.
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
