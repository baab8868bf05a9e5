//! Errors of guests, from loading to answers.

mod call;
mod load;

use std::path::PathBuf;

pub use call::{ActionProblem, CallFault};
pub use load::LoadProblem;

/// An error of a guest; see [`GuestError::hint`] for the next step.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    #[error("cannot read guest `{}`: {source}", path.display())]
    Read {
        /// Path as given.
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot load guest `{guest}`: {problem}")]
    Load {
        /// Path or name of the guest.
        guest: String,
        problem: LoadProblem,
    },
    #[error("guest `{guest}` failed in `{call}`: {fault}")]
    Call {
        /// Name of the guest.
        guest: String,
        /// Name of the call in `wit/`.
        call: &'static str,
        fault: CallFault,
        /// The component's example config, if it has one.
        example: Option<String>,
    },
    #[error("this machine cannot run guest `{guest}`: {reason}; {HOST_HINT}")]
    Host {
        /// Name of the guest.
        guest: String,
        reason: String,
    },
    #[error("the WebAssembly sandbox cannot be set up: {reason}")]
    Sandbox { reason: String },
}

impl GuestError {
    /// The next step for the user, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Some("build the guest first: `vcr guest build`".into())
            }
            Self::Read { .. } => None,
            Self::Load { problem, .. } => problem.hint(),
            Self::Call { fault: CallFault::Rejected { .. }, example: Some(example), .. } => Some(example_hint(example)),
            Self::Call { fault, .. } => fault.hint(),
            // The message already has the hint, because other errors quote it.
            Self::Host { .. } => None,
            Self::Sandbox { .. } => Some(HOST_HINT.into()),
        }
    }

    pub(crate) fn of_call(guest: &str, call: &'static str, fault: CallFault, example: Option<&str>) -> Self {
        let (guest, example) = (guest.to_owned(), example.map(str::to_owned));
        match fault {
            CallFault::Host { reason } => Self::Host { guest, reason },
            fault => Self::Call { guest, call, fault, example },
        }
    }
}

/// The hint for errors caused by too few resources of the machine.
const HOST_HINT: &str = "raise the limits of the process (`ulimit -v` for address space, `ulimit -u` for threads) or of its \
                         container, or run fewer engines at once";

/// Longer examples are not shown in hints.
const EXAMPLE_CHARS_MAX: usize = 400;

/// A hint with a valid config, for a user whose config was refused.
fn example_hint(example: &str) -> String {
    if example.chars().count() <= EXAMPLE_CHARS_MAX {
        format!("the guest's example config is {example}")
    } else {
        "`vcr guest inspect` shows the guest's example config".to_owned()
    }
}
