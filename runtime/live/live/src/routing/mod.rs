//! Requests between the engines of a process.

pub(crate) mod dispatcher;
pub(crate) mod routes;
