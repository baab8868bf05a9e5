//! Coefficients: sums that measured times are, their least squares, refinements, and how
//! far the result can be trusted.

pub(crate) mod base;
pub(crate) mod fit;
pub(crate) mod infer;
mod noise;
mod observations;
mod parallel;
pub(crate) mod parameters;
mod polish;
mod prior;
mod regress;
pub(crate) mod shape;
mod verdict;
