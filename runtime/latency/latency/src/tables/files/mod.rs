//! The files of the package: locations and contents.

pub(crate) mod frame;
pub(crate) mod listing;
pub(crate) mod package;
#[cfg_attr(not(feature = "parquet"), path = "absent.rs")]
pub(crate) mod parquet;
