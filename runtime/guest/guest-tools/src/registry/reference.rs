//! References to guests.

use std::path::PathBuf;

use crate::registry::OciReference;
use crate::registry::error::RegistryError;

pub(crate) const SCHEME: &str = "oci://";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestReference {
    /// A file.
    Path(PathBuf),
    /// A guest in a registry.
    Oci(OciReference),
}

impl GuestReference {
    /// Parses a reference: `oci://...` is in a registry, any other text is a path.
    ///
    /// # Errors
    /// When the text begins with `oci://` and is not a valid reference.
    pub fn parse(text: &str) -> Result<Self, RegistryError> {
        if text.starts_with(SCHEME) { text.parse().map(Self::Oci) } else { Ok(Self::Path(text.into())) }
    }

    /// Whether `text` begins with `oci://`.
    #[must_use]
    pub fn is_oci(text: &str) -> bool {
        text.starts_with(SCHEME)
    }
}
