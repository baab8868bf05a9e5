//! The files of a capture: what a rotated one's are called, which of them a
//! folder holds, and how they are unpacked.
//!
//! The parts of `NAME.jsonl` are `NAME.1.jsonl`, `NAME.2.jsonl` and so on, each
//! packed or not.

use std::io;
use std::path::{Path, PathBuf};

use vcr_input::Unpacked;

use crate::capture::error::CaptureError;

/// The packings by suffix; none is the first.
const PACKINGS: [&str; 3] = ["", ".gz", ".zst"];

/// File names of the parts of one capture.
#[derive(Clone, Debug)]
pub(in crate::capture) struct PartNames {
    folder: PathBuf,
    /// The name without number, suffix and packing.
    base: String,
    suffix: String,
    packing: &'static str,
}

impl PartNames {
    /// The names of the capture that has `path` as part `part`. A name that does
    /// not end with the number of its part has no parts after it.
    pub(in crate::capture) fn of(path: &Path, part: u32) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let (stem, packing) = without_packing(name);
        let (base, suffix) = stem.rsplit_once('.').unwrap_or((stem, ""));
        let base = if part == 0 { base } else { base.strip_suffix(&format!(".{part}"))? };
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Some(Self { folder, base: base.to_owned(), suffix: suffix.to_owned(), packing })
    }

    /// The file name of a part, packed like the known one.
    pub(in crate::capture) fn expected(&self, part: u32) -> PathBuf {
        self.with_packing(part, self.packing)
    }

    /// The file of a part, however it is packed, if it is there.
    pub(in crate::capture) fn find(&self, part: u32) -> Option<PathBuf> {
        let packings = std::iter::once(self.packing).chain(PACKINGS);
        packings.map(|packing| self.with_packing(part, packing)).find(|path| path.exists())
    }

    fn with_packing(&self, part: u32, packing: &str) -> PathBuf {
        let number = if part == 0 { String::new() } else { format!(".{part}") };
        let dot = if self.suffix.is_empty() { "" } else { "." };
        self.folder.join(format!("{}{number}{dot}{}{packing}", self.base, self.suffix))
    }
}

fn without_packing(name: &str) -> (&str, &'static str) {
    let packed = PACKINGS.iter().skip(1).find_map(|packing| Some((name.strip_suffix(packing)?, *packing)));
    packed.unwrap_or((name, ""))
}

/// The file that a capture starts with: the path itself, or the one that the
/// folder `path` holds.
pub(in crate::capture) fn first_file(path: &Path) -> Result<PathBuf, CaptureError> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let name = path.display().to_string();
    let io_error = |source| CaptureError::Io { name: name.clone(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io_error)? {
        let entry = entry.map_err(io_error)?.file_name();
        names.extend(entry.to_str().filter(|entry| without_packing(entry).0.ends_with(".jsonl")).map(str::to_owned));
    }
    names.sort();
    let mut first = names.iter().filter(|entry| !is_later_part(entry, &names));
    match (first.next(), first.next()) {
        (Some(only), None) => Ok(path.join(only)),
        _ => {
            let found = names.iter().filter(|entry| !is_later_part(entry, &names)).cloned().collect();
            Err(CaptureError::Folder { name, found })
        }
    }
}

/// Whether a name is that of a part after the first of another file in `names`,
/// or after one that is missing while its neighbours are there.
fn is_later_part(name: &str, names: &[String]) -> bool {
    let Some((base, number)) = part_number(name) else { return false };
    let is_of_base = |other: &String| {
        let stem = without_packing(other).0.strip_suffix(".jsonl");
        stem == Some(base) || part_number(other).is_some_and(|(its, before)| its == base && before < number)
    };
    names.iter().any(is_of_base)
}

/// `NAME` and 3 of `NAME.3.jsonl.gz`.
fn part_number(name: &str) -> Option<(&str, u32)> {
    let stem = without_packing(name).0.strip_suffix(".jsonl")?;
    let (base, number) = stem.rsplit_once('.')?;
    Some((base, number.parse().ok()?))
}

/// Opens a file to be unpacked on the way. An archive that stops in its middle
/// ends there, as a plain file would.
pub(in crate::capture) fn open(path: &Path) -> io::Result<Unpacked<'static>> {
    Unpacked::open(path).map(Unpacked::ending_where_cut)
}
