//! The engines of a process: their threads, and the search for a frontend.

pub(crate) mod engines;
pub(crate) mod rank;
pub(crate) mod time_slice;
pub(crate) mod waiting;
