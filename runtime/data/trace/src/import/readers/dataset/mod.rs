//! Reads data sets of prompts and responses: JSON, JSONL, CSV and Parquet.
//!
//! A tokenizer converts prompts and responses to tokens, without special tokens and chat templates. The result is a
//! workload with known answers.

mod keys;
pub(crate) mod table;

use std::io::BufRead;
use std::path::Path;

use crate::capture::{CaptureMeta, ExtraKeys, Holds, PromptChain, PromptHasher, RequestRecord};
use crate::{DATASET_KEYS, DATASET_SPLITS, PARQUET_MAGIC};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use crate::import::error::{Place, Problem};
use crate::import::input::Rows;
use crate::import::input::elements::Each;
use crate::import::output::Out;
use crate::import::readers::workload::as_workload;
use crate::import::tokenizer::Tokenizer;
use crate::import::{Format, ImportError, ImportOptions};

use table::RowSink;

const VLLM_BLOCK_TOKENS: u32 = 16;

/// Reads a data set from a stream. `start` contains the first bytes of the stream.
pub(crate) fn read(
    reader: impl BufRead,
    start: &[u8],
    name: &str,
    options: &ImportOptions,
    out: &mut Out<'_>,
) -> Result<(), ImportError> {
    let mut rows = Dataset::begin(name, options, out)?;
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    match text.first() {
        Some(b'[') => rows.read_document(reader),
        Some(b'{') if !has_whole_first_row(text) => rows.read_document(reader),
        Some(b'{') => rows.read_lines(reader),
        _ if text.starts_with(PARQUET_MAGIC) => crate::import::parquet::read_stream(reader, name, &mut rows),
        _ => table::read_csv(reader, name, &mut rows),
    }
}

pub(crate) fn read_parquet_file(path: &Path, options: &ImportOptions, out: &mut Out<'_>) -> Result<(), ImportError> {
    let name = path.display().to_string();
    let mut rows = Dataset::begin(&name, options, out)?;
    crate::import::parquet::read_file(path, &name, &mut rows)
}

/// Whether the first line is a row. Otherwise it starts a document with a split's name as a key.
fn has_whole_first_row(text: &[u8]) -> bool {
    let row = text.split(|byte| *byte == b'\n').next().unwrap_or(text);
    match serde_json::from_slice::<Map<String, Value>>(row) {
        Ok(row) => !DATASET_SPLITS.iter().any(|split| row.get(*split).is_some_and(Value::is_array)),
        // The first row is longer than the start that was read.
        Err(_) => DATASET_KEYS.iter().any(|key| row.starts_with(format!("{{\"{key}\"").as_bytes())),
    }
}

struct Dataset<'a, 'o> {
    name: &'a str,
    tokenizer: Tokenizer,
    hasher: PromptHasher,
    chain: PromptChain,
    out: &'a mut Out<'o>,
}

impl<'a, 'o> Dataset<'a, 'o> {
    fn begin(name: &'a str, options: &ImportOptions, out: &'a mut Out<'o>) -> Result<Self, ImportError> {
        let path = options.tokenizer.as_ref().ok_or_else(|| ImportError::NoTokenizer { name: name.to_owned() })?;
        let tokenizer = Tokenizer::open(path)?;
        let block_size_tokens = options.block_size_tokens(VLLM_BLOCK_TOKENS);
        out.meta(
            Format::Dataset,
            CaptureMeta {
                block_size_tokens: Some(block_size_tokens),
                holds: Holds { output_tokens: true, prompt_tokens: true, ..Holds::default() },
                other: as_workload(),
                ..CaptureMeta::default()
            },
        )?;
        let hasher = PromptHasher::new(block_size_tokens);
        Ok(Self { name, tokenizer, hasher, chain: PromptChain::default(), out })
    }

    fn record(&mut self, row: &Map<String, Value>) -> Result<RequestRecord, Problem> {
        let pair = keys::pair(row)?;
        let prompt = self.tokens(pair.prompt_key, &pair.prompt)?;
        let answer = self.tokens(pair.response_key, &pair.response)?;
        if prompt.is_empty() {
            return Err(Problem::new(pair.prompt_key, "the prompt has no tokens; every request needs at least one"));
        }
        self.hasher.chain_into(&prompt, &ExtraKeys::default(), &mut self.chain);
        let count = |key, tokens: &[u32]| {
            u32::try_from(tokens.len()).map_err(|_| Problem::new(key, "the text has too many tokens"))
        };
        let output_tokens = count(pair.response_key, &answer)?;
        Ok(RequestRecord {
            prompt_tokens: count(pair.prompt_key, &prompt)?,
            block_hashes: self.chain.blocks.clone(),
            prompt_hash: Some(self.chain.whole),
            prompt_token_ids: Some(prompt),
            output_tokens,
            output_token_ids: Some(answer),
            params: Map::from_iter([("max_tokens".to_owned(), json!(output_tokens))]),
            ..RequestRecord::default()
        })
    }

    fn tokens(&self, key: &'static str, text: &str) -> Result<Vec<u32>, Problem> {
        self.tokenizer.tokens(text).map_err(|problem| Problem::new(key, problem))
    }

    fn read_lines(&mut self, reader: impl BufRead) -> Result<(), ImportError> {
        let mut rows = Rows::new(reader, self.name);
        while let Some((line, row)) = rows.next_as::<Map<String, Value>>(&mut self.out.tally)? {
            self.add(Place::Line(line), &row)?;
        }
        Ok(())
    }

    fn read_document(&mut self, reader: impl BufRead) -> Result<(), ImportError> {
        let mut failed = None;
        let mut deserializer = serde_json::Deserializer::from_reader(reader);
        let name = self.name;
        let document = Document { rows: self, failed: &mut failed };
        let read = deserializer.deserialize_any(document).and_then(|()| deserializer.end());
        match (failed, read) {
            (Some(error), _) => Err(error),
            (None, Err(error)) => Err(Problem::new("", error.to_string()).at(name, Place::File)),
            (None, Ok(())) => Ok(()),
        }
    }
}

impl RowSink for Dataset<'_, '_> {
    fn add(&mut self, place: Place, row: &Map<String, Value>) -> Result<(), ImportError> {
        match self.record(row) {
            Ok(record) => self.out.request(record),
            Err(problem) => self.refuse(place, problem),
        }
    }

    fn refuse(&mut self, place: Place, problem: Problem) -> Result<(), ImportError> {
        self.out.tally.refuse(problem.at(self.name, place))
    }
}

/// An array of rows, or an object with such an array for each split.
struct Document<'r, 'a, 'o> {
    rows: &'r mut Dataset<'a, 'o>,
    failed: &'r mut Option<ImportError>,
}

impl Document<'_, '_, '_> {
    /// Returns a function that adds the rows of the array `split`.
    fn adder<'s>(rows: &'s mut Dataset<'_, '_>, split: &'s str) -> impl FnMut(usize, Value) -> Result<(), ImportError> {
        move |index, value| {
            let place = Place::Path(format!("{split}[{index}]"));
            match value {
                Value::Object(row) => rows.add(place, &row),
                _ => rows.refuse(place, Problem::new("", "invalid row: expected an object; correct the file")),
            }
        }
    }
}

impl<'de> Visitor<'de> for Document<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an array of rows, or an object with one of {}", DATASET_SPLITS.join(", "))
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, array: A) -> Result<(), A::Error> {
        Each { of: &mut Self::adder(self.rows, ""), failed: self.failed }.visit_seq(array).map(drop)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if !DATASET_SPLITS.contains(&key.as_str()) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            map.next_value_seed(Each { of: &mut Self::adder(self.rows, &key), failed: &mut *self.failed })?;
        }
        Ok(())
    }
}
