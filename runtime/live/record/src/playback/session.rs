//! One playback, shared by all engines.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use vcr_trace::capture::RequestRecord;

use crate::playback::capture_index::{CaptureIndex, PlaybackError};
use crate::playback::index::Row;
use crate::playback::matcher::{Lookup, Match, MatchBy, Matcher, Unmatched};
use crate::playback::params;
use crate::playback::{Counts, Divergence, Divergences};

/// A capture that is being played back. Engines can share it: a record used by one engine is used for all.
pub struct Playback {
    captures: Arc<CaptureIndex>,
    state: Mutex<State>,
}

struct State {
    matcher: Matcher,
    counts: Counts,
    divergences: Divergences,
    has_failed: bool,
}

/// The answer to a request.
#[derive(Debug, Default)]
pub struct Answer {
    /// The record, if one was found.
    pub record: Option<Box<RequestRecord>>,
    /// A log message that says where the prompt diverged, if it did.
    pub divergence: Option<String>,
    /// A log message about different sampling parameters. Set only if the policy is [`Unmatched::Fail`].
    pub other_params: Option<String>,
    /// Whether the request must fail.
    pub is_refused: bool,
    /// Whether the run must end.
    pub ends_run: bool,
}

/// The result of a playback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlaybackReport {
    /// Records of the capture.
    pub records: u32,
    /// Records that were not used.
    pub unused: u32,
    /// The ids of the first unused records.
    pub first_unused: Vec<String>,
    /// Numbers of requests by match result.
    #[serde(flatten)]
    pub counts: Counts,
    /// Requests without a record of the same prompt.
    pub divergences: Divergences,
    /// Whether a divergence made the run fail.
    pub has_failed: bool,
}

/// The maximum number of unused records that a report names.
const MAX_UNUSED: usize = 100;

impl Playback {
    /// Starts a playback of all records.
    ///
    /// # Errors
    /// When records must be matched by content, but have no hashes.
    pub fn new(captures: CaptureIndex, by: MatchBy, policy: Unmatched) -> Result<Self, PlaybackError> {
        if by == MatchBy::Content && !captures.has_hashes() {
            return Err(PlaybackError::NoHashes { path: captures.path().to_owned() });
        }
        let captures = Arc::new(captures);
        let matcher = Matcher::new(Arc::clone(&captures), by, policy);
        let state =
            State { matcher, counts: Counts::default(), divergences: Divergences::default(), has_failed: false };
        Ok(Self { captures, state: Mutex::new(state) })
    }

    /// The records.
    #[must_use]
    pub fn captures(&self) -> &CaptureIndex {
        &self.captures
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave the state inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a record for a request, marks it as used and counts the match.
    pub fn answer(&self, asked: &Lookup<'_>) -> Result<Answer, PlaybackError> {
        let mut state = self.state();
        let found = state.matcher.take(asked);
        let policy = state.matcher.policy();
        state.counts.add(found);
        let is_unmatched = matches!(found, Match::None { .. });
        state.has_failed |= is_unmatched && policy == Unmatched::Fail;
        let is_same = matches!(found, Match::Exact(_) | Match::OtherParams(_));
        let divergence = (!is_same).then(|| state.diverged(asked, found));
        drop(state);
        let record = found.row().map(|row| self.captures.record(row)).transpose()?.map(Box::new);
        let is_reported = policy == Unmatched::Fail && matches!(found, Match::OtherParams(_));
        let other_params = record.as_deref().filter(|_| is_reported).map(|record| {
            let differences = asked.params.map(|asked| params::differences(asked, &record.params)).unwrap_or_default();
            format!(
                "its prompt is in the capture, but no record that is left has its sampling parameters: it gets the answer \
                 of {}, with {}",
                record.external_id.as_ref().or(record.id.as_ref()).map_or("a record without a name", String::as_str),
                differences.join("; ")
            )
        });
        Ok(Answer {
            record,
            other_params,
            divergence,
            is_refused: is_unmatched && matches!(policy, Unmatched::Error | Unmatched::Fail),
            ends_run: is_unmatched && policy == Unmatched::Fail,
        })
    }

    /// The result so far.
    #[must_use]
    pub fn report(&self) -> PlaybackReport {
        let state = self.state();
        let unused = (0..self.captures.num_records()).filter(|&row| state.matcher.is_unused(row));
        PlaybackReport {
            records: self.captures.num_records(),
            unused: state.matcher.num_unused(),
            first_unused: unused.take(MAX_UNUSED).map(|row| self.name(row)).collect(),
            counts: state.counts,
            divergences: state.divergences.clone(),
            has_failed: state.has_failed,
        }
    }

    fn name(&self, row: Row) -> String {
        let record = self.captures.record(row).ok();
        let name = record.and_then(|record| record.external_id.or(record.id));
        name.unwrap_or_else(|| format!("record {row}"))
    }
}

impl State {
    /// Stores a divergence and returns the log message for it.
    fn diverged(&mut self, asked: &Lookup<'_>, found: Match) -> String {
        let block_size_tokens = self.matcher.captures().hasher().block_size_tokens;
        let block = match found {
            Match::Nearest { common_blocks, .. } | Match::None { common_blocks } => common_blocks,
            Match::SameBlocks(_) | Match::Exact(_) | Match::OtherParams(_) => asked.chain.blocks.len() as u32,
        };
        let answered_by = found.row().map(|row| {
            let record = self.matcher.captures().record(row).ok();
            record.and_then(|record| record.external_id.or(record.id)).unwrap_or_else(|| format!("record {row}"))
        });
        let first_divergent_token = block * block_size_tokens;
        let sentence = format!(
            "its prompt of {} tokens is in no record{}: the first block that differs is number {block}, from token \
             {first_divergent_token}; {}",
            asked.prompt_tokens,
            if self.matcher.num_unused() == 0 { " (all records are used up)" } else { "" },
            match &answered_by {
                Some(name) => format!("it gets the answer of {name}"),
                None => "it gets no recorded answer".to_owned(),
            }
        );
        self.divergences.push(|| Divergence {
            id: asked.id.to_owned(),
            prompt_tokens: asked.prompt_tokens,
            first_divergent_block: block,
            first_divergent_token,
            answered_by,
        });
        sentence
    }
}

#[cfg(test)]
mod tests {
    use vcr_trace::capture::{CaptureMeta, ExtraKeys};

    use super::*;

    fn playback(policy: Unmatched) -> Playback {
        let record = |prompt: &[u32], name: &str| {
            let hasher = CaptureIndex::of_records(CaptureMeta::default(), Vec::new()).hasher();
            let chain = hasher.chain(prompt, &ExtraKeys::default());
            RequestRecord {
                prompt_tokens: prompt.len() as u32,
                block_hashes: chain.blocks,
                prompt_hash: Some(chain.whole),
                external_id: Some(name.to_owned()),
                ..RequestRecord::default()
            }
        };
        let records = vec![record(&[7; 40], "long"), record(&[8; 3], "short")];
        Playback::new(CaptureIndex::of_records(CaptureMeta::default(), records), MatchBy::Content, policy)
            .expect("hashes")
    }

    fn ask(playback: &Playback, prompt: &[u32]) -> Answer {
        let chain = playback.captures().hasher().chain(prompt, &ExtraKeys::default());
        let asked = Lookup { prompt_tokens: prompt.len() as u32, id: "live", ..Lookup::of_no_client(&chain) };
        playback.answer(&asked).expect("records in memory")
    }

    #[test]
    fn what_diverges_is_counted_and_reported() {
        let playback = playback(Unmatched::Random);
        assert!(ask(&playback, &[8; 3]).divergence.is_none());
        let mut other = [7; 40];
        other[20] = 0;
        let answer = ask(&playback, &other);
        let sentence = answer.divergence.expect("it diverged");
        assert!(sentence.contains("number 1, from token 16"), "{sentence}");
        assert!(answer.record.is_none() && !answer.is_refused);
        let report = playback.report();
        assert_eq!((report.counts.exact, report.counts.unmatched, report.unused), (1, 1, 1));
        assert_eq!(report.first_unused, ["long"]);
        assert_eq!(report.divergences.first[0].first_divergent_block, 1);
    }

    #[test]
    fn the_policy_decides_what_becomes_of_the_others() {
        let outcome = |policy| {
            let answer = ask(&playback(policy), &[1; 40]);
            (answer.record.is_some(), answer.is_refused, answer.ends_run)
        };
        assert_eq!(outcome(Unmatched::Random), (false, false, false));
        assert_eq!(outcome(Unmatched::Error), (false, true, false));
        assert_eq!(outcome(Unmatched::Nearest), (true, false, false));
        assert_eq!(outcome(Unmatched::Fail), (false, true, true));
    }
}
