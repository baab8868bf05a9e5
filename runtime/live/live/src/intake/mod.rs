//! Messages of frontends and of other engines, from their checks to the
//! submission of a request.

pub(crate) mod admit;
mod arrivals;
pub(crate) mod frontend;
pub(crate) mod routed;
pub(crate) mod sessions;
pub(crate) mod version;
