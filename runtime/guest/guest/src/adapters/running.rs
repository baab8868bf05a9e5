//! An instance that is dropped at its first error.

use crate::error::CallFault;

/// One instance of a guest, or its first fault.
pub(crate) struct Running<I: ?Sized> {
    guest: String,
    state: State<I>,
}

enum State<I: ?Sized> {
    Alive(Box<I>),
    /// The instance has been dropped: after a trap it cannot be entered again, and after any other error its state is
    /// not reliable.
    Failed {
        first: String,
    },
}

/// The guest's name and its fault, for errors of the engine core.
pub(crate) struct Failure {
    pub(crate) guest: String,
    pub(crate) reason: String,
}

impl<I: ?Sized> Running<I> {
    pub(crate) fn new(guest: String, instance: Box<I>) -> Self {
        Self { guest, state: State::Alive(instance) }
    }

    pub(crate) fn guest(&self) -> &str {
        &self.guest
    }

    /// The instance, if it has not failed.
    pub(crate) fn instance_mut(&mut self) -> Option<&mut I> {
        match &mut self.state {
            State::Alive(instance) => Some(instance),
            State::Failed { .. } => None,
        }
    }

    /// Runs `calls`, which calls `function` of the instance and checks the answers. An error drops the instance.
    pub(crate) fn call<R>(
        &mut self,
        function: &'static str,
        calls: impl FnOnce(&mut I) -> Result<R, CallFault>,
    ) -> Result<R, Failure> {
        match &mut self.state {
            State::Alive(instance) => match calls(instance) {
                Ok(answer) => Ok(answer),
                Err(fault) => {
                    self.state = State::Failed { first: fault.to_string() };
                    Err(self.failure(function, &fault))
                }
            },
            State::Failed { first } => {
                let fault = CallFault::FailedBefore { first: first.clone() };
                Err(self.failure(function, &fault))
            }
        }
    }

    #[cold]
    fn failure(&self, function: &'static str, fault: &CallFault) -> Failure {
        Failure { guest: self.guest.clone(), reason: format!("in `{function}`: {}", fault.with_hint()) }
    }
}
