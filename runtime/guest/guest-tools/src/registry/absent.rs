//! Stand-in for the registry client in builds without the feature `oci`: references are errors that name the feature.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::registry::error::RegistryError;

/// Never constructed in this build.
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

/// A stored guest. Never constructed in this build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Name of the guest.
    pub name: String,
    /// Path of the component.
    pub path: PathBuf,
    /// The reference with its digest.
    pub pinned: OciReference,
}

/// Credentials; unused in this build.
#[derive(Clone, Debug, Default)]
pub struct DockerConfig;

/// An empty store.
#[derive(Clone, Debug)]
pub struct Store;

impl Store {
    /// Opens the user's store.
    pub fn from_env() -> Result<Self, RegistryError> {
        Ok(Self)
    }

    /// Opens a store in a folder.
    #[must_use]
    pub fn new(_folder: PathBuf, _docker: DockerConfig) -> Self {
        Self
    }

    /// Finds the guest of a reference.
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
