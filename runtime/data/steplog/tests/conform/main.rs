//! The proof of exactness against recordings of the real schedulers, and the proof of that proof: it fails
//! where it should, and refuses what it cannot judge.

mod bad_input;
mod can_fail;
mod connectors;
mod layers;
mod lines;
mod live;
mod media;
mod parallel;
mod recordings;
mod refused;
mod reproduced;
#[cfg(feature = "mutated-rules")]
mod rules;
mod steps;
mod structured;
