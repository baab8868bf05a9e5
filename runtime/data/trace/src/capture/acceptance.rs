//! Measures the acceptance of draft tokens from the outputs of a capture.

use super::record::RequestRecord;

/// Counts the outputs of a capture by their number of accepted drafts. An output of `n` tokens has `n - 1` accepted
/// drafts.
#[derive(Clone, Debug, Default)]
pub struct AcceptanceTally {
    /// Number of outputs with at least 0, 1, ... accepted drafts.
    outputs: Vec<u64>,
}

impl AcceptanceTally {
    /// Adds the outputs of a request. The first output is left out because it ends the prompt, and the last one
    /// because the end of the request may have cut off accepted drafts.
    pub fn add(&mut self, request: &RequestRecord) {
        let has_ended = request.finish_reason.is_some() || request.end_ns.is_some();
        match &request.gap_tokens {
            Some(tokens) => {
                let counted = tokens.len() - usize::from(has_ended && !tokens.is_empty());
                tokens[..counted].iter().for_each(|tokens| self.add_outputs(*tokens, 1));
            }
            None => self.add_outputs(1, (request.gap_ns.len() as u64).saturating_sub(u64::from(has_ended))),
        }
    }

    fn add_outputs(&mut self, tokens: u32, count: u64) {
        let reached = tokens as usize;
        if self.outputs.len() < reached {
            self.outputs.resize(reached, 0);
        }
        self.outputs[..reached].iter_mut().for_each(|outputs| *outputs += count);
    }

    /// The probabilities, from 0 to 1, that the first, second, ... draft is accepted if all drafts before it were.
    /// Drafts that no output accepted are left out.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        let pairs = self.outputs.windows(2).take_while(|pair| pair[1] > 0);
        pairs.map(|pair| pair[1] as f64 / pair[0] as f64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(gap_tokens: Option<&[u32]>, gaps: usize, end_ns: Option<u64>) -> RequestRecord {
        RequestRecord {
            gap_ns: vec![1; gaps],
            gap_tokens: gap_tokens.map(<[u32]>::to_vec),
            end_ns,
            ..RequestRecord::default()
        }
    }

    #[test]
    fn rates_are_those_of_outputs_within_requests() {
        let mut tally = AcceptanceTally::default();
        assert!(tally.rates().is_empty());
        // Five outputs count, of 3, 1, 2, 3 and 1 tokens.
        tally.add(&request(Some(&[3, 1, 2, 9]), 4, Some(5)));
        tally.add(&request(Some(&[3]), 1, None));
        tally.add(&request(None, 2, Some(5)));
        tally.add(&request(Some(&[]), 0, Some(5)));
        tally.add(&request(None, 0, Some(5)));
        assert_eq!(tally.rates(), [3.0 / 5.0, 2.0 / 3.0]);
    }

    #[test]
    fn outputs_of_one_token_have_no_rates() {
        let mut tally = AcceptanceTally::default();
        tally.add(&request(None, 10, Some(5)));
        assert!(tally.rates().is_empty());
    }
}
