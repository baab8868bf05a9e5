//! The schema of a step log: one JSON object per line.
//!
//! The field names are those of recordings of the real scheduler. A line of vcr's own logs also names the engine
//! and the start of the step.

use std::collections::BTreeMap;

use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The id of a request in its log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(untagged)]
pub enum Id {
    /// A number, as in recordings of the scheduler and in vcr's own logs.
    Number(u64),
    /// A name, as in captures of a live engine.
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

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IdVisitor;
        impl Visitor<'_> for IdVisitor {
            type Value = Id;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a request's number or name")
            }

            fn visit_u64<E>(self, number: u64) -> Result<Id, E> {
                Ok(Id::Number(number))
            }

            fn visit_str<E>(self, name: &str) -> Result<Id, E> {
                Ok(Id::Name(name.to_owned()))
            }
        }
        deserializer.deserialize_any(IdVisitor)
    }
}

impl From<u64> for Id {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

/// One request's part of a step, in JSON `[request, tokens, computed, kind, [blocks], drafts?]`. Drafts are omitted
/// if there are none. With groups of layers, there is one list of blocks for each group, in which null blocks are
/// 0; a row without new blocks has a single empty list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// The request.
    pub request: Id,
    /// Number of tokens computed in this step.
    pub tokens: u32,
    /// Number of tokens that were computed or cached before this step.
    pub computed: u32,
    /// `n` for a new request, `p` for a request that was preempted before, `r` for a running request.
    pub kind: char,
    /// The request's new blocks. The whole block table if the request was not running.
    pub blocks: Blocks,
    /// Number of draft tokens among `tokens`.
    pub drafts: u32,
}

/// The new blocks of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Blocks {
    /// The blocks of an engine with one group of layers; may be empty.
    One(Vec<u32>),
    /// The blocks by group of layers.
    ByGroup(Vec<Vec<u32>>),
}

impl<'de> Deserialize<'de> for Blocks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        enum Entry {
            Block(u32),
            Group(Vec<u32>),
        }

        impl<'de> Deserialize<'de> for Entry {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct EntryVisitor;
                impl<'de> Visitor<'de> for EntryVisitor {
                    type Value = Entry;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("u32, or an array of them for each group of layers")
                    }

                    fn visit_u64<E: Error>(self, number: u64) -> Result<Entry, E> {
                        let block = u32::try_from(number);
                        block.map(Entry::Block).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
                    }

                    fn visit_seq<A: SeqAccess<'de>>(self, mut group: A) -> Result<Entry, A::Error> {
                        let mut blocks = Vec::new();
                        while let Some(block) = group.next_element()? {
                            blocks.push(block);
                        }
                        Ok(Entry::Group(blocks))
                    }
                }
                deserializer.deserialize_any(EntryVisitor)
            }
        }

        let entries = Vec::<Entry>::deserialize(deserializer)?;
        let (mut one, mut groups) = (Vec::new(), Vec::new());
        for entry in entries {
            match entry {
                Entry::Block(block) => one.push(block),
                Entry::Group(blocks) => groups.push(blocks),
            }
        }
        match (one.is_empty(), groups.is_empty()) {
            (_, true) => Ok(Self::One(one)),
            (true, false) => Ok(Self::ByGroup(groups)),
            (false, false) => Err(D::Error::custom("blocks with and without a group of layers")),
        }
    }
}

/// Blocks that left a sliding window, in JSON `[request, group, [blocks]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowFreed(pub Id, pub u32, pub Vec<u32>);

/// The multimodal items of a request that the encoder computes, by index, in JSON `[request, [items]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encoded(pub Id, pub Vec<u32>);

/// A lookup in a KV connector, in JSON `[request, tokens cached in the engine, further tokens in the connector,
/// whether the load is asynchronous]`. The number of further tokens is null if the connector does not know it yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lookup(pub Id, pub u32, pub Option<u32>, pub bool);

/// A copy between device and host, in JSON `[job, request, [positions in the host]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move(pub u64, pub Id, pub Vec<u32>);

/// The copies that a step starts in the offloading connector, and those that must end before the step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Moves {
    /// Copies from the host, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub load: Vec<Move>,
    /// Copies to the host, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub store: Vec<Move>,
    /// Numbers of the copies for which the step waits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flush: Vec<u64>,
}

/// The report of a KV connector's workers with the result of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvReport {
    /// Requests whose loads ended, including failed loads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recv: Vec<Id>,
    /// Requests that ended and whose KV has been read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub send: Vec<Id>,
    /// Blocks that loads could not fill.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bad: Vec<u32>,
    /// Requests for which no KV arrived.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Id>,
    /// Numbers of the offloading connector's copies that ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<u64>,
}

/// Converts rows to those of vLLM's second model runner, which treats a resumed request as new.
pub(crate) fn hide_resumed(rows: &mut [Scheduled]) {
    for row in rows.iter_mut().filter(|row| row.kind == 'p') {
        row.kind = 'n';
    }
}

/// Converts the rows of an engine without groups to rows with one group, because recorders write either form.
pub(crate) fn with_group(rows: &mut [Scheduled]) {
    for row in rows {
        if let Blocks::One(blocks) = &mut row.blocks
            && !blocks.is_empty()
        {
            row.blocks = Blocks::ByGroup(vec![std::mem::take(blocks)]);
        }
    }
}

impl StepLine {
    /// Converts a line of an engine without groups to the recorded form with one group.
    pub(crate) fn with_group(mut self) -> Self {
        with_group(self.sched.as_deref_mut().unwrap_or_default());
        for event in &mut self.ev {
            if let StepEvent::Stored(.., group) | StepEvent::Removed(.., group) = event {
                *group = Some(0);
            }
        }
        self
    }
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
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Row;
        impl<'de> Visitor<'de> for Row {
            type Value = Scheduled;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("[request, tokens, computed tokens, kind, [blocks], drafts if any]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut row: A) -> Result<Scheduled, A::Error> {
                let scheduled = Scheduled {
                    request: element(&mut row, 0, &self)?,
                    tokens: element(&mut row, 1, &self)?,
                    computed: element(&mut row, 2, &self)?,
                    kind: kind(element(&mut row, 3, &self)?)?,
                    blocks: element(&mut row, 4, &self)?,
                    drafts: row.next_element()?.unwrap_or(0),
                };
                end(row, 6, &self)?;
                Ok(scheduled)
            }
        }
        deserializer.deserialize_seq(Row)
    }
}

fn kind<E: Error>(kind: char) -> Result<char, E> {
    match kind {
        'n' | 'p' | 'r' => Ok(kind),
        other => Err(E::invalid_value(Unexpected::Char(other), &"\"n\", \"p\" or \"r\"")),
    }
}

/// Reads the element at `index` of a row; the element must exist.
fn element<'de, A: SeqAccess<'de>, T: Deserialize<'de>>(
    row: &mut A,
    index: usize,
    visitor: &impl Visitor<'de>,
) -> Result<T, A::Error> {
    row.next_element()?.ok_or_else(|| A::Error::invalid_length(index, visitor))
}

/// Checks that nothing follows the `len` elements that were read.
fn end<'de, A: SeqAccess<'de>>(mut row: A, len: usize, visitor: &impl Visitor<'de>) -> Result<(), A::Error> {
    match row.next_element::<serde::de::IgnoredAny>()? {
        None => Ok(()),
        Some(_) => Err(A::Error::invalid_length(len + 1, visitor)),
    }
}

/// A change of the prefix cache. Each number stands for a distinct block hash; hashes are numbered by their first
/// appearance in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepEvent {
    /// `["S", parent or null, [blocks], group?]`: blocks were stored. The group is present only if there are
    /// several.
    Stored(Option<u64>, Vec<u64>, Option<u32>),
    /// `["R", [blocks], group?]`: blocks were removed.
    Removed(Vec<u64>, Option<u32>),
    /// `["C"]`: the prefix cache was cleared.
    Cleared,
}

impl Serialize for StepEvent {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Stored(parent, blocks, None) => ("S", parent, blocks).serialize(serializer),
            Self::Stored(parent, blocks, Some(group)) => ("S", parent, blocks, group).serialize(serializer),
            Self::Removed(blocks, None) => ("R", blocks).serialize(serializer),
            Self::Removed(blocks, Some(group)) => ("R", blocks, group).serialize(serializer),
            Self::Cleared => ("C",).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for StepEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Row;
        impl<'de> Visitor<'de> for Row {
            type Value = StepEvent;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("[\"S\", parent or null, [blocks]], [\"R\", [blocks]] or [\"C\"], with a group where there are several")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut row: A) -> Result<StepEvent, A::Error> {
                let (event, len) = match element(&mut row, 0, &self)? {
                    'S' => {
                        let (parent, blocks) = (element(&mut row, 1, &self)?, element(&mut row, 2, &self)?);
                        (StepEvent::Stored(parent, blocks, row.next_element()?), 4)
                    }
                    'R' => (StepEvent::Removed(element(&mut row, 1, &self)?, row.next_element()?), 3),
                    'C' => (StepEvent::Cleared, 1),
                    other => return Err(A::Error::invalid_value(Unexpected::Char(other), &self)),
                };
                end(row, len, &self)?;
                Ok(event)
            }
        }
        deserializer.deserialize_seq(Row)
    }
}

pub(crate) const RECORDED_KEYS: &[&str] = &[
    "i", "pause", "add", "more", "abort", "gram", "s", "sched", "tot", "pre", "flush", "run", "wait", "skip", "free",
    "win", "look", "moves", "sync", "enc", "encf", "kv", "pc", "xc", "sd", "u", "sampled", "out", "drafts", "inv",
    "fin", "ev",
];

/// One line: the requests added and aborted, the schedule that followed, and the outputs of the schedule whose
/// result was then applied. That is the same schedule, or the previous one under async scheduling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepLine {
    /// Name of the scenario's run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// Name of the engine's pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Index of the engine in the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<u32>,
    /// Settings of the engine; only in the engine's first line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<serde_json::Map<String, serde_json::Value>>,
    /// Iteration of the engine's loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub i: Option<u64>,
    /// The pause state from this line on: `UNPAUSED`, `PAUSED_NEW` or `PAUSED_ALL`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<String>,
    /// Requests added since the previous line, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<Id>,
    /// Resumable requests that got the next part of their prompt, or its end, since the previous line, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<Id>,
    /// Requests aborted since the previous line, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub abort: Vec<Id>,
    /// Requests whose grammar was compiled since the previous line, and whether the compilation succeeded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gram: Vec<(Id, bool)>,
    /// Number of the schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s: Option<u64>,
    /// Start of the step whose result is in the line: virtual time, or the clock of a live engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<f64>,
    /// Duration of the step whose result is in the line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<f64>,
    /// Scheduled requests, in scheduling order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sched: Option<Vec<Scheduled>>,
    /// Total number of scheduled tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tot: Option<u32>,
    /// Preempted requests, by id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pre: Vec<Id>,
    /// Requests that ended since the previous schedule, by id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flush: Vec<Id>,
    /// The running list after scheduling, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Vec<Id>>,
    /// Number of requests that wait after scheduling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<u64>,
    /// Number of waiting requests that were skipped and not admitted since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip: Option<u64>,
    /// Number of free blocks after scheduling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<u32>,
    /// Blocks that left the sliding windows of running requests during scheduling, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub win: Vec<WindowFreed>,
    /// Lookups in the KV connector, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub look: Vec<Lookup>,
    /// Copies of the offloading connector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moves: Option<Moves>,
    /// Whether KV from the connector is loaded within the step.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sync: bool,
    /// Multimodal items that the encoder computes, in scheduling order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub enc: Vec<Encoded>,
    /// Items that left the encoder cache since the previous schedule, by identity, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub encf: Vec<u64>,
    /// The reason why admission ended, if requests wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The report of the KV connector's workers, which comes with the applied result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv: Option<KvReport>,
    /// Changes of the prefix-cache counters: requests, queried tokens and hit tokens, first for new and then for
    /// preempted requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pc: Option<[u64; 6]>,
    /// The same changes for lookups in a KV connector. They count tokens beyond those cached in the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xc: Option<[u64; 6]>,
    /// Changes of the draft counters: requests with verified drafts, drafts, and accepted drafts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sd: Option<[u64; 3]>,
    /// Number of the schedule whose result is applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub u: Option<u64>,
    /// Number of sampled tokens, for requests for which it is not 1.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sampled: BTreeMap<u64, u32>,
    /// Number of emitted tokens by request, in scheduling order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out: Option<Vec<(Id, u32)>>,
    /// Number of draft tokens proposed for the next step, by request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drafts: Vec<(Id, u32)>,
    /// Number of drafts that do not fit the request's grammar. These are drafts proposed for the next step, or
    /// under async scheduling drafts verified in this step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inv: Vec<(Id, u32)>,
    /// Requests that ended with this result, with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fin: Vec<(Id, String)>,
    /// KV events, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ev: Vec<StepEvent>,
}
