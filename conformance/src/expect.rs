//! Results of checks.

use std::fmt::Debug;

use anyhow::{Result, bail};

/// Result of a check that did not fail.
pub enum Verdict {
    Held,
    /// Why it does not apply to this engine.
    LeftOut(String),
}

/// That two values are the same.
pub fn same<T: PartialEq + Debug>(what: &str, found: T, expected: T) -> Result<()> {
    if found != expected {
        bail!("{what}: expected {expected:?}, found {found:?}");
    }
    Ok(())
}
