//! The schema of a step log: one JSON object a line.
//!
//! The names are those of the recordings of the real scheduler. A line of our
//! own logs also says which engine it is of and when the step started.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A request as its log names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Id {
    /// By number, as in recordings of the scheduler and in our own logs.
    Number(u64),
    /// By name, as in captures of a live engine.
    Name(String),
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl From<u64> for Id {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

/// One request's part of a step, in JSON `[request, tokens, computed, kind, [blocks], drafts?]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// Which request.
    pub request: Id,
    /// Tokens computed in this step.
    pub tokens: u32,
    /// Tokens computed or cached before it.
    pub computed: u32,
    /// `n`ew, `p`reempted before, or `r`unning.
    pub kind: char,
    /// Its new blocks; its whole table unless it was running.
    pub blocks: Vec<u32>,
    /// Draft tokens among `tokens`.
    pub drafts: u32,
}

impl Serialize for Scheduled {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { request, tokens, computed, kind, blocks, drafts } = self;
        match drafts {
            0 => (request, tokens, computed, kind, blocks).serialize(serializer),
            _ => (request, tokens, computed, kind, blocks, drafts).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Scheduled {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Row {
            WithDrafts(Id, u32, u32, char, Vec<u32>, u32),
            Plain(Id, u32, u32, char, Vec<u32>),
        }
        let row = Row::deserialize(deserializer).map_err(|_| {
            serde::de::Error::custom("expected [request, tokens, computed tokens, kind, [blocks], drafts if any]")
        })?;
        Ok(match row {
            Row::WithDrafts(request, tokens, computed, kind, blocks, drafts) => {
                Self { request, tokens, computed, kind, blocks, drafts }
            }
            Row::Plain(request, tokens, computed, kind, blocks) => {
                Self { request, tokens, computed, kind, blocks, drafts: 0 }
            }
        })
    }
}

/// A change of the prefix cache. A block number stands for one distinct hash,
/// numbered in order of first appearance in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepEvent {
    /// `["S", parent or null, [blocks]]`
    Stored(Option<u64>, Vec<u64>),
    /// `["R", [blocks]]`
    Removed(Vec<u64>),
    /// `["C"]`
    Cleared,
}

impl Serialize for StepEvent {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Stored(parent, blocks) => ("S", parent, blocks).serialize(serializer),
            Self::Removed(blocks) => ("R", blocks).serialize(serializer),
            Self::Cleared => ("C",).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for StepEvent {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Row {
            Stored(char, Option<u64>, Vec<u64>),
            Removed(char, Vec<u64>),
            Cleared((char,)),
        }
        let expected =
            || serde::de::Error::custom("expected [\"S\", parent or null, [blocks]], [\"R\", [blocks]] or [\"C\"]");
        match Row::deserialize(deserializer).map_err(|_| expected())? {
            Row::Stored('S', parent, blocks) => Ok(Self::Stored(parent, blocks)),
            Row::Removed('R', blocks) => Ok(Self::Removed(blocks)),
            Row::Cleared(('C',)) => Ok(Self::Cleared),
            _ => Err(expected()),
        }
    }
}

/// One line: what was added and aborted, the schedule that followed, and what
/// came of the schedule whose result was applied then (the same one, or under
/// async scheduling the one before).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepLine {
    /// Run of the scenario.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// Pool of the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Index of the engine in its pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<u32>,
    /// Iteration of the engine's loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub i: Option<u64>,
    /// Requests added since the line before, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<Id>,
    /// Requests aborted since the line before, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub abort: Vec<Id>,
    /// Number of the schedule made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s: Option<u64>,
    /// Virtual time at which the step starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<f64>,
    /// How long it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<f64>,
    /// Requests with work, in scheduling order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sched: Option<Vec<Scheduled>>,
    /// All scheduled tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tot: Option<u32>,
    /// Requests preempted, by id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pre: Vec<Id>,
    /// Requests that ended since the schedule before, by id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flush: Vec<Id>,
    /// The running list after scheduling, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Vec<Id>>,
    /// Requests that wait after scheduling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<u64>,
    /// Free blocks after scheduling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<u32>,
    /// What ended the admission of waiting requests, while any wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Prefix-cache counters since they were last taken: requests, queried
    /// tokens, hit tokens, and the same three for preempted requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pc: Option<[u64; 6]>,
    /// Number of the schedule whose result is applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub u: Option<u64>,
    /// Where the model gave other than one token: how many.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sampled: BTreeMap<u64, u32>,
    /// Tokens emitted, by request, in scheduling order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out: Option<Vec<(Id, u32)>>,
    /// Draft tokens proposed for the next step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drafts: Vec<(Id, u32)>,
    /// Requests that ended with this result, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fin: Vec<(Id, String)>,
    /// KV events, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ev: Vec<StepEvent>,
}
