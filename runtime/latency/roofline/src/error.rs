use alloc::string::String;
use core::fmt;

/// The reason why a roofline cannot be built from the given numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum RooflineError {
    /// No preset has this name.
    UnknownPreset {
        /// The config key that holds the name: `model` or `gpu`.
        field: &'static str,
        /// Requested name.
        name: String,
        /// The names that exist, separated by commas.
        known: String,
    },
    /// No data type of weights has this name.
    UnknownDtype {
        /// Requested name.
        name: String,
        /// The names that exist, separated by commas.
        known: String,
    },
    /// A quantity has no preset and no value.
    Missing {
        /// The config key of the quantity.
        field: &'static str,
        /// The key of a preset that would set it.
        preset: &'static str,
    },
    /// A quantity is outside its range.
    OutOfRange {
        /// The config key of the quantity.
        field: &'static str,
        /// The given value.
        value: f64,
        /// The range in words.
        expected: &'static str,
    },
    /// The heads cannot be split evenly over the GPUs.
    UnevenSplit {
        /// The config key of the head count.
        field: &'static str,
        /// Number of heads.
        heads: u64,
        /// Number of GPUs.
        tensor_parallel: u64,
    },
    /// A quantity that describes the experts is missing.
    MissingOfExperts {
        /// The config key of the quantity.
        field: &'static str,
    },
    /// A quantity that describes experts is given, but the model has no experts.
    NoMoeLayers {
        /// The config key of the quantity.
        field: &'static str,
    },
}

impl fmt::Display for RooflineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownPreset { field, name, known } => {
                write!(f, "`{field}` is \"{name}\", which is not a preset; use one of {known}")
            }
            Self::UnknownDtype { name, known } => {
                write!(f, "invalid `weight_dtype`: expected one of {known}, got \"{name}\"")
            }
            Self::Missing { field, preset } => {
                write!(f, "`{field}` has no value; set it, or name a preset in `{preset}`")
            }
            Self::MissingOfExperts { field } => {
                write!(f, "`{field}` has no value, but `moe_layers` needs experts")
            }
            Self::NoMoeLayers { field } => {
                write!(f, "`{field}` is set, but no layer has experts: set `moe_layers`")
            }
            Self::OutOfRange { field, value, expected } => {
                write!(f, "invalid `{field}`: expected {expected}, got {value}")
            }
            Self::UnevenSplit { field, heads, tensor_parallel } => {
                write!(f, "`{field}` ({heads}) cannot be split evenly over `tensor_parallel` ({tensor_parallel}) GPUs")
            }
        }
    }
}

impl core::error::Error for RooflineError {}
