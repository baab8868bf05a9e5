//! Prices a step from operator times that were measured on GPUs.
//!
//! NVIDIA's package `aiconfigurator-core` contains the times as Parquet tables, with a YAML file for each GPU and the
//! configurations of many models. [`Package`] finds the package. [`Tables`] is the latency model: the sum over the
//! operators of a step and the layers of a model. vcr contains no part of the package.
//!
//! All rows that a model needs become curves and grids before the first step, so that a step only interpolates. IEEE
//! 754 defines addition, multiplication, division, rounding and square roots of doubles to the bit; logarithms come
//! from `libm`.

mod error;
mod files;
mod interpolation;
mod latency_model;
mod limits;
mod memory;
mod model;
mod operators;
mod plan;
mod system;

use std::ops::{AddAssign, Mul};

pub use error::{DATA_VARIABLE, INSTALL, TablesError};
pub use files::listing::{ColumnRange, TableSummary, summarize};
pub use files::package::{Package, Stack, TableFile};
pub use latency_model::{Resolved, Scale, SourceFiles, Tables, TablesInput};
pub use memory::MemoryNeed;
pub use model::KvShape;

/// The peak of a GPU that applies to a data type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pipe {
    Bfloat16,
    Int8,
    Fp8,
    Fp4,
}

/// A data type of weights and activations, or of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dtype {
    pub(crate) name: &'static str,
    /// Bytes of an element, including its scales.
    pub(crate) bytes: f64,
    pub(crate) pipe: Pipe,
}

impl Dtype {
    pub(crate) const BFLOAT16: Self = Self { name: "bfloat16", bytes: 2.0, pipe: Pipe::Bfloat16 };
    pub(crate) const FP8: Self = Self { name: "fp8", bytes: 1.0, pipe: Pipe::Fp8 };
    pub(crate) const FP8_STATIC: Self = Self { name: "fp8_static", ..Self::FP8 };
    pub(crate) const FP8_BLOCK: Self = Self { name: "fp8_block", ..Self::FP8 };
    pub(crate) const NVFP4: Self = Self { name: "nvfp4", bytes: 0.5625, pipe: Pipe::Fp4 };
    pub(crate) const INT4_WEIGHTS: Self = Self { name: "int4_wo", bytes: 0.5, pipe: Pipe::Bfloat16 };
    pub(crate) const INT8_WEIGHTS: Self = Self { name: "int8_wo", bytes: 1.0, pipe: Pipe::Bfloat16 };
    pub(crate) const INT8: Self = Self { name: "sq", bytes: 1.0, pipe: Pipe::Int8 };
    pub(crate) const MXFP4: Self = Self { name: "w4a16_mxfp4", bytes: 0.5, pipe: Pipe::Bfloat16 };

    pub(crate) const GEMM: &'static [Self] = &[
        Self::BFLOAT16,
        Self::FP8,
        Self::FP8_STATIC,
        Self::FP8_BLOCK,
        Self::NVFP4,
        Self::INT4_WEIGHTS,
        Self::INT8_WEIGHTS,
        Self::INT8,
    ];
    pub(crate) const MOE: &'static [Self] = &[
        Self::BFLOAT16,
        Self::FP8,
        Self::FP8_BLOCK,
        Self::NVFP4,
        Self::INT4_WEIGHTS,
        Self::MXFP4,
        Self { name: "w4a8_mxfp4_mxfp8", bytes: 0.5, pipe: Pipe::Fp8 },
        Self { name: "w4afp8", bytes: 0.5, pipe: Pipe::Fp8 },
    ];
    pub(crate) const KV_CACHE: &'static [Self] = &[Self::BFLOAT16, Self::FP8];
    pub(crate) const ATTENTION: &'static [Self] = &[Self::BFLOAT16, Self::FP8];

    /// Finds the type with this name among `known`.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn of(field: &'static str, name: &str, known: &'static [Self]) -> Result<Self, TablesError> {
        known.iter().copied().find(|dtype| dtype.name == name).ok_or_else(|| TablesError::Unknown {
            what: field,
            name: name.to_owned(),
            known: known.iter().map(|dtype| dtype.name.to_owned()).collect(),
        })
    }

    /// Name of this type's rows in the tables of matrix multiplications.
    pub(crate) fn rows(self) -> &'static str {
        if self == Self::FP8_STATIC { Self::FP8.name } else { self.name }
    }
}

/// The sources of a time, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A row of a table.
    Measured,
    /// Interpolation between rows.
    Interpolated,
    /// Extrapolation beyond the rows, or from rows of another shape: the measured utilisation of the hardware is
    /// applied to this size.
    Extrapolated,
    /// No table: computed from bytes and operations with the system's peaks.
    Formula,
}

impl Source {
    /// All sources, from best to worst.
    pub const ALL: [Self; 4] = [Self::Measured, Self::Interpolated, Self::Extrapolated, Self::Formula];

    /// Name of the source in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Interpolated => "interpolated",
            Self::Extrapolated => "extrapolated",
            Self::Formula => "formula",
        }
    }
}

/// A time in nanoseconds, split by source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Priced {
    by_source: [f64; 4],
}

impl Priced {
    /// Creates a time that comes from one source.
    #[must_use]
    pub fn new(ns: f64, source: Source) -> Self {
        let mut by_source = [0.0; 4];
        by_source[source as usize] = ns;
        Self { by_source }
    }

    /// The total in nanoseconds.
    #[must_use]
    #[inline]
    pub fn ns(&self) -> f64 {
        self.by_source.iter().sum()
    }

    /// The part from one source, in nanoseconds.
    #[must_use]
    pub fn of(&self, source: Source) -> f64 {
        self.by_source[source as usize]
    }

    /// The fraction from each source, in the order of [`Source::ALL`]. Zeros if the total is 0.
    #[must_use]
    pub fn shares(&self) -> [f64; 4] {
        let ns = self.ns();
        if ns > 0.0 { self.by_source.map(|part| part / ns) } else { [0.0; 4] }
    }

    /// Interpolates: `self` at `weight` 0, `other` at 1.
    #[inline]
    pub(crate) fn lerp(&self, other: &Self, weight: f64) -> Self {
        let mut by_source = self.by_source;
        for (part, other) in by_source.iter_mut().zip(other.by_source) {
            *part += (other - *part) * weight;
        }
        Self { by_source }
    }
}

impl AddAssign for Priced {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        for (part, other) in self.by_source.iter_mut().zip(other.by_source) {
            *part += other;
        }
    }
}

impl Mul<f64> for Priced {
    type Output = Self;

    #[inline]
    fn mul(self, factor: f64) -> Self {
        Self { by_source: self.by_source.map(|part| part * factor) }
    }
}
