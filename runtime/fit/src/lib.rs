//! Step prices fitted to measurements, and predictions judged by them.
//!
//! The scheduler is exact, so queueing, batching, chunking and preemption need no fit:
//! what is fitted is the price of a step and the time outside of steps. Measured requests
//! are simulated with their recorded arrivals, which says what was in each step; their
//! times then are sums of coefficients, which least squares find; and so on until neither
//! changes. See [`fit`] and [`calibrate`].

mod aggregates;
mod base;
pub mod calibrate;
mod checks;
mod data;
mod digest;
mod emitted;
mod error;
pub mod figures;
mod fit;
mod gates;
mod infer;
mod measured;
mod metrics;
mod noise;
mod observations;
mod parallel;
mod parameters;
mod polish;
mod prior;
mod recorded;
mod regress;
mod row;
mod shape;
mod simulate;
mod source;
mod steplog;
mod verdict;
mod workload;

pub use base::Base;
pub use data::{Measurements, ReadOptions};
pub use error::FitError;
pub use fit::{Fit, FitOptions, fit};
pub use gates::read_gates;
pub use infer::{Inferred, Setting, infer};
pub use measured::Measured;
pub use shape::Shape;
pub use simulate::{Candidate, Simulated, SimulatedStep, Simulation, run};
pub use source::Source;
pub use vcr_compare::{Comparison, Gate, Metric, Pairs, Statistic};
