//! Finds and reads the files of the package.

pub(crate) mod frame;
pub(crate) mod listing;
pub(crate) mod package;
#[cfg_attr(not(feature = "parquet"), path = "absent.rs")]
pub(crate) mod parquet;
