//! Rules across crates: dependencies, permitted calls, the layout of sources, and state.

mod dependencies;
mod determinism;
mod interfaces;
mod sources;
mod state;
