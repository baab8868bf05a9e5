//! Provenance of a report: digests of the files that the script names, and the vLLM versions whose scheduling rules
//! its engines follow.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use sha2::{Digest, Sha256};
use vcr_cluster::Topology;
use vcr_core::{CapacityPolicy, EngineKind, NamedValue};

/// A file that a scenario has read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Input {
    /// `trace` (also a capture), `capture` (of latencies), `workload_file`, `dataset`, `profile`, `coefficients`,
    /// `model`, `tables` or `guest`.
    pub kind: &'static str,
    /// The path in the script; for a file in a folder, the folder's path in the script and the file's path in it.
    pub path: String,
    /// SHA-256 of the file's bytes, compressed or not, as hex.
    pub sha256: String,
}

/// A file or folder that a scenario names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// See [`Input::kind`].
    pub kind: &'static str,
    /// The path or reference in the script.
    pub name: String,
    /// The real path: a file, the first file of a rotated capture, or a folder.
    pub path: PathBuf,
    /// The files that were read, if only some files of the folder were read.
    pub parts: Option<Vec<PathBuf>>,
}

impl SourceFile {
    /// All files, with their paths in the script and their real paths.
    pub fn files(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let Some(parts) = &self.parts else { return files_of(&self.name, &self.path) };
        let named = |part: &PathBuf| (Path::new(&self.name).join(part).display().to_string(), self.path.join(part));
        Ok(parts.iter().map(named).collect())
    }
}

/// Files that the script names, by path and kind.
#[derive(Default)]
pub(crate) struct Inputs {
    named: BTreeMap<(String, &'static str), PathBuf>,
    /// Guests with their digests, which are computed on loading.
    guests: BTreeMap<String, (String, PathBuf)>,
    /// Folders with operator tables, and the files in them that were read.
    tables: BTreeMap<String, (PathBuf, BTreeSet<PathBuf>)>,
    rules: BTreeSet<&'static str>,
}

impl Inputs {
    /// Records a file or folder, which the script calls `path`.
    pub(crate) fn named(&mut self, kind: &'static str, path: &str, resolved: PathBuf) {
        self.named.insert((path.to_owned(), kind), resolved);
    }

    pub(crate) fn guest(&mut self, path: &str, sha256: &str, resolved: PathBuf) {
        self.guests.insert(path.to_owned(), (sha256.to_owned(), resolved));
    }

    pub(crate) fn tables(&mut self, name: &str, folder: PathBuf, files: Vec<PathBuf>) {
        self.tables.entry(name.to_owned()).or_insert_with(|| (folder, BTreeSet::new())).1.extend(files);
    }

    /// Records the vLLM rules that a run's engines follow.
    pub(crate) fn engines_of(&mut self, topology: &Topology) {
        for pool in topology.pools() {
            match &pool.engine {
                EngineKind::Vllm(config) if config.capacity() == CapacityPolicy::Preempt => {
                    self.rules.insert(config.rules().name());
                }
                EngineKind::Vllm(_) | EngineKind::Sglang(_) | EngineKind::Ticks(_) => {}
            }
        }
    }

    /// The vLLM versions whose scheduling rules were followed.
    pub(crate) fn vllm_rules(&self) -> Vec<&'static str> {
        self.rules.iter().copied().collect()
    }

    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let paths = self.sources().into_iter().flat_map(|source| match source.parts {
            Some(parts) => parts.iter().map(|part| source.path.join(part)).collect(),
            None => vec![source.path],
        });
        paths.collect()
    }

    /// Everything that the script has named, in order.
    pub(crate) fn sources(&self) -> Vec<SourceFile> {
        let source = |kind, name: &str, path: &Path| SourceFile {
            kind,
            name: name.to_owned(),
            path: path.to_owned(),
            parts: None,
        };
        let named = self.named.iter().map(|((name, kind), path)| source(kind, name, path));
        let guests = self.guests.iter().map(|(name, (_, path))| source("guest", name, path));
        let tables = self.tables.iter().map(|(name, (folder, files))| SourceFile {
            parts: Some(files.iter().cloned().collect()),
            ..source("tables", name, folder)
        });
        named.chain(guests).chain(tables).collect()
    }

    /// Reads and digests all files.
    ///
    /// # Errors
    /// When a file can no longer be read. The message contains the path.
    pub(crate) fn digest(&self) -> io::Result<Vec<Input>> {
        let mut inputs = Vec::new();
        for source in self.sources().iter().filter(|source| source.kind != "guest") {
            for (path, file) in source.files()? {
                let sha256 = digest_of(&file)?;
                inputs.push(Input { kind: source.kind, path, sha256 });
            }
        }
        let guest = |(path, (sha256, _)): (&String, &(String, PathBuf))| Input {
            kind: "guest",
            path: path.clone(),
            sha256: sha256.clone(),
        };
        inputs.extend(self.guests.iter().map(guest));
        inputs.sort_by(|a, b| (&a.path, a.kind).cmp(&(&b.path, b.kind)));
        Ok(inputs)
    }
}

pub(crate) fn sha256_of(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The file called `name`; or all files in a folder of that name; or all files of a capture whose first file is
/// `name`.
fn files_of(name: &str, path: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let with_path = |error: io::Error| io::Error::new(error.kind(), format!("`{}`: {error}", path.display()));
    if !path.is_dir() {
        let parts = vcr_trace::capture::later_parts(path);
        let name_of = |part: &Path| {
            let file = part.file_name().unwrap_or_default();
            Path::new(name).with_file_name(file).display().to_string()
        };
        let first = (name.to_owned(), path.to_owned());
        return Ok(std::iter::once(first).chain(parts.into_iter().map(|part| (name_of(&part), part))).collect());
    }
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(with_path)? {
        entries.push(entry.map_err(with_path)?.path());
    }
    entries.sort();
    let mut files = Vec::new();
    for entry in entries {
        let inner = Path::new(name).join(entry.file_name().unwrap_or_default()).display().to_string();
        if entry.is_dir() {
            files.extend(files_of(&inner, &entry)?);
        } else {
            files.push((inner, entry));
        }
    }
    Ok(files)
}

fn digest_of(path: &Path) -> io::Result<String> {
    const BUFFER_BYTES: usize = 256 << 10;
    let digest = || {
        let (mut file, mut hash, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; BUFFER_BYTES]);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(hex::encode(hash.finalize())),
                bytes => hash.update(&buffer[..bytes]),
            }
        }
    };
    digest().map_err(|error: io::Error| io::Error::new(error.kind(), format!("`{}`: {error}", path.display())))
}
