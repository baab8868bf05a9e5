//! A limit on the total size of step files.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The remaining bytes of the files' total size. Parallel runs share the budget, and whether it suffices does not
/// depend on their order.
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: u64,
    written_bytes: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, written_bytes: AtomicU64::new(0) })
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.written_bytes.load(Ordering::Relaxed) > self.limit_bytes
    }
}

/// A file whose size is charged to a budget.
#[derive(Debug)]
pub(crate) struct Counted {
    file: File,
    budget: Arc<Budget>,
}

impl Counted {
    pub(crate) fn create(path: &Path, budget: &Arc<Budget>) -> io::Result<Self> {
        Ok(Self { file: File::create(path)?, budget: Arc::clone(budget) })
    }
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The file will be removed, so nothing is written.
        if self.budget.is_spent() {
            return Ok(bytes.len());
        }
        let written = self.file.write(bytes)?;
        self.budget.written_bytes.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
