//! Replacement for the reader in builds without the feature `parquet`.

use std::path::Path;

use crate::tables::error::TablesError;
use crate::tables::files::frame::Frame;

pub(crate) fn read(_path: &Path) -> Result<Frame, TablesError> {
    Err(TablesError::NotBuilt)
}
