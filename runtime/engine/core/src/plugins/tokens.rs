//! Sources of output tokens outside the engine.
//!
//! The engine calls a [`TokenSource`](crate::TokenSource) for each token. A
//! [`BatchTokenSource`] is called once per step, because its calls are costly.

pub use vcr_policy::tokens::{AcceptedDrafts, TokenRequest, TokenWant};

/// A refusal of a request that a source cannot serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRefusal {
    /// Slot of the request, which started in this call or before and has not ended.
    pub slot: u32,
    /// The source's name as the user knows it.
    pub source: String,
    /// The reason why the source cannot serve the request.
    pub reason: String,
}

/// A source's answer to a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenAnswer {
    /// For each entry of `wants`, in order, exactly `count` tokens. The tokens of refused requests are ignored.
    pub tokens: Vec<u32>,
    /// Requests that must end with an error, each once. As for other requests, a later call has their slots in
    /// `ended`.
    pub refusals: Vec<TokenRefusal>,
    /// Changed numbers of accepted drafts. The last entry for a request counts. For requests without
    /// an entry, the engine's acceptance rates apply.
    pub accepted_drafts: Vec<AcceptedDrafts>,
}

impl TokenAnswer {
    /// Removes the contents and keeps the capacity.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.refusals.clear();
        self.accepted_drafts.clear();
    }

    /// The tokens of each want, in the order of `wants`. `source` is the source's name,
    /// for errors.
    pub fn tokens_by_want<'a>(
        &'a self,
        source: &str,
        wants: &'a [TokenWant],
    ) -> Result<impl Iterator<Item = (&'a TokenWant, &'a [u32])>, TokenError> {
        let wanted: usize = wants.iter().map(|want| want.count as usize).sum();
        if self.tokens.len() != wanted {
            let reason = format!("it returned {} tokens: expected {wanted}", self.tokens.len());
            return Err(TokenError { r#source: source.to_owned(), reason });
        }
        let mut later = self.tokens.as_slice();
        Ok(wants.iter().map(move |want| {
            let (own, rest) = later.split_at(want.count as usize);
            later = rest;
            (want, own)
        }))
    }
}

/// For each slot, the latest number of drafts that a source accepts.
#[derive(Debug, Default)]
pub struct DecidedDrafts(Vec<Option<u32>>);

impl DecidedDrafts {
    /// Records the accepted drafts of an answer.
    pub fn take_over(&mut self, answer: &TokenAnswer) {
        for &AcceptedDrafts { slot, count } in &answer.accepted_drafts {
            let index = slot as usize;
            if self.0.len() <= index {
                self.0.resize(index + 1, None);
            }
            self.0[index] = Some(count);
        }
    }

    /// Whether the source has not decided accepted drafts for any request yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of accepted drafts among `num_drafts` drafts of the request in `slot`. `None` if the source
    /// has not decided it.
    #[must_use]
    pub fn accepted(&self, slot: u32, num_drafts: u32) -> Option<u32> {
        self.0.get(slot as usize).copied().flatten().map(|count| count.min(num_drafts))
    }

    /// Forgets the decision for `slot`, whose request has ended.
    pub fn end(&mut self, slot: u32) {
        if let Some(count) = self.0.get_mut(slot as usize) {
            *count = None;
        }
    }
}

/// Chooses the output tokens of whole steps, one step per call.
///
/// One instance belongs to one engine and may keep state between steps. Equal construction and
/// equal calls must give equal answers.
pub trait BatchTokenSource: Send {
    /// Appends to `answer`: exactly `count` tokens for each want, in order; refusals of requests
    /// that the source cannot serve; and changed numbers of accepted drafts.
    ///
    /// Requests in `ended` leave before requests in `started` arrive, so a slot may be in both. In a call, `wants` has
    /// at most one entry per slot.
    ///
    /// # Errors
    /// If the source cannot choose tokens. The appended tokens are then invalid,
    /// and the source must not be called again.
    fn step(
        &mut self,
        started: &[TokenRequest<'_>],
        ended: &[u32],
        wants: &[TokenWant],
        answer: &mut TokenAnswer,
    ) -> Result<(), TokenError>;
}

/// The reason why a source failed.
#[derive(Debug, thiserror::Error)]
#[error("token source `{source}` failed: {reason}")]
pub struct TokenError {
    /// The source's name as the user knows it. (The field is a raw identifier, because
    /// `thiserror` uses a plain `source` for the underlying error.)
    pub r#source: String,
    /// The problem and what to do about it.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_want_gets_its_own_tokens_and_a_wrong_number_is_an_error() {
        let wants = [TokenWant { slot: 3, first_index: 0, count: 2 }, TokenWant { slot: 1, first_index: 5, count: 1 }];
        let answer = |tokens: &[u32]| TokenAnswer { tokens: tokens.to_vec(), ..TokenAnswer::default() };
        let whole = answer(&[7, 8, 9]);
        let shared: Vec<_> = whole.tokens_by_want("guest", &wants).expect("three were wanted").collect();
        assert_eq!(shared, [(&wants[0], &[7, 8][..]), (&wants[1], &[9][..])]);
        for wrong in [answer(&[7, 8]), answer(&[7, 8, 9, 10])] {
            let error = wrong.tokens_by_want("guest", &wants).err().expect("the number differs");
            let number = wrong.tokens.len();
            assert_eq!(
                error.to_string(),
                format!("token source `guest` failed: it returned {number} tokens: expected 3")
            );
        }
    }

    #[test]
    fn what_was_said_last_of_a_request_holds_until_it_ends() {
        let mut decided = DecidedDrafts::default();
        let say = |decided: &mut DecidedDrafts, said: &[(u32, u32)]| {
            let accepted_drafts = said.iter().map(|&(slot, count)| AcceptedDrafts { slot, count }).collect();
            decided.take_over(&TokenAnswer { accepted_drafts, ..TokenAnswer::default() });
        };
        say(&mut decided, &[]);
        assert!(decided.is_empty());
        say(&mut decided, &[(2, 1), (0, 0), (2, 3)]);
        let accepted = |decided: &DecidedDrafts| [0, 1, 2, 9].map(|slot| decided.accepted(slot, 2));
        assert_eq!(accepted(&decided), [Some(0), None, Some(2), None]);
        decided.end(2);
        decided.end(9);
        assert_eq!(accepted(&decided), [Some(0), None, None, None], "another request has the slot");
    }
}
