//! The outputs of an answer, with the times that a load generator measured.

use crate::capture::RequestRecord;

use crate::import::output::Tally;

/// The times and tokens of an answer's outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outputs {
    /// Nanoseconds from the start of the request to the first output.
    pub first_ns: u64,
    /// Nanoseconds from each output to the next.
    pub gaps_ns: Vec<u64>,
    /// Number of tokens of each output; empty if each has one token.
    pub tokens: Vec<u32>,
    /// Whether the tokens of each output are unknown, so that they were spread evenly.
    pub is_spread: bool,
}

impl Outputs {
    /// Computes the outputs of an answer with `tokens` tokens from the times of the pieces in which it came.
    ///
    /// A piece may have no token: servers send the role before the first token and the finish reason after the
    /// last. If there are one or two pieces more than tokens, these are the extra pieces. If there are still more,
    /// pieces that came directly after another one are joined with it. If there are fewer pieces than tokens, the
    /// first piece has one token, and the other tokens are spread evenly over the other pieces.
    #[must_use]
    pub fn of_pieces(first_ns: u64, gaps_ns: Vec<u64>, tokens: u32) -> Self {
        let mut outputs = Self { first_ns, gaps_ns, ..Self::default() };
        let pieces = outputs.gaps_ns.len() + 1;
        let tokens = tokens as usize;
        if pieces > tokens {
            outputs.join(pieces - tokens.max(1));
        } else if pieces < tokens {
            outputs.is_spread = true;
            outputs.tokens = spread(tokens, pieces);
        }
        outputs
    }

    fn join(&mut self, surplus: usize) {
        let ends = [0, self.gaps_ns.len().saturating_sub(1)];
        let mut by_length: Vec<usize> = match surplus <= ends.len() && self.gaps_ns.len() > 1 {
            true => ends.to_vec(),
            false => (0..self.gaps_ns.len()).collect(),
        };
        by_length.sort_by_key(|index| (self.gaps_ns[*index], *index));
        by_length.truncate(surplus);
        by_length.sort_unstable();
        let last = self.gaps_ns.len();
        let mut joined = by_length.into_iter().peekable();
        let mut kept: Vec<u64> = Vec::with_capacity(last - surplus.min(last));
        for (index, gap_ns) in std::mem::take(&mut self.gaps_ns).into_iter().enumerate() {
            if joined.next_if_eq(&index).is_none() {
                kept.push(gap_ns);
            } else if index + 1 < last {
                // The token came with the later piece.
                let before = kept.last_mut().unwrap_or(&mut self.first_ns);
                *before = before.saturating_add(gap_ns);
            }
        }
        self.gaps_ns = kept;
    }

    /// Nanoseconds from the start of the request to each output.
    #[must_use]
    pub fn after_ns(&self) -> Vec<u64> {
        let mut after_ns = self.first_ns;
        let later = self.gaps_ns.iter().map(|gap_ns| {
            after_ns = after_ns.saturating_add(*gap_ns);
            after_ns
        });
        std::iter::once(self.first_ns).chain(later).collect()
    }

    /// Sets the outputs of a record. The record's number of tokens must be set.
    pub(crate) fn enter(self, record: &mut RequestRecord, tally: &mut Tally) {
        if record.output_tokens == 0 {
            return;
        }
        if self.is_spread {
            tally.note("requests with fewer outputs than tokens, which were spread evenly over them");
        }
        record.ttft_ns = Some(self.first_ns);
        if let [first, later @ ..] = &self.tokens[..] {
            record.first_tokens = (*first != 1).then_some(*first);
            record.gap_tokens = (!later.is_empty()).then(|| later.to_vec());
        }
        record.gap_ns = self.gaps_ns;
    }
}

/// Number of tokens of each piece, if there are fewer pieces than tokens.
fn spread(tokens: usize, pieces: usize) -> Vec<u32> {
    // A number of tokens fits into 32 bits.
    let Some(later) = pieces.checked_sub(1).filter(|later| *later > 0) else { return vec![tokens as u32] };
    let until = |piece: usize| (tokens - 1) as u64 * piece as u64 / later as u64;
    std::iter::once(1).chain((0..later).map(|piece| (until(piece + 1) - until(piece)) as u32)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pieces_without_tokens_count_with_their_neighbours() {
        let plain = Outputs::of_pieces(100, vec![10, 11, 12], 4);
        assert_eq!((plain.first_ns, &plain.gaps_ns[..], plain.tokens.len()), (100, &[10, 11, 12][..], 0));
        // The role arrived one nanosecond before the first token.
        let with_role = Outputs::of_pieces(100, vec![1, 10, 11], 3);
        assert_eq!((with_role.first_ns, &with_role.gaps_ns[..]), (101, &[10, 11][..]));
        let with_burst = Outputs::of_pieces(100, vec![2, 10, 1], 4 - 1);
        assert_eq!((with_burst.first_ns, &with_burst.gaps_ns[..]), (100, &[2, 10][..]), "the end is nearer");
        let inside = Outputs::of_pieces(100, vec![5, 1, 11], 3);
        assert_eq!((inside.first_ns, &inside.gaps_ns[..]), (105, &[1, 11][..]), "only the ends have no token");
        // In addition, the finish reason arrived two nanoseconds after the last token.
        let with_both = Outputs::of_pieces(100, vec![1, 10, 11, 2], 3);
        assert_eq!((with_both.first_ns, &with_both.gaps_ns[..]), (101, &[10, 11][..]));
        assert_eq!(with_both.after_ns(), [101, 111, 122]);
    }

    #[test]
    fn tokens_are_spread_over_fewer_pieces() {
        let outputs = Outputs::of_pieces(100, vec![10, 10, 10], 9);
        assert_eq!((outputs.tokens, outputs.is_spread), (vec![1, 2, 3, 3], true));
        assert_eq!(Outputs::of_pieces(100, vec![], 9).tokens, [9]);
        assert!(Outputs::of_pieces(100, vec![5], 0).gaps_ns.is_empty());
    }

    proptest! {
        /// A capture only accepts outputs whose tokens add up to the total.
        #[test]
        fn tokens_of_outputs_add_up(gaps_ns in prop::collection::vec(0..50u64, 0..20), tokens in 1..60u32) {
            let end_ns = 100 + gaps_ns.iter().sum::<u64>();
            let outputs = Outputs::of_pieces(100, gaps_ns, tokens);
            let sum = match outputs.tokens.len() {
                0 => outputs.gaps_ns.len() as u32 + 1,
                count => {
                    prop_assert_eq!(count, outputs.gaps_ns.len() + 1);
                    prop_assert!(outputs.tokens.iter().all(|tokens| *tokens > 0));
                    outputs.tokens.iter().sum()
                }
            };
            prop_assert_eq!(sum, tokens);
            prop_assert!(outputs.after_ns().last().is_some_and(|last_ns| *last_ns <= end_ns));
        }
    }
}
