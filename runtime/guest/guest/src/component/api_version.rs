//! Versions of the guest interface, and the supported ones.

use std::fmt;

/// Version of the guest API, as the names of a component's exports declare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiVersion {
    /// Rises when old guests stop working.
    pub major: u64,
    /// Rises, before 1.0, when an interface changes; the host keeps serving
    /// older ones.
    pub minor: u64,
    /// Rises when only words change.
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

/// The versions of the guest API that this build serves, as (major, minor).
pub const SUPPORTED_VERSIONS: &[(u64, u64)] = &[(0, 1)];

pub(crate) fn is_supported(version: ApiVersion) -> bool {
    // For the made-up older version of the tests.
    let is_made_up = cfg!(test) && (version.major, version.minor) == (0, 0);
    is_made_up || SUPPORTED_VERSIONS.contains(&(version.major, version.minor))
}

/// The supported versions in words.
pub(crate) fn supported_list() -> String {
    let names: Vec<String> = SUPPORTED_VERSIONS.iter().map(|(major, minor)| format!("{major}.{minor}")).collect();
    names.join(", ")
}
