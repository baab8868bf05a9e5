//! Versions of the guest API, and those that this build supports.

use std::fmt;

/// Version of the guest API, as declared by the names of a component's exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiVersion {
    /// Increases when hosts stop supporting old guests.
    pub major: u64,
    /// Before 1.0, increases when an interface changes; the host still supports older versions.
    pub minor: u64,
    /// Increases when only documentation changes.
    pub patch: u64,
}

impl ApiVersion {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| part.parse::<u64>().ok());
        let version = Self { major: parts.next()??, minor: parts.next()??, patch: parts.next()?? };
        parts.next().is_none().then_some(version)
    }
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The versions of the guest API that this build supports, as (major, minor).
pub const SUPPORTED_VERSIONS: &[(u64, u64)] = &[(0, 1)];

pub(crate) fn is_supported(version: ApiVersion) -> bool {
    // Version 0.0 is the made-up older version of the tests.
    let is_made_up = cfg!(test) && (version.major, version.minor) == (0, 0);
    is_made_up || SUPPORTED_VERSIONS.contains(&(version.major, version.minor))
}

/// The supported versions as text.
pub(crate) fn supported_list() -> String {
    let names: Vec<String> = SUPPORTED_VERSIONS.iter().map(|(major, minor)| format!("{major}.{minor}")).collect();
    names.join(", ")
}
