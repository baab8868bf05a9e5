//! Tests of clusters through the public interface, in one binary, because linking each file by itself takes longer.

mod around;
mod data_parallel;
mod eviction;
mod generated;
mod intervals;
mod library;
mod measured;
mod oracles;
mod profiles;
mod runs;
mod scaling;
mod stages;
mod support;
mod tiers;
mod traces;
