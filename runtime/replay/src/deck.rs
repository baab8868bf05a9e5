//! The records of a capture, ready to be asked for.

use std::path::{Path, PathBuf};

use vcr_trace::capture::{BlockHash, CaptureMeta, PromptHasher, RequestRecord};
use xxhash_rust::xxh3::xxh3_64;

use crate::index::{PromptTree, PromptTreeBuilder, Row, end_by_length};

/// Tokens of a block, where a capture does not say it.
const DEFAULT_BLOCK_SIZE_TOKENS: u32 = 16;

/// What matching must know of a record.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head<'a> {
    /// When it arrived, since the capture began.
    pub arrival_ns: Option<u64>,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Hashes of its full blocks.
    pub block_hashes: &'a [BlockHash],
    /// Hash of its prompt.
    pub prompt_hash: Option<BlockHash>,
    /// Its name on the wire.
    pub id: Option<&'a str>,
    /// The name its sender gave it.
    pub external_id: Option<&'a str>,
    /// Its session.
    pub session: Option<&'a str>,
}

/// Collects the records of a deck.
#[derive(Debug, Default)]
pub struct DeckBuilder {
    tree: PromptTreeBuilder,
    /// By record, in the order of the capture.
    arrivals_ns: Vec<Option<u64>>,
    positions: Vec<u64>,
    ids: Vec<(u64, Row)>,
    sessions: Vec<(u64, Row)>,
    has_hashes: bool,
}

/// Where records are.
enum Store {
    Memory(Vec<RequestRecord>),
}

/// The records of a capture in order of arrival.
pub struct Deck {
    path: PathBuf,
    meta: CaptureMeta,
    tree: PromptTree,
    /// By row: where it is in the store.
    positions: Vec<u64>,
    ids: Vec<(u64, Row)>,
    sessions: Vec<(u64, Row)>,
    has_hashes: bool,
    store: Store,
}

/// How a capture is opened.
#[derive(Clone, Debug, Default)]
pub struct DeckOptions {
    /// Skip and count lines that cannot be used, where they are errors otherwise.
    pub lenient: bool,
    /// What the capture must be of.
    pub expected: Expectation,
}

/// What a capture must be of; `None` is anything.
#[derive(Clone, Debug, Default)]
pub struct Expectation {
    /// Its fingerprint.
    pub fingerprint: Option<String>,
    /// The model, where the capture names one.
    pub model: Option<String>,
}

/// Why a capture cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It holds no request.
    #[error("{}: the capture holds no request that is over, so there is nothing to replay", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// It is of something else.
    #[error(
        "{}: the capture is of {what} {}, but {expected} was expected; replay a capture of that, or drop the option that \
         expects it",
        path.display(),
        found.as_deref().unwrap_or("an unknown one")
    )]
    Unexpected {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// That of the capture.
        found: Option<String>,
        /// What was asked for.
        expected: String,
    },
    /// Nothing in it tells prompts apart.
    #[error(
        "{}: no record has hashes of its prompt, so requests cannot be matched by content; match by index, id or session",
        path.display()
    )]
    NoHashes {
        /// The file.
        path: PathBuf,
    },
}

/// What stands for a name.
pub(crate) fn name_key(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

impl DeckBuilder {
    /// Adds the next record of the capture, which is at `position`.
    pub fn push(&mut self, head: &Head<'_>, position: u64) {
        let pushed = self.positions.len() as Row;
        let last = head.block_hashes.last().copied();
        let end = head.prompt_hash.unwrap_or_else(|| end_by_length(last, head.prompt_tokens));
        self.has_hashes |= head.prompt_hash.is_some() || last.is_some();
        self.tree.push(head.block_hashes.iter().copied(), end);
        self.arrivals_ns.push(head.arrival_ns);
        self.positions.push(position);
        let names = head.external_id.into_iter().chain(head.id.filter(|id| Some(*id) != head.external_id));
        self.ids.extend(names.map(|name| (name_key(name), pushed)));
        self.sessions.extend(head.session.map(|session| (name_key(session), pushed)));
    }

    fn finish(self, path: PathBuf, meta: CaptureMeta, store: Store) -> Deck {
        // Those without an arrival come last, in the order of the capture.
        let mut order: Vec<u32> = (0..self.positions.len() as u32).collect();
        order.sort_by_key(|&pushed| self.arrivals_ns[pushed as usize].unwrap_or(u64::MAX));
        let mut row_of = vec![0; order.len()];
        for (row, &pushed) in (0..).zip(&order) {
            row_of[pushed as usize] = row;
        }
        let by_row = |names: Vec<(u64, Row)>| {
            let mut names: Vec<(u64, Row)> =
                names.into_iter().map(|(key, pushed)| (key, row_of[pushed as usize])).collect();
            names.sort_unstable();
            names
        };
        Deck {
            path,
            meta,
            tree: self.tree.finish(&order),
            positions: order.iter().map(|&pushed| self.positions[pushed as usize]).collect(),
            ids: by_row(self.ids),
            sessions: by_row(self.sessions),
            has_hashes: self.has_hashes,
            store,
        }
    }
}

impl Deck {
    /// A deck of records that are in memory.
    #[must_use]
    pub fn of_records(meta: CaptureMeta, records: Vec<RequestRecord>) -> Self {
        let mut builder = DeckBuilder::default();
        for (record, position) in records.iter().zip(0..) {
            let head = Head {
                arrival_ns: record.arrival_ns,
                prompt_tokens: record.prompt_tokens,
                block_hashes: &record.block_hashes,
                prompt_hash: record.prompt_hash,
                id: record.id.as_deref(),
                external_id: record.external_id.as_deref(),
                session: record.session.as_deref(),
            };
            builder.push(&head, position);
        }
        builder.finish(PathBuf::new(), meta, Store::Memory(records))
    }

    /// The file; empty for records in memory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the capture says of itself.
    #[must_use]
    pub fn meta(&self) -> &CaptureMeta {
        &self.meta
    }

    /// How prompts must be hashed to be compared with those of the capture.
    #[must_use]
    pub fn hasher(&self) -> PromptHasher {
        PromptHasher {
            scheme: self.meta.hash,
            block_size_tokens: self.meta.block_size_tokens.unwrap_or(DEFAULT_BLOCK_SIZE_TOKENS).max(1),
            none_seed: 0,
        }
    }

    /// How many records there are.
    #[must_use]
    pub fn num_records(&self) -> u32 {
        self.positions.len() as u32
    }

    /// Whether records can be told apart by their prompts.
    #[must_use]
    pub fn has_hashes(&self) -> bool {
        self.has_hashes
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When the file has changed or cannot be read any more.
    pub fn record(&self, row: Row) -> Result<RequestRecord, ReplayError> {
        let position = self.positions[row as usize];
        match &self.store {
            Store::Memory(records) => Ok(records[position as usize].clone()),
        }
    }

    /// Memory of the index in bytes, the file's own pages apart.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let names = (self.ids.capacity() + self.sessions.capacity()) * size_of::<(u64, Row)>();
        self.tree.memory_bytes() + self.positions.capacity() * size_of::<u64>() + names
    }

    /// Different prefixes that the index tells apart.
    #[must_use]
    pub fn num_prefixes(&self) -> usize {
        self.tree.num_nodes()
    }

    pub(crate) fn tree(&self) -> &PromptTree {
        &self.tree
    }

    pub(crate) fn rows_of_id(&self, name: &str) -> impl Iterator<Item = Row> + '_ {
        rows_of(&self.ids, name)
    }

    pub(crate) fn rows_of_session(&self, name: &str) -> impl Iterator<Item = Row> + '_ {
        rows_of(&self.sessions, name)
    }
}

/// Rows of a name, the earliest first.
fn rows_of<'a>(names: &'a [(u64, Row)], name: &str) -> impl Iterator<Item = Row> + use<'a> {
    let key = name_key(name);
    let start = names.partition_point(|&(other, _)| other < key);
    names[start..].iter().take_while(move |&&(other, _)| other == key).map(|&(_, row)| row)
}

impl Expectation {
    /// Whether a capture is what it must be.
    fn check(&self, meta: &CaptureMeta, path: &Path) -> Result<(), ReplayError> {
        let unexpected = |what, found: &Option<String>, expected: &str| ReplayError::Unexpected {
            path: path.to_owned(),
            what,
            found: found.clone(),
            expected: expected.to_owned(),
        };
        if let Some(expected) = &self.fingerprint
            && meta.fingerprint.as_ref() != Some(expected)
        {
            return Err(unexpected("fingerprint", &meta.fingerprint, expected));
        }
        match (&self.model, &meta.model) {
            (Some(expected), Some(found)) if expected != found => Err(unexpected("model", &meta.model, expected)),
            _ => Ok(()),
        }
    }
}
