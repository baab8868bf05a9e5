//! Data types of weights, and the GPU's peak for multiplying them.

use alloc::string::String;

use crate::presets::joined;
use crate::{GpuSpec, RooflineError};

/// The number format in which a matrix multiplication is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// Numbers of 16 bits: bfloat16 or float16.
    #[default]
    Bfloat16,
    /// Floats of 8 bits.
    Fp8,
    /// Integers of 8 bits.
    Int8,
    /// Floats of 4 bits.
    Fp4,
}

impl Arithmetic {
    /// Name of the format.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bfloat16 => "bfloat16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
            Self::Fp4 => "fp4",
        }
    }
}

/// A data type of weights in an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightDtype {
    /// Bytes of a weight, including its part of the scales.
    pub bytes: f64,
    /// The arithmetic of weights and activations on a GPU that supports it.
    pub arithmetic: Arithmetic,
}

const fn dtype(bytes: f64, arithmetic: Arithmetic) -> WeightDtype {
    WeightDtype { bytes, arithmetic }
}

/// Data types of weights by name. Activations have the same type, except for the weight-only types `int4`, `int8_wo`
/// and `mxfp4`: there, activations have 16 bits, and weights are converted before they are multiplied.
pub const WEIGHT_DTYPES: &[(&str, WeightDtype)] = &[
    ("bfloat16", dtype(2.0, Arithmetic::Bfloat16)),
    ("fp8", dtype(1.0, Arithmetic::Fp8)),
    ("int4", dtype(0.5, Arithmetic::Bfloat16)),
    ("int8", dtype(1.0, Arithmetic::Int8)),
    ("int8_wo", dtype(1.0, Arithmetic::Bfloat16)),
    ("mxfp4", dtype(0.53125, Arithmetic::Bfloat16)),
    ("nvfp4", dtype(0.5625, Arithmetic::Fp4)),
];

/// The data type with this name. If only a number of bytes is given, one byte means fp8.
pub(crate) fn weight_dtype(name: Option<&str>, bytes: Option<f64>) -> Result<Option<WeightDtype>, RooflineError> {
    let of_bytes = |bytes: f64| {
        let arithmetic = if bytes == 1.0 { Arithmetic::Fp8 } else { Arithmetic::Bfloat16 };
        WeightDtype { bytes, arithmetic }
    };
    let Some(name) = name else { return Ok(bytes.map(of_bytes)) };
    let found = WEIGHT_DTYPES.iter().find(|(known, _)| *known == name);
    let unknown = || RooflineError::UnknownDtype {
        name: String::from(name),
        known: joined(WEIGHT_DTYPES.iter().map(|(name, _)| *name)),
    };
    let (_, found) = found.ok_or_else(unknown)?;
    Ok(Some(WeightDtype { bytes: bytes.unwrap_or(found.bytes), ..*found }))
}

/// Dense peaks of a GPU's tensor cores with quantised numbers, in FLOP/s. None for unsupported types.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuantisedPeaks {
    pub fp8_flops: Option<f64>,
    pub int8_flops: Option<f64>,
    pub fp4_flops: Option<f64>,
}

impl QuantisedPeaks {
    pub(crate) fn all(flops: f64) -> Self {
        Self { fp8_flops: Some(flops), int8_flops: Some(flops), fp4_flops: Some(flops) }
    }
}

/// A GPU's peak for a matrix multiplication.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// The arithmetic of the multiplication.
    pub arithmetic: Arithmetic,
    pub flops: f64,
}

impl GpuSpec {
    /// The peak for matrices with this arithmetic. A GPU that lacks it converts weights to 16-bit numbers before it
    /// multiplies them.
    #[must_use]
    pub fn peak(&self, wanted: Arithmetic) -> Peak {
        let own = match wanted {
            Arithmetic::Bfloat16 => None,
            Arithmetic::Fp8 => self.quantised.fp8_flops,
            Arithmetic::Int8 => self.quantised.int8_flops,
            Arithmetic::Fp4 => self.quantised.fp4_flops,
        };
        match own {
            Some(flops) => Peak { arithmetic: wanted, flops },
            None => Peak { arithmetic: Arithmetic::Bfloat16, flops: self.peak_flops },
        }
    }

    /// The time of an operation with this arithmetic, relative to one with 16-bit numbers.
    pub(crate) fn relative_time(&self, wanted: Arithmetic) -> f64 {
        self.peak_flops / self.peak(wanted).flops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::Gpu;

    #[test]
    fn gpus_multiply_quantised_numbers_as_their_generation_can() {
        let used = |gpu: &str, wanted| Gpu::named(gpu).expect("a preset").spec.peak(wanted);
        for (gpu, wanted, arithmetic, tflops) in [
            ("h100-sxm", Arithmetic::Bfloat16, Arithmetic::Bfloat16, 989.4),
            ("h100-sxm", Arithmetic::Fp8, Arithmetic::Fp8, 1_978.9),
            ("h100-sxm", Arithmetic::Fp4, Arithmetic::Bfloat16, 989.4),
            ("a100-80gb", Arithmetic::Fp8, Arithmetic::Bfloat16, 312.0),
            ("a100-80gb", Arithmetic::Int8, Arithmetic::Int8, 624.0),
            ("l4", Arithmetic::Fp8, Arithmetic::Fp8, 242.5),
            ("b200", Arithmetic::Fp4, Arithmetic::Fp4, 9_000.0),
        ] {
            let peak = used(gpu, wanted);
            assert_eq!(peak.arithmetic, arithmetic, "{gpu} {wanted:?}");
            assert!((peak.flops / tflops / 1e12 - 1.0).abs() < 1e-9, "{gpu} {wanted:?}: {}", peak.flops);
        }
    }

    #[test]
    fn one_byte_is_fp8_unless_the_name_says_otherwise() {
        let of = |name, bytes| weight_dtype(name, bytes).expect("known").map(|dtype| (dtype.bytes, dtype.arithmetic));
        assert_eq!(of(None, None), None);
        assert_eq!(of(None, Some(1.0)), Some((1.0, Arithmetic::Fp8)));
        assert_eq!(of(None, Some(0.5)), Some((0.5, Arithmetic::Bfloat16)));
        assert_eq!(of(Some("int8"), None), Some((1.0, Arithmetic::Int8)));
        assert_eq!(of(Some("int4"), Some(0.52)), Some((0.52, Arithmetic::Bfloat16)));
    }
}
