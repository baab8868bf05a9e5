//! Requests that the engines of a process exchange.

pub(crate) mod dispatcher;
pub(crate) mod routes;
