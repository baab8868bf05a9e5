//! An instance, until it fails.

use crate::error::CallFault;

/// One instance of a guest, and the end of it.
pub(crate) struct Running<I: ?Sized> {
    guest: String,
    state: State<I>,
}

enum State<I: ?Sized> {
    Alive(Box<I>),
    /// The instance has been dropped: after a trap it could not be entered again, and after any
    /// other error its state is not trustworthy.
    Failed {
        first: String,
    },
}

/// The failed guest and its fault, for errors of the engine core.
pub(crate) struct Failure {
    pub(crate) guest: String,
    pub(crate) reason: String,
}

impl<I: ?Sized> Running<I> {
    pub(crate) fn new(guest: String, instance: Box<I>) -> Self {
        Self { guest, state: State::Alive(instance) }
    }

    /// The guest's name.
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

    /// Makes calls of `function` to the instance and checks their answers, all
    /// in `calls`. The first error is the end of the instance.
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
