//! Shape and data type of a model's KV.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;
use vcr_latency::tables::KvShape;
use vcr_wire::Dtype;

use super::unusable::Unusable;
use crate::values::input;

/// Where the shape comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShapeArg {
    /// Layers x KV heads x head size.
    Numbers(KvShape),
    /// A model's `config.json`, or its folder.
    File(PathBuf),
}

impl FromStr for ShapeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Vec<_> =
            text.split('x').map(|number| number.trim().parse::<u32>().ok().filter(|it| *it > 0)).collect();
        if let [Some(layers), Some(heads), Some(head_size)] = numbers[..] {
            return Ok(Self::Numbers(of_numbers(layers, heads, head_size)));
        }
        let path = input(Path::new(text))?;
        let is_url = vcr_base::input::remote::url(&path).is_some();
        let file = if path.is_dir() { path.join("config.json") } else { path };
        if is_url {
            return Ok(Self::File(file));
        }
        if text.is_empty() || !file.exists() {
            return Err("expected layers x KV heads x head size, such as 32x8x128, or a model's config.json".to_owned());
        }
        Ok(Self::File(file))
    }
}

fn of_numbers(layers: u32, heads: u32, head_size: u32) -> KvShape {
    KvShape { layers, heads, head_size, is_latent: false, is_fp8: false, dtype: None }
}

impl ShapeArg {
    /// The shape of `--kv-shape`, by default that of the served model, otherwise that of an 8B model.
    pub(crate) fn resolve(given: Option<&Self>, model_config: Option<&Path>) -> Result<KvShape, Unusable> {
        let (place, path) = match given {
            Some(Self::Numbers(shape)) => return Ok(shape.clone()),
            Some(Self::File(path)) => ("--kv-shape", path.as_path()),
            None => match model_config {
                Some(path) => ("the KV of MODEL", path),
                None => return Ok(of_numbers(32, 8, 128)),
            },
        };
        KvShape::read(path).map_err(|error| Unusable {
            message: format!("{place}: {error}"),
            hint: Some("give the shape by hand: --kv-shape LAYERSxHEADSxSIZE".to_owned()),
        })
    }
}

/// Data type of the KV cache, with vLLM's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvDtypeArg {
    /// The weights' type, unless the checkpoint states another.
    Auto,
    Float16,
    Bfloat16,
    Fp8,
    #[value(name = "fp8_e4m3")]
    Fp8E4m3,
    #[value(name = "fp8_e5m2")]
    Fp8E5m2,
}

impl fmt::Display for KvDtypeArg {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.to_possible_value().as_ref().map_or("auto", |value| value.get_name()))
    }
}

impl KvDtypeArg {
    /// Bytes of a number in the cache.
    pub(crate) fn bytes(self, shape: &KvShape, weights: Dtype) -> u32 {
        match (self, weights) {
            (Self::Fp8 | Self::Fp8E4m3 | Self::Fp8E5m2, _) => 1,
            (Self::Auto, _) if shape.is_fp8 => 1,
            (Self::Auto, Dtype::Float32) => 4,
            (Self::Auto | Self::Float16 | Self::Bfloat16, _) => 2,
        }
    }
}

/// The data type that vLLM uses for a checkpoint's weights: float32 becomes bfloat16.
pub(crate) fn weights_dtype(shape: &KvShape) -> Option<Dtype> {
    match shape.dtype.as_deref()? {
        "float16" => Some(Dtype::Float16),
        "bfloat16" | "float32" => Some(Dtype::Bfloat16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_numbers_or_files() {
        assert_eq!("32x8x128".parse(), Ok(ShapeArg::Numbers(of_numbers(32, 8, 128))));
        for text in ["", "32", "32x8", "32x0x128", "axbxc", "1x2x3x4", "/no/such/config.json"] {
            assert!(text.parse::<ShapeArg>().is_err(), "{text}");
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("config.json");
        std::fs::write(&file, "{}").expect("it is writable");
        for path in [folder.path(), &file] {
            assert_eq!(path.to_str().expect("a text").parse(), Ok(ShapeArg::File(file.clone())));
        }
    }

    #[test]
    fn the_cache_has_its_own_type_or_that_of_the_weights() {
        let (plain, small) = (of_numbers(1, 1, 1), KvShape { is_fp8: true, ..of_numbers(1, 1, 1) });
        for (arg, shape, weights, bytes) in [
            (KvDtypeArg::Auto, &plain, Dtype::Float32, 4),
            (KvDtypeArg::Auto, &plain, Dtype::Bfloat16, 2),
            (KvDtypeArg::Auto, &small, Dtype::Bfloat16, 1),
            (KvDtypeArg::Bfloat16, &small, Dtype::Float32, 2),
            (KvDtypeArg::Fp8E5m2, &plain, Dtype::Float32, 1),
        ] {
            assert_eq!(arg.bytes(shape, weights), bytes, "{arg}");
        }
        assert_eq!(KvDtypeArg::Fp8E4m3.to_string(), "fp8_e4m3");
    }
}
