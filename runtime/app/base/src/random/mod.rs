//! Seeded random streams and distributions.
//!
//! The same seed and purpose give the same bits on every machine and in every release: generators and samplers are
//! implemented here, and transcendental functions come from `libm` instead of the platform.

mod distribution;
mod stream;
mod weights;

pub use distribution::{Distribution, DistributionProblem};
pub use stream::{Stream, weibull_shape};
pub use weights::{Weights, WeightsProblem};
