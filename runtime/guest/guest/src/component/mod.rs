//! Components: description, declared version, digest, and the cache of compiled code.

pub(crate) mod api_version;
pub(crate) mod cache;
pub(crate) mod compile;
pub(crate) mod describe;
pub(crate) mod digest;
pub(crate) mod inspect;
pub(crate) mod key;
pub(crate) mod schema;
pub(crate) mod size;
