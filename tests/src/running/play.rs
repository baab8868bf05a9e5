//! `vcr play` as a process of its own.

use std::ops::{Deref, DerefMut};

use crate::running::Running;

/// A running `vcr play`, killed in the end. A test that fails prints its log.
#[derive(Debug)]
pub struct Play(Running);

impl Play {
    /// Starts engines that go to `handshake_address`.
    ///
    /// # Panics
    /// When there is no such binary.
    #[must_use]
    pub fn start(handshake_address: &str, args: &[&str]) -> Self {
        Self::start_with(handshake_address, &[], args)
    }

    /// The same, with variables of the environment.
    ///
    /// # Panics
    /// When there is no such binary.
    #[must_use]
    pub fn start_with(handshake_address: &str, variables: &[(&str, &str)], args: &[&str]) -> Self {
        let all = [&["play", "--handshake-address", handshake_address, "--log-requests"], args].concat();
        Self(Running::start_with(variables, &all))
    }
}

impl Deref for Play {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.0
    }
}

impl DerefMut for Play {
    fn deref_mut(&mut self) -> &mut Running {
        &mut self.0
    }
}
