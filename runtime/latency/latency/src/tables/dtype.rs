//! Data types, by the names that the tables have.

use crate::tables::error::TablesError;

/// A GPU's peak that a data type computes at.
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
    /// Bytes of an element, its scales included.
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

    /// Those of matrix multiplications.
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
    /// Those of experts.
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
    /// Those of KV caches.
    pub(crate) const KV_CACHE: &'static [Self] = &[Self::BFLOAT16, Self::FP8];
    /// Those of the attention of prefills.
    pub(crate) const ATTENTION: &'static [Self] = &[Self::BFLOAT16, Self::FP8];

    /// The type of a name among `known`.
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

    /// The name of its rows in the tables of matrix multiplications.
    pub(crate) fn rows(self) -> &'static str {
        if self == Self::FP8_STATIC { Self::FP8.name } else { self.name }
    }
}
