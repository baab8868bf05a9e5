//! Limits of scripts. `docs/reference/scenarios/language.md` lists them.
//!
//! The script engine limits operations, call depth and the size of each value. The
//! [`Meter`](crate::script::meter::Meter) limits the rest: the size of all values together, the number of runs, and
//! printed text.

use std::time::Duration;

use vcr_base::input::memory;
use vcr_base::units::format_bytes;
use vcr_cluster::MemoryEstimate;

/// A script with more operations than this counts as endless.
pub const MAX_SCRIPT_OPERATIONS: u64 = 50_000_000;

/// Maximum processor time of a script's operations. Runs and reading files do not count. The number of operations
/// alone is no limit, because an operation may copy a large value. Most scripts take far less than a second.
pub(crate) const MAX_SCRIPT_TIME: Duration = Duration::from_secs(60);

/// Default limit of runs of a scenario.
pub const DEFAULT_MAX_RUNS: u64 = 10_000;

/// Maximum depth of nested calls of a script.
pub(crate) const MAX_CALL_LEVELS: usize = 64;

/// Maximum bytes of a text, or of all texts in one array or map.
pub(crate) const MAX_STRING_BYTES: usize = 1 << 20;
/// Maximum number of elements of an array, including nested arrays. The script engine counts them after every call
/// on the array, so building an array takes quadratic time.
pub(crate) const MAX_ARRAY_ELEMENTS: usize = 20_000;
/// Maximum number of entries of a map, including nested maps.
pub(crate) const MAX_MAP_ENTRIES: usize = 10_000;
/// Maximum number of functions in a script, including closures. Compiling a closure that uses a variable takes time
/// proportional to the number of earlier closures.
pub(crate) const MAX_FUNCTIONS: usize = 1000;
pub(crate) const MAX_VARIABLES: usize = 10_000;

/// The hint of errors about missing memory.
pub const MEMORY_HINT: &str = "ask for fewer requests: lower the rate, the count or the duration, or cut the run off by \
     its virtual time; --memory-limit SIZE sets the limit (default: the memory in use plus 80 % of the available memory)";

/// Checks that there is enough memory for a run before it begins.
///
/// # Errors
/// When there is not enough, with the needed memory and the limit.
pub fn check_room(estimate: MemoryEstimate) -> Result<(), String> {
    let Some(used) = memory::resident_bytes() else { return Ok(()) };
    let needed = used.saturating_add(estimate.bytes);
    let Some(limit) = memory::limit_for(needed).filter(|limit| needed > *limit) else { return Ok(()) };
    Err(format!(
        "{} requests need at least {} of memory, and the limit is {}, of which {} are in use",
        estimate.requests,
        format_bytes(estimate.bytes as f64),
        format_bytes(limit as f64),
        format_bytes(used as f64),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_room_is_refused_with_its_numbers() {
        assert!(check_room(MemoryEstimate { requests: 1, bytes: 1 }).is_ok());
        let error = check_room(MemoryEstimate { requests: 3_600_000_000, bytes: 1 << 60 }).expect_err("too much");
        assert!(error.starts_with("3600000000 requests need at least 1.00 EiB of memory, and the limit is"), "{error}");
    }
}
