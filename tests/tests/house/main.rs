//! Rules that hold across crates: who may depend on whom, who may do what, how sources lie, and state.

mod dependencies;
mod determinism;
mod interfaces;
mod sources;
mod state;
