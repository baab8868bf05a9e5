//! An index of the records of a capture.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use vcr_trace::capture::{
    BlockHash, CaptureError, CaptureFile, CaptureLine, CaptureMeta, CapturePosition, CaptureReader, CaptureSummary,
    PromptHasher, ReadOptions, RequestRecord,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::playback::index::{PromptTree, PromptTreeBuilder, Row, end_by_length};
use crate::playback::params;

/// The block size of captures that do not state one.
const DEFAULT_BLOCK_SIZE_TOKENS: u32 = 16;

#[derive(Clone, Copy)]
struct Head<'a> {
    arrival_ns: Option<u64>,
    prompt_tokens: u32,
    block_hashes: &'a [BlockHash],
    prompt_hash: Option<BlockHash>,
    id: Option<&'a str>,
    external_id: Option<&'a str>,
    session: Option<&'a str>,
    params: &'a Map<String, Value>,
    has_tokens: bool,
}

#[derive(Debug, Default)]
struct CaptureIndexBuilder {
    tree: PromptTreeBuilder,
    /// The arrival of each record, in capture order.
    arrivals_ns: Vec<Option<u64>>,
    ids: Vec<(u64, Row)>,
    sessions: Vec<(u64, Row)>,
    /// The parameter key of each record.
    params: Vec<u64>,
    has_hashes: bool,
    num_with_tokens: u32,
}

/// The places of the records, by row.
enum Store {
    File(Box<CaptureFile>, Vec<CapturePosition>),
    Memory(Vec<RequestRecord>),
}

/// An engine is expected to register within this many lines.
const FIRST_LINES: usize = 10_000;

/// The records of a capture, in order of arrival.
pub struct CaptureIndex {
    path: PathBuf,
    meta: CaptureMeta,
    summary: CaptureSummary,
    tree: PromptTree,
    num_records: u32,
    ids: Vec<(u64, Row)>,
    sessions: Vec<(u64, Row)>,
    has_hashes: bool,
    num_with_tokens: u32,
    store: Store,
}

/// Options for opening a capture.
#[derive(Clone, Debug, Default)]
pub struct CaptureIndexOptions {
    /// Whether to skip and count invalid lines. Otherwise they are errors.
    pub lenient: bool,
    /// Required properties of the capture.
    pub expected: Expectation,
}

/// Required properties of a capture. `None` accepts any value.
#[derive(Clone, Debug, Default)]
pub struct Expectation {
    pub fingerprint: Option<String>,
    /// The model. A capture that names no model is accepted.
    pub model: Option<String>,
}

/// An error while opening a capture for playback.
#[derive(Debug, thiserror::Error)]
pub enum PlaybackError {
    /// The capture cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error("{}: expected at least one finished request to play back", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The capture has another model or fingerprint than required.
    #[error(
        "{}: invalid {what} of the capture, {}: expected {expected}",
        path.display(),
        found.as_deref().unwrap_or("not known")
    )]
    Unexpected {
        /// The file.
        path: PathBuf,
        /// The property that differs.
        what: &'static str,
        /// The value in the capture.
        found: Option<String>,
        /// The expected value.
        expected: String,
    },
    /// No record has a prompt hash.
    #[error(
        "{}: no record has hashes of its prompt, so requests cannot be matched by content; match by index, id or session",
        path.display()
    )]
    NoHashes {
        /// The file.
        path: PathBuf,
    },
}

pub(crate) fn name_key(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

impl CaptureIndexBuilder {
    fn push(&mut self, head: &Head<'_>) {
        let pushed = self.arrivals_ns.len() as Row;
        let last = head.block_hashes.last().copied();
        let end = head.prompt_hash.unwrap_or_else(|| end_by_length(last, head.prompt_tokens));
        self.has_hashes |= head.prompt_hash.is_some() || last.is_some();
        self.tree.push(head.block_hashes, end);
        self.num_with_tokens += u32::from(head.has_tokens);
        self.arrivals_ns.push(head.arrival_ns);
        self.params.push(params::key(head.params));
        let names = head.external_id.into_iter().chain(head.id.filter(|id| Some(*id) != head.external_id));
        self.ids.extend(names.map(|name| (name_key(name), pushed)));
        self.sessions.extend(head.session.map(|session| (name_key(session), pushed)));
    }

    /// Builds the index, in order of arrival. `store` gets the capture position of each row.
    fn finish(self, path: PathBuf, meta: CaptureMeta, store: impl FnOnce(&[u32]) -> Store) -> CaptureIndex {
        // Records without an arrival come last, in capture order.
        let mut order: Vec<u32> = (0..self.arrivals_ns.len() as u32).collect();
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
        CaptureIndex {
            path,
            meta,
            summary: CaptureSummary::default(),
            tree: self.tree.finish(&order, &self.params),
            num_records: order.len() as u32,
            ids: by_row(self.ids),
            sessions: by_row(self.sessions),
            has_hashes: self.has_hashes,
            num_with_tokens: self.num_with_tokens,
            store: store(&order),
        }
    }
}

impl CaptureIndex {
    /// Indexes records in memory.
    #[must_use]
    pub fn of_records(meta: CaptureMeta, records: Vec<RequestRecord>) -> Self {
        let mut builder = CaptureIndexBuilder::default();
        for record in &records {
            let head = Head {
                arrival_ns: record.arrival_ns,
                prompt_tokens: record.prompt_tokens,
                block_hashes: &record.block_hashes,
                prompt_hash: record.prompt_hash,
                id: record.id.as_deref(),
                external_id: record.external_id.as_deref(),
                session: record.session.as_deref(),
                params: &record.params,
                has_tokens: record.output_tokens == 0 || record.output_token_ids.is_some(),
            };
            builder.push(&head);
        }
        let mut records: Vec<_> = records.into_iter().map(Some).collect();
        let by_row = |order: &[u32]| {
            let taken = order.iter().map(|&pushed| records[pushed as usize].take().unwrap_or_default());
            Store::Memory(taken.collect())
        };
        builder.finish(PathBuf::new(), meta, by_row)
    }

    /// Indexes requests imported from a file of another format, which has no fingerprint.
    ///
    /// # Errors
    /// When they do not have the required properties, or there are none.
    pub fn of_import(
        path: &Path,
        meta: CaptureMeta,
        records: Vec<RequestRecord>,
        options: &CaptureIndexOptions,
    ) -> Result<Self, PlaybackError> {
        options.expected.check(path, &meta, || Ok(None))?;
        if records.is_empty() {
            return Err(PlaybackError::Empty { path: path.to_owned() });
        }
        Ok(Self { path: path.to_owned(), ..Self::of_records(meta, records) })
    }

    /// Opens and scans a capture. Records stay in the file.
    ///
    /// # Errors
    /// When the capture cannot be read, lacks a required property, or is empty.
    pub fn open(path: &Path, options: &CaptureIndexOptions) -> Result<Self, PlaybackError> {
        let read = ReadOptions { lenient: options.lenient };
        let file = CaptureFile::open(path, &read)?;
        options.expected.check(path, file.meta(), || engine_fingerprint(path, &read))?;
        let mut builder = CaptureIndexBuilder::default();
        let mut positions = Vec::new();
        let summary = file.scan(|head| {
            positions.push(head.position);
            builder.push(&Head {
                arrival_ns: head.arrival_ns,
                prompt_tokens: head.prompt_tokens,
                block_hashes: head.block_hashes,
                prompt_hash: head.prompt_hash,
                id: head.id,
                external_id: head.external_id,
                session: head.session,
                params: head.params,
                has_tokens: head.has_tokens,
            });
        })?;
        if positions.is_empty() {
            return Err(PlaybackError::Empty { path: path.to_owned() });
        }
        let meta = file.meta().clone();
        let by_row = |order: &[u32]| {
            Store::File(Box::new(file), order.iter().map(|&pushed| positions[pushed as usize]).collect())
        };
        Ok(Self { summary, ..builder.finish(path.to_owned(), meta, by_row) })
    }

    /// Breaks and skipped lines found during the scan.
    #[must_use]
    pub fn summary(&self) -> &CaptureSummary {
        &self.summary
    }

    /// The file. Empty for records in memory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The capture's meta line.
    #[must_use]
    pub fn meta(&self) -> &CaptureMeta {
        &self.meta
    }

    /// The hasher that makes prompts comparable with the capture.
    #[must_use]
    pub fn hasher(&self) -> PromptHasher {
        PromptHasher {
            scheme: self.meta.hash,
            block_size_tokens: self.meta.block_size_tokens.unwrap_or(DEFAULT_BLOCK_SIZE_TOKENS).max(1),
            none_seed: 0,
            places_media: self.meta.holds.mm_items,
        }
    }

    /// The number of records.
    #[must_use]
    pub fn num_records(&self) -> u32 {
        self.num_records
    }

    /// The number of records that contain all tokens of their answer.
    #[must_use]
    pub fn num_with_tokens(&self) -> u32 {
        self.num_with_tokens
    }

    /// Whether prompts can be told apart by their hashes.
    #[must_use]
    pub fn has_hashes(&self) -> bool {
        self.has_hashes
    }

    /// Whether any record has known sampling parameters. Otherwise the parameters of requests are ignored.
    #[must_use]
    pub fn knows_params(&self) -> bool {
        self.tree.knows_params()
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When the file has changed or can no longer be read.
    pub fn record(&self, row: Row) -> Result<RequestRecord, PlaybackError> {
        match &self.store {
            Store::File(file, positions) => Ok(file.record_at(positions[row as usize])?),
            Store::Memory(records) => Ok(records[row as usize].clone()),
        }
    }

    /// Memory of the index in bytes, without the pages of the file.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let names = (self.ids.capacity() + self.sessions.capacity()) * size_of::<(u64, Row)>();
        let positions = match &self.store {
            Store::File(_, positions) => positions.capacity() * size_of::<CapturePosition>(),
            Store::Memory(_) => 0,
        };
        self.tree.memory_bytes() + positions + names
    }

    /// The number of different prefixes.
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

/// Rows with this name, earliest first.
fn rows_of<'a>(names: &'a [(u64, Row)], name: &str) -> impl Iterator<Item = Row> + use<'a> {
    let key = name_key(name);
    let start = names.partition_point(|&(other, _)| other < key);
    names[start..].iter().take_while(move |&&(other, _)| other == key).map(|&(_, row)| row)
}

impl Expectation {
    fn check(
        &self,
        path: &Path,
        meta: &CaptureMeta,
        of_engines: impl FnOnce() -> Result<Option<String>, CaptureError>,
    ) -> Result<(), PlaybackError> {
        let unexpected = |what, found: Option<String>, expected: &str| PlaybackError::Unexpected {
            path: path.to_owned(),
            what,
            found,
            expected: expected.to_owned(),
        };
        if let Some(expected) = &self.fingerprint {
            let found = match &meta.fingerprint {
                Some(fingerprint) => Some(fingerprint.clone()),
                None => of_engines()?,
            };
            if found.as_ref() != Some(expected) {
                return Err(unexpected("fingerprint", found, expected));
            }
        }
        match (&self.model, &meta.model) {
            (Some(expected), Some(found)) if expected != found => {
                Err(unexpected("model", Some(found.clone()), expected))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the fingerprint of the first engine that has one. Engines register after the first line is written, so
/// the meta line may lack it.
fn engine_fingerprint(path: &Path, read: &ReadOptions) -> Result<Option<String>, CaptureError> {
    let mut reader = CaptureReader::open(path, read)?;
    for _ in 0..FIRST_LINES {
        match reader.next_line()? {
            Some((_, CaptureLine::Engine(engine))) if engine.fingerprint.is_some() => return Ok(engine.fingerprint),
            Some(_) => {}
            None => break,
        }
    }
    Ok(None)
}
