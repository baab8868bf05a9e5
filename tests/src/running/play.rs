//! `vcr play` as a separate process.

use std::ops::{Deref, DerefMut};

use crate::running::Running;

/// A running `vcr play`, which is killed on drop. A failed test prints its log.
#[derive(Debug)]
pub struct Play(Running);

impl Play {
    /// Starts engines that connect to `handshake_address`.
    ///
    /// # Panics
    /// There is no such binary.
    #[must_use]
    pub fn start(handshake_address: &str, args: &[&str]) -> Self {
        Self::start_with(handshake_address, &[], args)
    }

    /// Like [`Play::start`], with environment variables.
    ///
    /// # Panics
    /// There is no such binary.
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
