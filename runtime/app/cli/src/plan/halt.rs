//! The early end of a plan.

use crate::refusal::Refusal;
use crate::stop;

/// The reason why a simulation has no result.
#[derive(Clone, Debug)]
pub(crate) enum Halt {
    /// The time limit or a signal: the answer is the best one so far.
    Over,
    Refused(Refusal),
}

impl From<Refusal> for Halt {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The result, or none if time ran out.
pub(crate) fn in_time<T>(result: Result<T, Halt>) -> Result<Option<T>, Refusal> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(Halt::Over) => Ok(None),
        Err(Halt::Refused(refusal)) => Err(refusal),
    }
}

/// The error of a search that ended before anything was simulated.
pub(crate) fn too_soon(cause: &str) -> Refusal {
    let refusal = Refusal::input(format!("{cause} ended the search before a deployment was simulated"));
    let refusal = Refusal { exit: stop::cause().map_or(refusal.exit, stop::Cause::exit), ..refusal };
    refusal.hint("give it more time, or fewer requests with --requests")
}
