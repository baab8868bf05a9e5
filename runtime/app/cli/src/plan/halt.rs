//! The end of a command before its work is done.

use crate::refusal::Refusal;
use crate::stop;

/// Why a simulation has no result.
#[derive(Clone, Debug)]
pub(crate) enum Halt {
    /// The time has passed, or a signal has arrived: the answer is the best so far.
    Over,
    Refused(Refusal),
}

impl From<Refusal> for Halt {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A result, if there was time for it.
pub(crate) fn in_time<T>(result: Result<T, Halt>) -> Result<Option<T>, Refusal> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(Halt::Over) => Ok(None),
        Err(Halt::Refused(refusal)) => Err(refusal),
    }
}

/// The search ended before anything was simulated.
pub(crate) fn too_soon(cause: &str) -> Refusal {
    let refusal = Refusal::input(format!("{cause} ended the search before a deployment was simulated"));
    let refusal = Refusal { exit: stop::cause().map_or(refusal.exit, stop::Cause::exit), ..refusal };
    refusal.hint("give it more time, or fewer requests with --requests")
}
