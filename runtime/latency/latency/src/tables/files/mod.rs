//! The files of the package: where they are, and what is in them.

pub(crate) mod frame;
pub(crate) mod listing;
pub(crate) mod package;
#[cfg_attr(not(feature = "parquet"), path = "absent.rs")]
pub(crate) mod parquet;
