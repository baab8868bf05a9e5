//! The engines of a process: their threads, and their connection to a frontend.

pub(crate) mod engines;
pub(crate) mod rank;
pub(crate) mod time_slice;
pub(crate) mod waiting;
