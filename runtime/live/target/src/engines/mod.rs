//! Live engines for a run: they run in this process and in real time.

pub(crate) mod book;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod direct;
pub(crate) mod disaggregated;
pub(crate) mod faults;
pub(crate) mod frontend;
pub(crate) mod gateway;
pub(crate) mod link;
pub(crate) mod plane;
pub(crate) mod pool;
pub(crate) mod series;
pub(crate) mod server;
pub(crate) mod steps;
pub(crate) mod totals;
