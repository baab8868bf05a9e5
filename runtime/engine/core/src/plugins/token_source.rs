//! Output tokens, asked for one by one.

/// Chooses output tokens; the stand-in for the model.
pub trait TokenSource {
    /// The token at `output_index` (from 0) of the request tagged `tag`.
    fn token(&mut self, tag: u64, output_index: u32) -> u32;

    /// Number of further tokens, at most `max_extra`, that come with it in this
    /// step. Only asked where `max_extra_tokens_per_step` is set.
    fn extra_tokens(&mut self, tag: u64, max_extra: u32) -> u32 {
        let _ = (tag, max_extra);
        0
    }

    /// How many of the `num_drafts` (at least 1) drafts verified in this step
    /// are accepted, from the first on.
    fn accepted_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        let _ = (tag, num_drafts);
        0
    }

    /// How many of these `num_drafts` (at least 1) drafts of a request with structured outputs fit its grammar, from the
    /// first on: of those just proposed, or under async scheduling of those about to be verified.
    fn valid_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        let _ = tag;
        num_drafts
    }

    /// Number of drafts, at most `most`, that are proposed for the next step. Not
    /// asked under async scheduling, where the number is always `most`.
    fn proposed_drafts(&mut self, tag: u64, most: u32) -> u32 {
        let _ = tag;
        most
    }
}
