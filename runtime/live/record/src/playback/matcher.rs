//! Assigns records to requests. Each record is used once; equal records are used in order of arrival.

use std::sync::Arc;

use serde_json::{Map, Value};
use vcr_trace::capture::{BlockHash, PromptChain};

use crate::playback::capture_index::CaptureIndex;
use crate::playback::index::{Places, Row, Unused, end_by_length};
use crate::playback::params;

/// The property by which requests are matched with records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MatchBy {
    /// By prompt: the hashes of the prompts are compared.
    #[default]
    Content,
    /// By arrival: the first request gets the first record, and so on.
    Index,
    /// By the request id that the client chose.
    Id,
    /// By session: the first request of a session gets the session's first record, and so on.
    Session,
}

/// Handling of a request that matches no record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmatched {
    /// Answer it as if there were no capture.
    #[default]
    Random,
    /// Fail it, and report where it diverged. Only records with exactly the same prompt match.
    Error,
    /// Use the record with the longest common prefix.
    Nearest,
    /// Fail it and the whole run. Only records with exactly the same prompt match.
    Fail,
}

/// The properties of a request that matching uses.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    /// Hashes of the prompt, from [`CaptureIndex::hasher`].
    pub chain: &'a PromptChain,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// The request id in the engine protocol.
    pub id: &'a str,
    /// The request id chosen by the client.
    pub external_id: Option<&'a str>,
    pub session: Option<&'a str>,
    /// Sampling parameters that differ from their defaults, by protocol names. `None` if they must be ignored.
    pub params: Option<&'a Map<String, Value>>,
}

impl<'a> Lookup<'a> {
    /// A request with only a prompt.
    #[must_use]
    pub fn of_no_client(chain: &'a PromptChain) -> Self {
        Self { chain, prompt_tokens: 0, id: "", external_id: None, session: None, params: None }
    }
}

/// The result of matching a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// A record with the same prompt, or the one selected by index, id or session.
    Exact(Row),
    /// A record with the same prompt and other sampling parameters, because no unused record has the requested
    /// ones.
    OtherParams(Row),
    /// A record with the same full blocks and a different tail.
    SameBlocks(Row),
    /// The record with the longest common prefix.
    Nearest {
        /// The record.
        row: Row,
        /// The number of leading blocks that both share.
        common_blocks: u32,
    },
    /// No record.
    None {
        /// The maximum number of leading blocks that an unused record shares with the request. This is also the
        /// index of the first different block.
        common_blocks: u32,
    },
}

impl Match {
    /// The record, if there is one.
    #[must_use]
    pub fn row(&self) -> Option<Row> {
        match *self {
            Self::Exact(row) | Self::OtherParams(row) | Self::SameBlocks(row) | Self::Nearest { row, .. } => Some(row),
            Self::None { .. } => None,
        }
    }
}

/// Assigns the records of a capture to requests.
#[derive(Clone)]
pub struct Matcher {
    captures: Arc<CaptureIndex>,
    by: MatchBy,
    policy: Unmatched,
    unused: Unused,
    num_used: u32,
}

impl Matcher {
    /// Creates a matcher with all records unused.
    #[must_use]
    pub fn new(captures: Arc<CaptureIndex>, by: MatchBy, policy: Unmatched) -> Self {
        let unused = Unused::new(captures.tree());
        Self { captures, by, policy, unused, num_used: 0 }
    }

    /// The records.
    #[must_use]
    pub fn captures(&self) -> &Arc<CaptureIndex> {
        &self.captures
    }

    /// Handling of a request that matches no record.
    #[must_use]
    pub fn policy(&self) -> Unmatched {
        self.policy
    }

    /// The number of unused records.
    #[must_use]
    pub fn num_unused(&self) -> u32 {
        self.captures.num_records() - self.num_used
    }

    /// Whether a record is unused.
    #[must_use]
    pub fn is_unused(&self, row: Row) -> bool {
        self.unused.has(self.captures.tree().place_of(row))
    }

    /// Finds a record for a request and marks it as used.
    ///
    /// Takes time logarithmic in the prompt's length and in the number of records.
    pub fn take(&mut self, asked: &Lookup<'_>) -> Match {
        let found = match self.by {
            MatchBy::Content => self.by_content(asked),
            MatchBy::Index => self.unused.first_of_all().map_or(Match::None { common_blocks: 0 }, Match::Exact),
            MatchBy::Id => {
                let names = asked.external_id.into_iter().chain([asked.id]);
                self.first_unused(names.flat_map(|name| self.captures.rows_of_id(name)))
            }
            MatchBy::Session => {
                self.first_unused(asked.session.into_iter().flat_map(|session| self.captures.rows_of_session(session)))
            }
        };
        if let Some(row) = found.row() {
            self.unused.remove(self.captures.tree().place_of(row));
            self.num_used += 1;
        }
        found
    }

    fn by_content(&self, asked: &Lookup<'_>) -> Match {
        let tree = self.captures.tree();
        let blocks = &asked.chain.blocks;
        let by_length = end_by_length(blocks.last().copied(), asked.prompt_tokens);
        let ends = [asked.chain.whole, by_length].map(|end| tree.ending_at(end));
        let ends = || ends.into_iter().flatten();
        if let Some(row) = ends().filter_map(|places| self.unused.first(places)).min() {
            let params = asked.params.filter(|_| tree.knows_params());
            return params.map_or(Match::Exact(row), |params| self.by_params(params::key(params), row, ends));
        }
        let takes_other_tails = matches!(self.policy, Unmatched::Random | Unmatched::Nearest);
        if takes_other_tails
            && let Some(&last) = blocks.last()
            && let Some(row) = tree.of_last_block(last).and_then(|places| self.unused.first(places))
        {
            return Match::SameBlocks(row);
        }
        let common_blocks = self.common_blocks(blocks) as u32;
        if self.policy != Unmatched::Nearest {
            return Match::None { common_blocks };
        }
        let nearest = match common_blocks {
            0 => self.unused.first_of_all(),
            count => self.below(blocks[count as usize - 1]),
        };
        nearest.map_or(Match::None { common_blocks }, |row| Match::Nearest { row, common_blocks })
    }

    /// Chooses among unused records of one prompt, of which `first` is the earliest: prefers the same parameters,
    /// then unknown parameters.
    fn by_params<E: Iterator<Item = Places>>(&self, params: u64, first: Row, ends: impl Fn() -> E) -> Match {
        let tree = self.captures.tree();
        if params == params::UNKNOWN || tree.params_of(first) == params {
            return Match::Exact(first);
        }
        let with = |params| ends().filter_map(|places| self.unused.first(tree.with_params(places, params))).min();
        let found = with(params).or_else(|| with(params::UNKNOWN));
        found.map_or(Match::OtherParams(first), Match::Exact)
    }

    fn below(&self, hash: BlockHash) -> Option<Row> {
        self.captures.tree().below(hash).and_then(|places| self.unused.first(places))
    }

    /// The maximum number of leading blocks that an unused record shares. Bisection finds it, because a record that
    /// shares a prefix also shares every shorter prefix.
    fn common_blocks(&self, blocks: &[BlockHash]) -> usize {
        blocks.partition_point(|&hash| self.below(hash).is_some())
    }

    fn first_unused(&self, mut rows: impl Iterator<Item = Row>) -> Match {
        rows.find(|&row| self.is_unused(row)).map_or(Match::None { common_blocks: 0 }, Match::Exact)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use vcr_trace::capture::{CaptureMeta, ExtraKeys, RequestRecord};

    use super::*;

    fn meta() -> CaptureMeta {
        CaptureMeta { block_size_tokens: Some(2), ..CaptureMeta::default() }
    }

    /// Builds records with these prompts, in order of arrival.
    fn captures(prompts: &[Vec<u32>], with_whole: bool) -> Arc<CaptureIndex> {
        let hasher = CaptureIndex::of_records(meta(), Vec::new()).hasher();
        let record = |(prompt, arrival_ns): (&Vec<u32>, u64)| {
            let chain = hasher.chain(prompt, &ExtraKeys::default());
            RequestRecord {
                arrival_ns: Some(arrival_ns),
                prompt_tokens: prompt.len() as u32,
                block_hashes: chain.blocks,
                prompt_hash: with_whole.then_some(chain.whole),
                id: Some(format!("r{arrival_ns}")),
                external_id: Some(format!("x{}", arrival_ns % 2)),
                session: Some(format!("s{}", arrival_ns % 3)),
                ..RequestRecord::default()
            }
        };
        Arc::new(CaptureIndex::of_records(meta(), prompts.iter().zip(0..).map(record).collect()))
    }

    fn ask(matcher: &mut Matcher, prompt: &[u32]) -> Match {
        let chain = matcher.captures().hasher().chain(prompt, &ExtraKeys::default());
        let asked = Lookup { prompt_tokens: prompt.len() as u32, ..Lookup::of_no_client(&chain) };
        matcher.take(&asked)
    }

    #[test]
    fn equal_prompts_get_their_records_in_order_of_arrival() {
        let mut matcher =
            Matcher::new(captures(&[vec![1, 2, 3], vec![4], vec![1, 2, 3]], true), MatchBy::Content, Unmatched::Random);
        assert_eq!(ask(&mut matcher, &[1, 2, 3]), Match::Exact(0));
        assert_eq!(ask(&mut matcher, &[1, 2, 3]), Match::Exact(2));
        assert_eq!(matcher.num_unused(), 1);
        assert_eq!(ask(&mut matcher, &[1, 2, 3]), Match::None { common_blocks: 0 });
    }

    #[test]
    fn a_prompt_with_another_tail_gets_the_record_of_its_blocks() {
        let mut matcher =
            Matcher::new(captures(&[vec![1, 2, 3, 4, 5], vec![1, 2, 3]], true), MatchBy::Content, Unmatched::Random);
        assert_eq!(ask(&mut matcher, &[1, 2, 9]), Match::SameBlocks(1), "not the longer one, which came first");
        assert_eq!(ask(&mut matcher, &[1, 2, 9]), Match::None { common_blocks: 1 });
    }

    #[test]
    fn the_nearest_record_shares_most_blocks() {
        let prompts = [vec![1, 2, 7, 8], vec![1, 2, 3, 4, 5, 6], vec![9]];
        let mut matcher = Matcher::new(captures(&prompts, true), MatchBy::Content, Unmatched::Nearest);
        assert_eq!(ask(&mut matcher, &[1, 2, 3, 4, 0, 0]), Match::Nearest { row: 1, common_blocks: 2 });
        assert_eq!(ask(&mut matcher, &[1, 2, 3, 4, 0, 0]), Match::Nearest { row: 0, common_blocks: 1 });
        assert_eq!(ask(&mut matcher, &[1, 2, 3, 4, 0, 0]), Match::Nearest { row: 2, common_blocks: 0 });
        assert_eq!(ask(&mut matcher, &[1, 2, 3, 4, 0, 0]), Match::None { common_blocks: 0 });
    }

    #[test]
    fn without_hashes_of_whole_prompts_their_length_decides() {
        let prompts = [vec![1, 2, 3, 4, 5], vec![1, 2, 3, 4]];
        let mut matcher = Matcher::new(captures(&prompts, false), MatchBy::Content, Unmatched::Random);
        assert_eq!(ask(&mut matcher, &[1, 2, 3, 4]), Match::Exact(1));
        assert_eq!(ask(&mut matcher, &[1, 2, 3, 4]), Match::SameBlocks(0));
    }

    #[test]
    fn names_and_sessions_are_served_in_order() {
        let prompts = vec![vec![1]; 6];
        let chain = vcr_trace::capture::PromptChain::default();
        let asked = |external_id, session| Lookup {
            prompt_tokens: 1,
            id: "r4",
            external_id,
            session,
            ..Lookup::of_no_client(&chain)
        };
        let mut by_id = Matcher::new(captures(&prompts, true), MatchBy::Id, Unmatched::Random);
        let taken: Vec<_> = (0..5).map(|_| by_id.take(&asked(Some("x1"), None)).row()).collect();
        assert_eq!(taken, [Some(1), Some(3), Some(5), Some(4), None], "the name on the wire comes last");
        let mut by_session = Matcher::new(captures(&prompts, true), MatchBy::Session, Unmatched::Random);
        let taken: Vec<_> = (0..3).map(|_| by_session.take(&asked(None, Some("s2"))).row()).collect();
        assert_eq!(taken, [Some(2), Some(5), None]);
        let mut by_index = Matcher::new(captures(&prompts, true), MatchBy::Index, Unmatched::Random);
        let taken: Vec<_> = (0..7).map(|_| by_index.take(&asked(None, None)).row()).collect();
        assert_eq!(taken, [Some(0), Some(1), Some(2), Some(3), Some(4), Some(5), None]);
    }

    #[test]
    fn among_equal_prompts_equal_parameters_go_first() {
        let records = |all: &[serde_json::Value]| {
            let hasher = CaptureIndex::of_records(meta(), Vec::new()).hasher();
            let record = |params: &serde_json::Value| RequestRecord {
                prompt_tokens: 3,
                prompt_hash: Some(hasher.chain(&[1, 2, 3], &ExtraKeys::default()).whole),
                block_hashes: hasher.chain(&[1, 2, 3], &ExtraKeys::default()).blocks,
                params: params.as_object().expect("an object").clone(),
                ..RequestRecord::default()
            };
            Matcher::new(
                Arc::new(CaptureIndex::of_records(meta(), all.iter().map(record).collect())),
                MatchBy::Content,
                Unmatched::Fail,
            )
        };
        let take = |matcher: &mut Matcher, params: serde_json::Value| {
            let chain = matcher.captures().hasher().chain(&[1, 2, 3], &ExtraKeys::default());
            let params = params.as_object().expect("an object");
            matcher.take(&Lookup { prompt_tokens: 3, params: Some(params), ..Lookup::of_no_client(&chain) })
        };
        let (five, fifty) = (json!({"max_tokens": 5, "seed": 1}), json!({"max_tokens": 50, "seed": 2}));
        let mut matcher = records(&[five.clone(), fifty.clone(), fifty.clone(), five.clone()]);
        assert_eq!(take(&mut matcher, fifty.clone()), Match::Exact(1));
        assert_eq!(take(&mut matcher, five.clone()), Match::Exact(0));
        assert_eq!(take(&mut matcher, fifty.clone()), Match::Exact(2));
        assert_eq!(take(&mut matcher, fifty.clone()), Match::OtherParams(3), "better than none");
        assert_eq!(take(&mut matcher, fifty.clone()), Match::None { common_blocks: 0 });
        // Unknown parameters are preferred to different ones.
        let mut matcher = records(&[five.clone(), json!({}), five]);
        assert_eq!(take(&mut matcher, fifty.clone()), Match::Exact(1));
        assert_eq!(take(&mut matcher, fifty.clone()), Match::OtherParams(0));
        let mut matcher = records(&[json!({}), json!({})]);
        assert_eq!(take(&mut matcher, fifty), Match::Exact(0));
    }

    /// The expected match, found by a scan of all records.
    fn by_hand(prompts: &[Vec<u32>], used: &[bool], asked: &[u32]) -> Match {
        let unused = || (0..prompts.len()).filter(|&row| !used[row]);
        let blocks = |prompt: &[u32]| prompt.len() / 2;
        let common =
            |prompt: &[u32]| prompt.chunks_exact(2).zip(asked.chunks_exact(2)).take_while(|(a, b)| a == b).count();
        if let Some(row) = unused().find(|&row| prompts[row] == asked) {
            return Match::Exact(row as Row);
        }
        let same = |&row: &usize| {
            let prompt = &prompts[row];
            blocks(prompt) == blocks(asked) && common(prompt) == blocks(asked)
        };
        if blocks(asked) > 0
            && let Some(row) = unused().find(same)
        {
            return Match::SameBlocks(row as Row);
        }
        let most = unused().map(|row| common(&prompts[row])).max();
        let row = most.and_then(|most| unused().find(|&row| common(&prompts[row]) == most));
        let common_blocks = most.unwrap_or(0) as u32;
        row.map_or(Match::None { common_blocks }, |row| Match::Nearest { row: row as Row, common_blocks })
    }

    proptest! {
        #[test]
        fn matches_are_those_found_by_looking_at_every_record(
            prompts in proptest::collection::vec(proptest::collection::vec(0u32..3, 1..9), 1..20),
            asks in proptest::collection::vec(proptest::collection::vec(0u32..3, 1..9), 1..30),
        ) {
            let mut matcher = Matcher::new(captures(&prompts, true), MatchBy::Content, Unmatched::Nearest);
            let mut used = vec![false; prompts.len()];
            for asked in &asks {
                let found = ask(&mut matcher, asked);
                prop_assert_eq!(found, by_hand(&prompts, &used, asked));
                if let Some(row) = found.row() {
                    used[row as usize] = true;
                }
            }
        }
    }
}
