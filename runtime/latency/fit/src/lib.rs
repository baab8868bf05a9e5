//! Fits step prices to measurements, and compares predictions with measurements.
//!
//! The scheduler is exact, so queueing, batching, chunking and preemption need no fit. The fit finds the
//! price of a step and the time outside of steps. It simulates the measured requests with their recorded
//! arrivals, which gives the contents of each step. The measured times are then linear in the coefficients, which a
//! least-squares fit finds. Both parts are repeated until neither changes. See [`fit`] and [`calibrate`].

mod error;
mod judge;
mod measurements;
mod simulate;
mod solve;
mod source;

pub use error::FitError;
pub use judge::effect::Effect;
pub use judge::gates::read_gates;
pub use judge::intervals::{Again, Bounds, Capacity};
pub use judge::steps::{StepComparison, StepSummary};
pub use judge::{calibrate, figures, page};
pub use measurements::data::{Measurements, ReadOptions};
pub use measurements::measured::Measured;
pub use simulate::{Candidate, Simulated, SimulatedStep, Simulation, run};
pub use solve::base::Base;
pub use solve::fit::{Fit, FitOptions, fit};
pub use solve::infer::{Inferred, Setting, infer};
pub use solve::shape::Shape;
pub use solve::suggest::{Certainty, Load, Pace, Suggested, Suggestion};
pub use solve::warm_up::WarmUp;
pub use source::Source;
pub use vcr_compare::{Comparison, Gate, Metric, Pairs, Statistic};
