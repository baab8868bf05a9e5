//! Lengths and other properties of the requests of a synthetic workload.

use std::sync::Arc;

use vcr_base::random::{Distribution, Stream, Weights};

/// The requests of a synthetic workload, or one class of them.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestMix {
    /// New prompt tokens of each turn (rounded, at least 1).
    pub prompt_tokens: Lengths,
    /// Output tokens of each turn (rounded, at least 1).
    pub output_tokens: Lengths,
    /// Leading tokens that requests share, 0 for none. The first turn's prompt has them in addition to
    /// `prompt_tokens`.
    pub shared_prefix_tokens: u32,
    /// Number of different shared prefixes.
    pub prefix_groups: u32,
    /// Turns of a session (rounded, at least 1). Each turn's prompt is the whole conversation so far and
    /// `prompt_tokens` new tokens.
    pub turns: Distribution,
    /// Milliseconds between a turn's last token and the next turn.
    pub think_time_ms: Distribution,
    /// Documents in front of each turn's question.
    pub documents: Option<Documents>,
    /// Images and other multimodal items in each turn.
    pub media: Option<Media>,
    /// Number of output tokens before a stop token, if a stop token ends the output early.
    pub stop_after: Option<Lengths>,
    /// Conversations of a data set. They replace `prompt_tokens`, `output_tokens` and `turns`.
    pub conversations: Option<Arc<Conversations>>,
}

impl RequestMix {
    /// Requests of one turn with these lengths.
    #[must_use]
    pub fn new(prompt_tokens: impl Into<Lengths>, output_tokens: impl Into<Lengths>) -> Self {
        Self {
            prompt_tokens: prompt_tokens.into(),
            output_tokens: output_tokens.into(),
            shared_prefix_tokens: 0,
            prefix_groups: 1,
            turns: Distribution::Constant { value: 1.0 },
            think_time_ms: Distribution::Constant { value: 0.0 },
            documents: None,
            media: None,
            stop_after: None,
            conversations: None,
        }
    }

    /// Whether a session may have more than one turn.
    pub(crate) fn has_turns(&self) -> bool {
        match &self.conversations {
            Some(conversations) => conversations.turns.iter().any(|turns| turns.len() > 1),
            None => self.turns != Distribution::Constant { value: 1.0 },
        }
    }
}

impl From<RequestMix> for Vec<RequestClass> {
    fn from(mix: RequestMix) -> Self {
        vec![RequestClass { weight: 1.0, mix, priority: 0, adapters: None, slo: None }]
    }
}

/// Requests with the same distributions. A workload may have several classes.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestClass {
    /// Frequency of sessions of this class, relative to the other classes.
    pub weight: f64,
    /// Properties of the class's requests.
    pub mix: RequestMix,
    /// Priority that is added to the workload's priority.
    pub priority: i32,
    /// LoRA adapters. Each session uses one.
    pub adapters: Option<Adapters>,
    /// SLO of the class, if it differs from the workload's.
    pub slo: Option<Slo>,
}

/// Numbers of tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Lengths {
    /// Lengths drawn from a distribution.
    Drawn(Distribution),
    /// Lengths drawn from a histogram.
    Counted(Arc<Histogram>),
}

impl From<Distribution> for Lengths {
    fn from(distribution: Distribution) -> Self {
        Self::Drawn(distribution)
    }
}

impl Lengths {
    pub(crate) fn draw(&self, stream: &mut Stream) -> u32 {
        match self {
            Self::Drawn(distribution) => whole(distribution.draw(stream)),
            Self::Counted(histogram) => whole(histogram.draw(stream)),
        }
    }
}

/// Rounds a drawn length to a whole number of at least 1.
pub(crate) fn whole(value: f64) -> u32 {
    value.round().clamp(1.0, f64::from(u32::MAX / 4)) as u32
}

/// Frequencies of lengths, by ranges.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The first and the last length of each range.
    ranges: Vec<(u32, u32)>,
    weights: Weights,
}

impl Histogram {
    /// A histogram of `(first, last, count)` ranges that include both ends.
    pub fn new(ranges: &[(u32, u32, f64)]) -> Result<Self, String> {
        if let Some((from, to, _)) = ranges.iter().find(|(from, to, _)| from > to) {
            return Err(format!("the range from {from} to {to} is empty"));
        }
        let weights = Weights::new(ranges.iter().map(|(.., count)| *count)).map_err(|problem| problem.to_string())?;
        Ok(Self { ranges: ranges.iter().map(|(from, to, _)| (*from, *to)).collect(), weights })
    }

    /// A normal distribution of lengths, clamped to `from` and `to`.
    pub fn clamped_normal(mean: f64, std: f64, from: u32, to: u32) -> Result<Self, String> {
        let below = |length: f64| (1.0 + libm::erf((length - mean) / (std * std::f64::consts::SQRT_2))) / 2.0;
        let share = |length: u32| {
            let start = if length == from { 0.0 } else { below(f64::from(length) - 0.5) };
            let end = if length == to { 1.0 } else { below(f64::from(length) + 0.5) };
            (length, length, (end - start).max(0.0))
        };
        Self::new(&(from..=to).map(share).collect::<Vec<_>>())
    }

    /// Draws a length. All lengths of a range are equally likely.
    fn draw(&self, stream: &mut Stream) -> f64 {
        let (from, to) = self.ranges[self.weights.draw(stream)];
        f64::from(from) + (f64::from(to - from + 1) * stream.unit()).floor()
    }
}

/// A pool of documents that precede questions.
#[derive(Clone, Debug, PartialEq)]
pub struct Documents {
    /// The probability of each document; the first is the most popular.
    pub popularity: Weights,
    /// Tokens of each document. The same document always has the same number of tokens.
    pub tokens: Lengths,
    /// Number of different documents in front of a question (rounded).
    pub per_question: Distribution,
}

/// Images and other multimodal items of prompts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Media {
    /// Number of items in a turn (rounded).
    pub items: Distribution,
    /// Tokens of each item; the model's rule determines the number.
    pub tokens_per_item: u32,
    /// Number of different items, all equally likely; None if every item is new.
    pub distinct: Option<u32>,
    /// Whether placeholder tokens of the prompt represent the items. Otherwise the model is an encoder-decoder: its
    /// encoder reads the latest item before its decoder reads the prompt.
    pub in_prompt: bool,
}

/// LoRA adapters with consecutive numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapters {
    /// The number of the first adapter.
    pub first: u32,
    /// The probability of each adapter.
    pub popularity: Weights,
}

/// Conversations of a data set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversations {
    /// The turns of each conversation: new prompt tokens and output tokens.
    pub turns: Vec<Vec<(u32, u32)>>,
    /// The prompt tokens of each conversation's turns, if the file has them; empty if the tokens are drawn.
    pub prompts: Vec<Vec<Vec<u32>>>,
    /// Whether sessions take conversations in file order rather than at random.
    pub in_order: bool,
}

/// Latency objectives of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slo {
    /// Name of the SLO class.
    pub class: String,
    /// Maximum time from arrival to first token.
    pub ttft_ns: Option<u64>,
    /// Maximum mean gap between tokens.
    pub tpot_ns: Option<u64>,
    /// Maximum time from arrival to last token.
    pub e2e_ns: Option<u64>,
}

impl Slo {
    pub(crate) fn limits(&self) -> vcr_core::policy::Slo {
        let Self { class: _, ttft_ns, tpot_ns, e2e_ns } = *self;
        vcr_core::policy::Slo { ttft_ns, tpot_ns, e2e_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_lengths_end_where_they_are_cut() {
        let histogram = Histogram::clamped_normal(100.0, 10.0, 90, 200).unwrap();
        let mut stream = Stream::new(1, "test");
        let drawn: Vec<f64> = (0..20_000).map(|_| histogram.draw(&mut stream)).collect();
        let at_end = drawn.iter().filter(|length| **length == 90.0).count() as f64 / 20_000.0;
        // Expected share: lengths below 90.5, which are 0.95 standard deviations under the mean.
        assert!((at_end - 0.171).abs() < 0.01, "{at_end}");
        let mean = drawn.iter().sum::<f64>() / 20_000.0;
        assert!((mean - 100.8).abs() < 0.5, "{mean}");
    }

    #[test]
    fn a_histogram_gives_the_lengths_that_were_counted() {
        let histogram = Histogram::new(&[(5, 5, 1.0), (10, 19, 3.0), (50, 60, 0.0)]).unwrap();
        let lengths = Lengths::Counted(Arc::new(histogram));
        let mut stream = Stream::new(1, "test");
        let drawn: Vec<u32> = (0..10_000).map(|_| lengths.draw(&mut stream)).collect();
        let fives = drawn.iter().filter(|length| **length == 5).count();
        assert!((2_300..2_700).contains(&fives), "{fives}");
        assert!(drawn.iter().all(|length| *length == 5 || (10..=19).contains(length)));
        assert!(drawn.contains(&10) && drawn.contains(&19));
        assert_eq!(Histogram::new(&[(5, 4, 1.0)]).unwrap_err(), "the range from 5 to 4 is empty");
        assert_eq!(Histogram::new(&[]).unwrap_err(), "there is nothing to draw from");
    }
}
