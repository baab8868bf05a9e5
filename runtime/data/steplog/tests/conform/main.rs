//! The proof of exactness against recordings of the real schedulers. Also checks the proof itself: it must fail if
//! a recording is changed, and refuse what it cannot judge.

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
