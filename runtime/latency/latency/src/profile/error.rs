//! Errors of profiles. Each error names the file and the array.

use std::io;

/// A fault of an array of measured points.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PointsFault {
    /// There are too few values for a line.
    #[error("has {count} value(s), but interpolation needs at least {min}")]
    TooFew {
        /// Number of values.
        count: usize,
        /// Minimum number of values.
        min: usize,
    },
    /// The length differs from that of related arrays.
    #[error("has {count} values where {expected} are expected ({why})")]
    WrongLength {
        /// Number of values.
        count: usize,
        /// Expected number of values.
        expected: usize,
        /// Name of the array with the expected length.
        why: String,
    },
    /// A value is not a finite number of at least 0.
    #[error("has the value {value} at index {index}, but needs finite numbers of at least 0")]
    BadValue {
        /// Index of the value.
        index: usize,
        /// The value.
        value: f64,
    },
    /// An axis does not increase strictly.
    #[error("must grow strictly, but {value} at index {index} follows {before}")]
    NotIncreasing {
        /// Index of the value.
        index: usize,
        /// The value.
        value: f64,
        /// The previous value.
        before: f64,
    },
    /// The same point occurs twice.
    #[error("measures context length {context_tokens} at {active_kv_tokens} KV tokens twice")]
    DuplicatePoint {
        /// Context length of the point.
        context_tokens: f64,
        /// KV tokens of the point.
        active_kv_tokens: f64,
    },
    /// No context length has two points.
    #[error("has no context length that was measured at two loads, so the growth of time with load is unknown")]
    NoSeries,
}

/// An array and what is wrong with it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("array `{array}` {fault}")]
pub struct PointsProblem {
    /// Name of the array in the file.
    pub array: String,
    /// The fault of the array.
    pub fault: PointsFault,
}

/// The reason why a profile cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The path has none of the known layouts.
    #[error(
        "`{path}` is not a planner profile: give a .npz file, a folder with prefill.npz and \
         decode.npz, or a profiler folder with selected_prefill_interpolation/raw_data.npz and \
         selected_decode_interpolation/raw_data.npz"
    )]
    NoLayout {
        /// The path.
        path: String,
    },
    /// This build reads no NumPy arrays.
    #[error(
        "this build of vcr lacks the feature `formats`, which profile `{path}` needs; build it with --features full"
    )]
    NotBuilt {
        /// The file.
        path: String,
    },
    /// A file could not be opened.
    #[error("cannot open profile `{path}`: {source}")]
    Io {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// A file is not an archive of arrays.
    #[error("cannot read profile `{path}` as .npz: {source}")]
    Archive {
        /// The file.
        path: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file has none of the accepted arrays.
    #[error("profile `{path}` has no array {wanted}; it has {present}")]
    MissingArray {
        /// The file.
        path: String,
        /// The accepted names.
        wanted: String,
        /// The names that the file has.
        present: String,
    },
    /// An array cannot be read as numbers.
    #[error("profile `{path}`, array `{array}`: {source}")]
    Array {
        /// The file.
        path: String,
        /// The array.
        array: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An array has the wrong number of dimensions or of rows.
    #[error("profile `{path}`, array `{array}` has shape {shape:?}, but {expected}")]
    Shape {
        /// The file.
        path: String,
        /// The array.
        array: String,
        /// The array's shape.
        shape: Vec<usize>,
        /// The expected shape.
        expected: &'static str,
    },
    /// The file has several deployments, and the choice does not name one of them.
    #[error("profile `{path}` holds {rows} deployments{names}; {advice}")]
    ChooseDeployment {
        /// The file.
        path: String,
        /// Number of deployments.
        rows: usize,
        /// Names that distinguish the deployments.
        names: String,
        /// Advice for the user.
        advice: String,
    },
    /// The points cannot be interpolated.
    #[error("profile `{path}`: {}", join(.problems))]
    Points {
        /// The file.
        path: String,
        /// All problems. Never empty.
        problems: Vec<PointsProblem>,
    },
}

fn join(problems: &[PointsProblem]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    texts.join("; ")
}
