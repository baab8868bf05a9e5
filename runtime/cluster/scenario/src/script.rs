//! The environment of scripts: state, limits, options and errors.

pub(crate) mod calls;
pub(crate) mod context;
pub(crate) mod error;
pub(crate) mod functions;
pub(crate) mod limits;
pub(crate) mod loaded;
pub(crate) mod meter;
pub(crate) mod options;
pub(crate) mod refusal;
pub(crate) mod register;
pub(crate) mod stack;
