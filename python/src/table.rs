//! Tables in Arrow's memory, passed on by its C interface: whole numbers and the texts' bytes are
//! not copied again on their way to pyarrow, pandas or Polars.

use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{Array, ArrayRef, Float64Array, RecordBatch, RecordBatchIterator, StringArray, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use vcr::library::table::Column;
use vcr::library::{self, Cells};

use crate::error::{internal, raised};

/// Columns of equal length.
#[pyclass(frozen, module = "vcr._vcr")]
pub(crate) struct Table {
    batch: RecordBatch,
}

impl Table {
    /// Takes columns over; counts keep their memory.
    pub(crate) fn new(columns: Vec<Column>) -> PyResult<Self> {
        let (mut fields, mut arrays) = (Vec::new(), Vec::<ArrayRef>::new());
        for Column { name, cells } in columns {
            let (kind, is_nullable, array): (_, _, ArrayRef) = match cells {
                Cells::Texts(texts) => (DataType::Utf8, false, Arc::new(StringArray::from_iter_values(texts))),
                Cells::Counts(counts) => (DataType::UInt64, false, Arc::new(UInt64Array::from(counts))),
                Cells::Numbers(numbers) => (DataType::Float64, true, Arc::new(Float64Array::from(numbers))),
            };
            fields.push(Field::new(name, kind, is_nullable));
            arrays.push(array);
        }
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays);
        Ok(Self { batch: batch.map_err(|error| internal(&error.to_string()))? })
    }

    /// The columns in the form for writing files.
    fn columns(&self) -> Vec<Column> {
        let names = self.batch.schema_ref().fields().iter().map(|field| field.name().clone());
        names.zip(self.batch.columns()).map(|(name, array)| Column { name, cells: cells_of(array) }).collect()
    }
}

fn cells_of(array: &ArrayRef) -> Cells {
    let any = array.as_any();
    if let Some(texts) = any.downcast_ref::<StringArray>() {
        Cells::Texts(texts.iter().map(|text| text.unwrap_or_default().to_owned()).collect())
    } else if let Some(counts) = any.downcast_ref::<UInt64Array>() {
        Cells::Counts(counts.values().to_vec())
    } else {
        Cells::Numbers(any.downcast_ref::<Float64Array>().map(|numbers| numbers.iter().collect()).unwrap_or_default())
    }
}

#[pymethods]
impl Table {
    /// Arrow's C stream interface.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // A producer may answer with its own schema.
        drop(requested_schema);
        let batches = RecordBatchIterator::new([Ok(self.batch.clone())], self.batch.schema());
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(batches)), c"arrow_array_stream")
    }

    #[getter]
    fn num_rows(&self) -> usize {
        self.batch.num_rows()
    }

    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.batch.schema_ref().fields().iter().map(|field| field.name().clone()).collect()
    }

    /// The values of a column, as Python's; none if there is no such column.
    fn column(&self, py: Python<'_>, name: &str) -> PyResult<Option<Py<PyAny>>> {
        let Some(array) = self.batch.column_by_name(name) else { return Ok(None) };
        Ok(Some(match cells_of(array) {
            Cells::Texts(texts) => texts.into_pyobject(py)?.into_any().unbind(),
            Cells::Counts(counts) => counts.into_pyobject(py)?.into_any().unbind(),
            Cells::Numbers(numbers) => numbers.into_pyobject(py)?.into_any().unbind(),
        }))
    }

    /// Writes a .csv, .json or .parquet file.
    #[pyo3(signature = (path, force = false))]
    fn write(&self, py: Python<'_>, path: PathBuf, force: bool) -> PyResult<()> {
        py.detach(|| library::write_columns(&path, &self.columns(), force)).map_err(|refusal| raised(py, refusal))
    }
}

/// The requests of a capture, or of anything that converts to one.
#[pyfunction]
pub(crate) fn read_capture(py: Python<'_>, path: PathBuf) -> PyResult<Table> {
    Table::new(py.detach(|| library::capture_columns(&path)).map_err(|refusal| raised(py, refusal))?)
}

/// The steps of a step log.
#[pyfunction]
pub(crate) fn read_steps(py: Python<'_>, path: PathBuf) -> PyResult<Table> {
    Table::new(py.detach(|| library::step_columns(&path)).map_err(|refusal| raised(py, refusal))?)
}
