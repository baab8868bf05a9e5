//! Helpers for the tests of importers.

use std::path::{Path, PathBuf};

use vcr_trace::capture::{CaptureLine, CaptureMeta, RequestRecord};
use vcr_trace::import::{Format, ImportError, ImportOptions, Imported, import, import_bytes};

#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) account: Imported,
    pub(crate) meta: CaptureMeta,
    pub(crate) requests: Vec<RequestRecord>,
    pub(crate) lines: Vec<CaptureLine>,
}

impl Read {
    pub(crate) fn sum(&self, count: impl Fn(&RequestRecord) -> u32) -> u64 {
        self.requests.iter().map(|request| u64::from(count(request))).sum()
    }
}

pub(crate) fn imported(path: &Path, options: &ImportOptions) -> Result<Read, ImportError> {
    gathered(|sink| import(path, options, sink))
}

pub(crate) fn of_text(text: &str, format: Format, options: &ImportOptions) -> Result<Read, ImportError> {
    gathered(|sink| import_bytes(text.as_bytes(), "file", format, options, sink))
}

fn gathered(
    import: impl FnOnce(&mut dyn FnMut(CaptureLine) -> std::io::Result<()>) -> Result<Imported, ImportError>,
) -> Result<Read, ImportError> {
    let mut lines = Vec::new();
    let account = import(&mut |line| {
        lines.push(line);
        Ok(())
    })?;
    let CaptureLine::Meta(meta) = &lines[0] else { panic!("the first line is not a meta line") };
    let requests = lines.iter().filter_map(|line| match line {
        CaptureLine::Request(request) => Some((**request).clone()),
        _ => None,
    });
    Ok(Read { account, meta: (**meta).clone(), requests: requests.collect(), lines: lines.clone() })
}

/// The tokenizer that `tests/frontends/fetch.sh` downloads.
pub(crate) fn shipped_tokenizer() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/frontends/model/tokenizer.json");
    vcr_skips::existing(path, "run tests/frontends/fetch.sh")
}
