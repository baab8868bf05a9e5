//! The price of a step from operator times that were measured on GPUs.
//!
//! NVIDIA's package `aiconfigurator-core` has them as Parquet tables, with a YAML file for
//! each GPU and the configurations of many models. [`Package`] finds it, [`Tables`] is the
//! latency model: the plain sum over the operators of a step and the layers of a model.
//! Nothing of the package is part of vcr.
//!
//! All rows that a model needs are made into curves and grids before the first step, and
//! a step only interpolates in those. Doubles are added, multiplied, divided, rounded and
//! rooted, which IEEE 754 fixes to the bit; logarithms come from `libm`.

mod dtype;
mod error;
mod files;
mod interpolation;
mod latency_model;
mod limits;
mod memory;
mod model;
mod operators;
mod plan;
mod source;
mod system;

pub use error::{DATA_VARIABLE, INSTALL, TablesError};
pub use files::listing::{ColumnRange, TableSummary, summarize};
pub use files::package::{Package, Stack, TableFile};
pub use latency_model::{Resolved, Scale, SourceFiles, Tables, TablesInput};
pub use memory::MemoryNeed;
pub use model::KvShape;
pub use source::{Priced, Source};
