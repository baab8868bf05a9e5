//! Steps that are taken together where nothing from outside can reach an engine, and that are not
//! predicted as steady decode is.

mod barrier;
mod bursts;
