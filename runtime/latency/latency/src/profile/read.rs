//! Reads planner profiles from `.npz` files.
//!
//! There are three layouts: one file with everything; a folder with `prefill.npz` and `decode.npz`; and a profiler's
//! folder, whose `selected_prefill_interpolation` and `selected_decode_interpolation` each hold a `raw_data.npz`. The
//! arrays are found by name:
//!
//! * prefill: `prefill_isl` (tokens) and `prefill_ttft_ms` or `prefill_ttft` (ms);
//! * decode as a grid: `decode_active_kv_tokens`, `decode_context_length` and `decode_itl` (ms, one row per KV value);
//! * or decode as a profiler's sweep: `x_kv_usage` (fraction of `max_kv_tokens`), `y_context_length` and `z_itl` (ms).
//!
//! Prefill and sweep arrays may have a leading dimension with one row per profiled deployment; [`Deployment`] selects
//! one. Sweeps are interpolated as measured (see [`DecodeSurface`]), whereas Dynamo resamples a regression through
//! them.

use super::error::{PointsProblem, ProfileError};
use super::table::{Column, DecodeSurface, PrefillCurve};
use super::{Deployment, ProfileTables};
use ndarray::{ArrayD, OwnedRepr};
use ndarray_npy::{NpzReader, ReadNpyError, ReadNpzError, ReadableElement};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Reads a profile in any of the known layouts. The module lists the names of the arrays.
///
/// # Errors
/// A [`ProfileError`] that names the file, and the array if it has one.
pub fn read(path: &Path, deployment: Deployment) -> Result<ProfileTables, ProfileError> {
    let (prefill_path, decode_path) = layout(path)?;
    let mut archive = Archive::open(&prefill_path)?;
    let prefill = archive.prefill(deployment)?;
    if decode_path != prefill_path {
        archive = Archive::open(&decode_path)?;
    }
    let decode = archive.decode(deployment)?;
    Ok(ProfileTables { prefill, decode })
}

fn layout(path: &Path) -> Result<(PathBuf, PathBuf), ProfileError> {
    if path.is_file() {
        return Ok((path.to_owned(), path.to_owned()));
    }
    for (prefill, decode) in [
        ("prefill.npz", "decode.npz"),
        ("selected_prefill_interpolation/raw_data.npz", "selected_decode_interpolation/raw_data.npz"),
    ] {
        let files = (path.join(prefill), path.join(decode));
        // One of the two files is enough to recognise the layout. A missing one is reported when it is opened.
        if files.0.is_file() || files.1.is_file() {
            return Ok(files);
        }
    }
    let path = path.display().to_string();
    Err(ProfileError::NoLayout { path })
}

struct Archive {
    path: String,
    names: Vec<String>,
    npz: NpzReader<BufReader<File>>,
}

impl Archive {
    fn open(path: &Path) -> Result<Archive, ProfileError> {
        let shown = path.display().to_string();
        let file = File::open(path).map_err(|source| ProfileError::Io { path: shown.clone(), source })?;
        let not_npz = |source| ProfileError::Archive { path: shown.clone(), source: Box::new(source) };
        let mut npz = NpzReader::new(BufReader::new(file)).map_err(not_npz)?;
        let names = npz.names().map_err(not_npz)?;
        Ok(Archive { path: shown, names, npz })
    }

    fn prefill(&mut self, deployment: Deployment) -> Result<PrefillCurve, ProfileError> {
        let isl = self.one_of(&["prefill_isl"])?;
        let ttft = self.one_of(&["prefill_ttft_ms", "prefill_ttft"])?;
        let row = self.deployment_row(isl, deployment)?;
        let (isl, ttft) = (self.column(isl, row)?, self.column(ttft, row)?);
        PrefillCurve::new(isl, ttft).map_err(|problems| self.points(problems))
    }

    fn decode(&mut self, deployment: Deployment) -> Result<DecodeSurface, ProfileError> {
        let kv = self.one_of(&["decode_active_kv_tokens", "x_kv_usage"])?;
        if kv == "x_kv_usage" {
            return self.swept(deployment);
        }
        let context = self.one_of(&["decode_context_length"])?;
        let itl = self.one_of(&["decode_itl"])?;
        let (kv, context) = (self.column(kv, 0)?, self.column(context, 0)?);
        let grid = self.array(itl)?;
        if grid.shape() != [kv.values.len(), context.values.len()] {
            return Err(self.shape(
                itl,
                &grid,
                "must have a row per `decode_active_kv_tokens` and a column per \
                 `decode_context_length`",
            ));
        }
        let itl = Column {
            name: itl.to_owned(),
            // Read by index, so that an array stored by columns gives the same result.
            values: grid.iter().copied().collect(),
        };
        DecodeSurface::grid(kv, context, itl).map_err(|problems| self.points(problems))
    }

    fn swept(&mut self, deployment: Deployment) -> Result<DecodeSurface, ProfileError> {
        for name in ["y_context_length", "z_itl", "max_kv_tokens"] {
            self.one_of(&[name])?;
        }
        let row = self.deployment_row("x_kv_usage", deployment)?;
        let mut kv = self.column("x_kv_usage", row)?;
        let context = self.column("y_context_length", row)?;
        let itl = self.column("z_itl", row)?;
        let max_kv = self.column("max_kv_tokens", row)?;
        let [max_kv_tokens] = max_kv.values[..] else {
            let array = self.array("max_kv_tokens")?;
            return Err(self.shape("max_kv_tokens", &array, "must hold one number per deployment"));
        };
        for share in &mut kv.values {
            *share *= max_kv_tokens;
        }
        DecodeSurface::swept(kv, context, itl).map_err(|problems| self.points(problems))
    }

    /// The first of the wanted names that the file has.
    fn one_of(&self, wanted: &[&'static str]) -> Result<&'static str, ProfileError> {
        wanted.iter().find(|name| self.names.iter().any(|present| present == *name)).copied().ok_or_else(|| {
            ProfileError::MissingArray {
                path: self.path.clone(),
                wanted: format!("`{}`", wanted.join("` or `")),
                present: format!("`{}`", self.names.join("`, `")),
            }
        })
    }

    /// The row of the wanted deployment. 0 if the arrays have no rows.
    fn deployment_row(&mut self, array: &str, deployment: Deployment) -> Result<usize, ProfileError> {
        let values = self.array(array)?;
        let rows = if values.ndim() == 2 { values.shape()[0] } else { 1 };
        let sizes: Vec<f64> = match self.names.iter().any(|name| name == "tp") {
            true => self.array("tp")?.iter().copied().collect(),
            false => Vec::new(),
        };
        let chosen = match deployment {
            Deployment::Only => (rows == 1).then_some(0),
            Deployment::Row(row) => (row < rows).then_some(row),
            Deployment::TensorParallel(size) => {
                let mut rows = (0..rows).filter(|row| sizes.get(*row) == Some(&(size as f64)));
                // Two deployments of the same size would be ambiguous.
                rows.next().filter(|_| rows.next().is_none())
            }
        };
        chosen.ok_or_else(|| ProfileError::ChooseDeployment {
            path: self.path.clone(),
            rows,
            names: if sizes.is_empty() { String::new() } else { format!(" (tensor-parallel sizes {sizes:?})") },
            advice: match deployment {
                Deployment::Only => "name one by row or tensor-parallel size".to_owned(),
                Deployment::Row(row) => format!("row {row} is not among them (rows count from 0)"),
                Deployment::TensorParallel(size) => {
                    format!("not exactly one has tensor-parallel size {size}")
                }
            },
        })
    }

    /// One row of an array, or the whole array if it has no rows.
    fn column(&mut self, name: &str, row: usize) -> Result<Column, ProfileError> {
        let array = self.array(name)?;
        let values: Vec<f64> = match *array.shape() {
            [_] => array.iter().copied().collect(),
            [rows, len] if row < rows => array.iter().skip(row * len).take(len).copied().collect(),
            _ => {
                let expected = "expected a list, or one list per deployment";
                return Err(self.shape(name, &array, expected));
            }
        };
        let name = name.to_owned();
        Ok(Column { name, values })
    }

    /// Reads an array of any numeric type as doubles.
    fn array(&mut self, name: &str) -> Result<ArrayD<f64>, ProfileError> {
        let as_f64 = self.typed::<f64>(name);
        let array = match as_f64 {
            Err(error) if is_other_type(&error) => match self.typed::<i64>(name) {
                Err(error) if is_other_type(&error) => match self.typed::<f32>(name) {
                    Err(error) if is_other_type(&error) => self.typed::<i32>(name).map(|a| a.mapv(f64::from)),
                    other => other.map(|a| a.mapv(f64::from)),
                },
                // Token counts are far below 2^53, so doubles hold them exactly.
                other => other.map(|a| a.mapv(|value| value as f64)),
            },
            other => other,
        };
        array.map_err(|source| ProfileError::Array {
            path: self.path.clone(),
            array: name.to_owned(),
            source: Box::new(source),
        })
    }

    fn typed<T: ReadableElement>(&mut self, name: &str) -> Result<ArrayD<T>, ReadNpzError> {
        self.npz.by_name::<OwnedRepr<T>, _>(name)
    }

    fn shape(&self, name: &str, array: &ArrayD<f64>, expected: &'static str) -> ProfileError {
        ProfileError::Shape { path: self.path.clone(), array: name.to_owned(), shape: array.shape().to_vec(), expected }
    }

    fn points(&self, problems: Vec<PointsProblem>) -> ProfileError {
        let path = self.path.clone();
        ProfileError::Points { path, problems }
    }
}

fn is_other_type(error: &ReadNpzError) -> bool {
    matches!(error, ReadNpzError::Npy(ReadNpyError::WrongDescriptor(_)))
}
