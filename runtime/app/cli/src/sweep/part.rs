//! The file of a shard: a first line that identifies the grid, and a line for each point.
//!
//! The first line has a digest of everything that affects results, except the contents of files. Files have their own
//! digests, so that an error can name the file that differs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use vcr_base::output::OutputFile;

use crate::refusal::Refusal;
use crate::sweep::shard::{MAX_SHARDS, Shard};
use crate::sweep::{Axis, MAX_POINTS};

/// Version of the format.
const LAYOUT: u32 = 1;

const MAX_BYTES: u64 = 4 << 30;

/// The command of a sweep, which determines the type of its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SweepKind {
    Run,
    Search,
    Replay,
}

/// The first line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) vcr_shard: u32,
    pub(crate) vcr_version: String,
    pub(crate) kind: SweepKind,
    pub(crate) axes: Vec<Axis>,
    /// Number of points in the whole grid.
    pub(crate) points: usize,
    /// Whether each point was executed with several seeds.
    pub(crate) is_repeated: bool,
    /// Digest of all options that affect results.
    pub(crate) grid: String,
    pub(crate) shard: Shard,
    /// Digests of the files that were read, by path.
    pub(crate) inputs: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct Line<T> {
    point: usize,
    result: T,
    /// Digests of the files that were first read for this point. Only in the file of a running sweep.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    inputs: BTreeMap<String, String>,
}

impl Header {
    /// Makes a header. `settings` are the options of all points as text; equal options must give equal text.
    pub(crate) fn new(kind: SweepKind, axes: &[Axis], points: usize, shard: Shard, settings: &str) -> Self {
        let axes = axes.to_vec();
        let identity = serde_json::json!({ "kind": kind, "axes": axes, "settings": settings });
        let grid = hex::encode(Sha256::digest(identity.to_string()));
        let vcr_version = env!("CARGO_PKG_VERSION").to_owned();
        let inputs = BTreeMap::new();
        Self { vcr_shard: LAYOUT, vcr_version, kind, axes, points, is_repeated: false, grid, shard, inputs }
    }

    /// Adds digests of files. Irregular files have none, because they cannot be read twice.
    pub(crate) fn digest_inputs(&mut self, paths: &[PathBuf]) -> io::Result<()> {
        for path in paths.iter().filter(|path| vcr_base::input::is_regular(path)) {
            let of_path =
                |error: io::Error| io::Error::new(error.kind(), format!("cannot read `{}`: {error}", path.display()));
            // The path of an object's copy differs between machines, its URL does not.
            let name = vcr_base::input::remote::named(path);
            self.inputs.insert(name.display().to_string(), digest(path).map_err(of_path)?);
        }
        Ok(())
    }

    /// Adds the digest of a script that is not in a file, under this name.
    pub(crate) fn digest_text(&mut self, name: &str, text: &str) {
        self.inputs.insert(name.to_owned(), hex::encode(Sha256::digest(text)));
    }
}

pub(crate) fn digest(path: &Path) -> io::Result<String> {
    const BUFFER_BYTES: usize = 256 << 10;
    let (mut file, mut hash, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; BUFFER_BYTES]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex::encode(hash.finalize())),
            bytes => hash.update(&buffer[..bytes]),
        }
    }
}

/// Writes the complete file of a shard.
pub(crate) fn write_file<'a, T: Serialize + 'a>(
    file: OutputFile,
    mut header: Header,
    inputs: &[PathBuf],
    results: impl IntoIterator<Item = (usize, &'a T)>,
) -> Result<(), Refusal> {
    header.digest_inputs(inputs).map_err(|error| Refusal::input(error.to_string()))?;
    Ok(file.write_with(|out| write(out, &header, results))?)
}

/// Writes the header and the results of a shard.
fn write<'a, T: Serialize + 'a>(
    out: &mut dyn Write,
    header: &Header,
    results: impl IntoIterator<Item = (usize, &'a T)>,
) -> io::Result<()> {
    serde_json::to_writer(&mut *out, header)?;
    writeln!(out)?;
    for (point, result) in results {
        serde_json::to_writer(&mut *out, &Line { point, result, inputs: BTreeMap::new() })?;
        writeln!(out)?;
    }
    Ok(())
}

/// The text without an unterminated last line.
pub(crate) fn whole_lines(text: &str) -> &str {
    text.rfind('\n').map_or("", |end| &text[..=end])
}

/// The contents of a shard's file.
pub(crate) struct Part {
    pub(crate) path: PathBuf,
    pub(crate) header: Header,
    /// Results by point number.
    results: BTreeMap<usize, Box<RawValue>>,
}

impl Part {
    /// Makes a part from results, as JSON by point number.
    pub(crate) fn of(path: PathBuf, header: Header, results: BTreeMap<usize, Box<RawValue>>) -> Self {
        Self { path, header, results }
    }

    /// Reads the file of a shard.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text =
            vcr_base::input::read_text(path, MAX_BYTES).map_err(|error| format!("`{}`: {error}", path.display()))?;
        Self::of_text(path, &text)
    }

    /// Parses the contents of a shard's file. An unterminated last line of a killed process is ignored.
    pub(super) fn of_text(path: &Path, text: &str) -> Result<Self, String> {
        let at = |line: usize, why: &str| format!("{}:{line}: invalid shard: {why}", path.display());
        let mut lines = text.lines();
        let mut header: Header = match lines.next().map(serde_json::from_str) {
            Some(Ok(header)) => header,
            _ => return Err(at(1, "expected the first line of a file that --shard has written")),
        };
        let Header { vcr_shard, points, shard, axes, .. } = &header;
        let combinations = axes.iter().try_fold(1_usize, |count, axis| count.checked_mul(axis.values.len()));
        if *vcr_shard != LAYOUT {
            return Err(at(
                1,
                &format!("expected layout {LAYOUT}, got {vcr_shard}; merge it with the vcr that wrote it"),
            ));
        }
        if !(1..=MAX_SHARDS).contains(&shard.count)
            || shard.index >= shard.count
            || *points > MAX_POINTS
            || combinations != Some(*points)
        {
            return Err(at(1, "expected a shard K/N with K below N, and as many points as axes have combinations"));
        }
        let mut results = BTreeMap::new();
        for (index, line) in lines.enumerate() {
            let line_number = index + 2;
            let parsed: Result<Line<Box<RawValue>>, _> = serde_json::from_str(line);
            let is_cut = !text.ends_with('\n') && whole_lines(text).lines().count() < line_number;
            if parsed.is_err() && is_cut {
                break;
            }
            let Ok(Line { point, result, inputs }) = parsed else {
                return Err(at(line_number, "expected an object with `point` and `result`"));
            };
            header.inputs.extend(inputs);
            if point >= header.points || !header.shard.has(point) {
                return Err(at(
                    line_number,
                    &format!("point {point} is not in shard {} of {} points", header.shard, header.points),
                ));
            }
            if results.insert(point, result).is_some() {
                return Err(at(line_number, &format!("point {point} occurs twice")));
            }
        }
        Ok(Self { path: path.to_owned(), header, results })
    }

    /// Number of results.
    pub(crate) fn len(&self) -> usize {
        self.results.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    /// Points of the shard without a result, because it was stopped.
    pub(crate) fn missing(&self) -> Vec<usize> {
        let Header { shard, points, .. } = &self.header;
        (0..*points).filter(|point| shard.has(*point) && !self.results.contains_key(point)).collect()
    }

    /// The results with their point numbers.
    pub(crate) fn results<T: DeserializeOwned>(&self) -> Result<Vec<(usize, T)>, String> {
        let of_point = |point: &usize, result: &RawValue| {
            let parsed = serde_json::from_str(result.get());
            let why = |error| format!("{}: invalid result of point {point}: {error}", self.path.display());
            Ok((*point, parsed.map_err(why)?))
        };
        self.results.iter().map(|(point, result)| of_point(point, result)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let axis = Axis { name: "rate".to_owned(), values: ["1", "2", "3"].map(str::to_owned).to_vec() };
        Header::new(SweepKind::Run, &[axis], 3, Shard { index: 0, count: 2 }, "seed=1")
    }

    fn read(text: &str) -> Result<Part, String> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("it is writable");
        Part::read(file.path())
    }

    #[test]
    fn a_shard_is_read_as_it_was_written() {
        let mut out = Vec::new();
        let results = [0.1_f64, 1.0 / 3.0];
        write(&mut out, &header(), [(0, &results[0]), (2, &results[1])]).expect("a vector takes everything");
        let part = read(std::str::from_utf8(&out).expect("text")).expect("valid");
        assert_eq!((&part.header, part.missing()), (&header(), vec![]));
        assert_eq!(part.results::<f64>(), Ok(vec![(0, results[0]), (2, results[1])]));
        assert!(part.results::<String>().is_err());
    }

    #[test]
    fn other_lines_are_refused_where_they_are() {
        let first = serde_json::to_string(&header()).expect("JSON");
        for (lines, at, why) in [
            (String::new(), ":1:", "the first line"),
            ("{}".to_owned(), ":1:", "the first line"),
            (first.replace("\"vcr_shard\":1", "\"vcr_shard\":2"), ":1:", "expected layout 1, got 2"),
            (first.replace("\"points\":3", "\"points\":4"), ":1:", "as many points"),
            (first.replace("\"count\":2", "\"count\":0"), ":1:", "K below N"),
            (format!("{first}\nx"), ":2:", "`point` and `result`"),
            (format!("{first}\n{{\"point\":1,\"result\":0}}"), ":2:", "point 1 is not in shard 0/2"),
            (format!("{first}\n{{\"point\":0,\"result\":0}}\n{{\"point\":0,\"result\":0}}"), ":3:", "twice"),
        ] {
            let error = read(&format!("{lines}\n")).err().expect("it is wrong");
            assert!(error.contains(at) && error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_left_out() {
        let first = serde_json::to_string(&header()).expect("JSON");
        let line = r#"{"point":2,"result":1.5,"inputs":{"t.jsonl":"00"}}"#;
        let part = read(&format!("{first}\n{line}\n{{\"point\":0,\"res")).expect("valid");
        assert_eq!((part.missing(), part.header.inputs["t.jsonl"].as_str()), (vec![0], "00"));
    }

    #[test]
    fn equal_options_have_equal_digests() {
        assert_eq!(header().grid, header().grid);
        let other = Header::new(SweepKind::Run, &header().axes, 3, header().shard, "seed=2");
        assert_ne!(header().grid, other.grid);
    }
}
