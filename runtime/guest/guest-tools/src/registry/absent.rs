//! Replacement for the client in builds without the feature `oci`: no text is a reference into a
//! registry, and the error names the missing feature.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::registry::error::RegistryError;

/// Has no values in this build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OciReference {}

impl FromStr for OciReference {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, RegistryError> {
        Err(RegistryError::NotBuilt { text: text.to_owned() })
    }
}

impl OciReference {
    /// The name of the guest.
    #[must_use]
    pub fn name(&self) -> &str {
        match *self {}
    }

    #[must_use]
    pub fn digest(&self) -> Option<&str> {
        match *self {}
    }
}

impl fmt::Display for OciReference {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

/// A stored guest; it needs a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Name of the guest.
    pub name: String,
    /// The component.
    pub path: PathBuf,
    /// The reference with its digest.
    pub pinned: OciReference,
}

/// Credentials, which this build does not use.
#[derive(Clone, Debug, Default)]
pub struct DockerConfig;

/// A store that holds nothing.
#[derive(Clone, Debug)]
pub struct Store;

impl Store {
    /// The store of the user.
    pub fn from_env() -> Result<Self, RegistryError> {
        Ok(Self)
    }

    /// A store in a folder.
    #[must_use]
    pub fn new(_folder: PathBuf, _docker: DockerConfig) -> Self {
        Self
    }

    /// The guest of a reference.
    pub fn find(&self, reference: &OciReference) -> Result<Found, RegistryError> {
        match *reference {}
    }

    /// Downloads a guest from its registry, by tag or digest.
    pub fn pull(&self, reference: &OciReference) -> Result<Found, RegistryError> {
        match *reference {}
    }

    /// Pushes a component.
    pub fn push(&self, _path: &Path, reference: &OciReference) -> Result<OciReference, RegistryError> {
        match *reference {}
    }
}
