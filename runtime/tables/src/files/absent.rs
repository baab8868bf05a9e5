//! Replacement for the reader in builds without the feature `parquet`.

use std::path::Path;

use crate::error::TablesError;
use crate::files::frame::Frame;

pub(crate) fn read(_path: &Path) -> Result<Frame, TablesError> {
    Err(TablesError::NotBuilt)
}
