//! Seeded random streams and distributions.
//!
//! The same seed and purpose draw the same bits on every machine and with every
//! release: generators and samplers are fixed here, and transcendental
//! functions come from `libm`, never from the platform.

mod distribution;
mod stream;
mod weights;

pub use distribution::{Distribution, DistributionProblem};
pub use stream::{Stream, weibull_shape};
pub use weights::{Weights, WeightsProblem};
