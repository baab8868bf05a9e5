//! Compares predictions with measurements: errors, limits on errors, figures.

pub mod calibrate;
pub(crate) mod effect;
pub mod figures;
pub(crate) mod gates;
pub(crate) mod intervals;
pub(crate) mod metrics;
pub mod page;
pub(crate) mod steps;
