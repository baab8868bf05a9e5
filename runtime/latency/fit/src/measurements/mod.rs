//! Reads and checks measurements: requests and steps from captures, tables, logs and load generators.

pub(crate) mod aggregates;
mod checks;
pub(crate) mod data;
pub(crate) mod digest;
mod emitted;
pub(crate) mod measured;
pub(crate) mod recorded;
mod row;
pub(crate) mod steplog;
mod workload;
