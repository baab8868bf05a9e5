//! Tests of clusters through the public interface. They form one binary, because linking one per file takes longer.

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
