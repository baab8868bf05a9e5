//! Matches the observations of both sides.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::error::GateError;
use crate::side::Side;

/// The key by which the caller wants requests to be matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JoinBy {
    /// By request id; by content if no id exists on both sides and both sides have content.
    #[default]
    Auto,
    /// By request id.
    Id,
    /// By content.
    Content,
}

impl FromStr for JoinBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "id" => Ok(Self::Id),
            "content" => Ok(Self::Content),
            _ => Err(format!("invalid join `{text}`: expected auto, id or content")),
        }
    }
}

/// The key by which requests were matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum JoinedBy {
    /// Their ids.
    Id,
    /// Their content. Requests with equal content are matched in their order in the files.
    Content,
}

impl fmt::Display for JoinedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Id => "request id",
            Self::Content => "content",
        })
    }
}

/// Matched observations, as (baseline index, candidate index), in the order of the baseline.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) by: JoinedBy,
    pub(crate) pairs: Vec<(u32, u32)>,
}

pub(crate) fn join(baseline: &Side, candidate: &Side, by: JoinBy) -> Result<Joined, GateError> {
    let with_content = |side: &Side| (0..side.len()).any(|index| side.content(index).is_some());
    match by {
        JoinBy::Id => Ok(by_id(baseline, candidate)),
        JoinBy::Content => {
            for (side, name) in [(baseline, "baseline"), (candidate, "candidate")] {
                if !with_content(side) {
                    let text = "join by id, or mirror sources that have prompts or their hashes";
                    return Err(GateError::Join(format!("no observation of the {name} has `content`: {text}")));
                }
            }
            Ok(by_content(baseline, candidate))
        }
        JoinBy::Auto => {
            let joined = by_id(baseline, candidate);
            if joined.pairs.is_empty() && with_content(baseline) && with_content(candidate) {
                return Ok(by_content(baseline, candidate));
            }
            Ok(joined)
        }
    }
}

fn by_id(baseline: &Side, candidate: &Side) -> Joined {
    let keys = |side: &Side| sorted((0..side.len()).map(|index| (side.id_hash(index), index as u32)));
    let mut pairs = Vec::with_capacity(baseline.len().min(candidate.len()));
    each_key(&keys(baseline), &keys(candidate), |own, others| {
        // Ids are unique on each side, but their hashes may collide.
        for (_, index) in own {
            let id = baseline.id(*index as usize);
            let partner = others.iter().find(|(_, other)| candidate.id(*other as usize) == id);
            pairs.extend(partner.map(|(_, other)| (*index, *other)));
        }
    });
    pairs.sort_unstable();
    Joined { by: JoinedBy::Id, pairs }
}

fn by_content(baseline: &Side, candidate: &Side) -> Joined {
    let keys = |side: &Side| sorted((0..side.len()).filter_map(|index| Some((side.content(index)?, index as u32))));
    let mut pairs = Vec::with_capacity(baseline.len().min(candidate.len()));
    each_key(&keys(baseline), &keys(candidate), |own, others| {
        pairs.extend(own.iter().zip(others).map(|((_, index), (_, other))| (*index, *other)));
    });
    pairs.sort_unstable();
    Joined { by: JoinedBy::Content, pairs }
}

fn sorted(keys: impl Iterator<Item = (u64, u32)>) -> Vec<(u64, u32)> {
    let mut keys: Vec<(u64, u32)> = keys.collect();
    keys.sort_unstable();
    keys
}

/// Calls `each` for every key that both sides have, ascending, with all entries of the key on each side.
fn each_key(left: &[(u64, u32)], right: &[(u64, u32)], mut each: impl FnMut(&[(u64, u32)], &[(u64, u32)])) {
    let mut rest = right;
    for own in left.chunk_by(|a, b| a.0 == b.0) {
        let key = own[0].0;
        let start = rest.iter().position(|other| other.0 >= key).unwrap_or(rest.len());
        let end = rest[start..].iter().position(|other| other.0 > key).map_or(rest.len(), |len| start + len);
        if start < end {
            each(own, &rest[start..end]);
        }
        rest = &rest[end..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Place;
    use crate::observation::{OBSERVATION_VERSION, Observation};

    fn side(all: &[(&str, Option<&str>)]) -> Side {
        let mut side = Side::new();
        side.begin("a");
        for (id, content) in all {
            let observation = Observation {
                version: OBSERVATION_VERSION,
                request_id: (*id).into(),
                content: content.map(Into::into),
                ..Observation::default()
            };
            side.add(&observation, Place::File).expect("there is room");
        }
        side
    }

    fn pairs(left: &[(&str, Option<&str>)], right: &[(&str, Option<&str>)], by: JoinBy) -> (JoinedBy, Vec<(u32, u32)>) {
        let joined = join(&side(left), &side(right), by).expect("they can be joined");
        (joined.by, joined.pairs)
    }

    #[test]
    fn ids_join_whatever_the_order() {
        let left = [("a", None), ("b", None), ("c", None)];
        let found = pairs(&left, &[("c", None), ("x", None), ("a", None)], JoinBy::Auto);
        assert_eq!(found, (JoinedBy::Id, vec![(0, 2), (2, 0)]));
        assert_eq!(pairs(&left, &[("x", None)], JoinBy::Auto), (JoinedBy::Id, vec![]));
    }

    #[test]
    fn contents_join_where_no_id_is_common() {
        let left = [("a", Some("p")), ("b", Some("q")), ("c", Some("p")), ("d", None)];
        let right = [("w", Some("q")), ("x", Some("p")), ("y", Some("p")), ("z", Some("p"))];
        let expected = (JoinedBy::Content, vec![(0, 1), (1, 0), (2, 2)]);
        assert_eq!(pairs(&left, &right, JoinBy::Auto), expected);
        let same_id = [("a", Some("q")), ("x", Some("p"))];
        assert_eq!(pairs(&left, &same_id, JoinBy::Auto), (JoinedBy::Id, vec![(0, 0)]));
        assert_eq!(pairs(&left, &same_id, JoinBy::Content), (JoinedBy::Content, vec![(0, 1), (1, 0)]));
        let error = join(&side(&left), &side(&[("a", None)]), JoinBy::Content).expect_err("there is none");
        assert!(error.to_string().contains("no observation of the candidate has `content`"), "{error}");
    }
}
