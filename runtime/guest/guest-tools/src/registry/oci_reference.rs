//! References into OCI registries.

use std::fmt;
use std::str::FromStr;

use oci_client::Reference;

use crate::registry::error::RegistryError;
use crate::registry::reference::SCHEME;

/// A guest in an OCI registry: `oci://registry/repository[:tag][@sha256:...]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciReference {
    inner: Reference,
}

impl FromStr for OciReference {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, RegistryError> {
        let bad = |problem: String| RegistryError::BadReference { text: text.to_owned(), problem };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| bad(format!("expected `{SCHEME}` at its start")))?;
        // Without a registry, the parser would assume Docker Hub.
        let registry = rest.split_once('/').map_or("", |(registry, _)| registry);
        if registry != "localhost" && !registry.contains(['.', ':']) {
            return Err(bad("expected a registry, such as `ghcr.io` or `localhost:5000`".to_owned()));
        }
        let inner: Reference = rest.parse().map_err(|error| bad(format!("{error}")))?;
        if let Some(digest) = inner.digest()
            && !digest.strip_prefix("sha256:").is_some_and(is_sha256)
        {
            return Err(bad(format!("expected a SHA-256 digest of 64 lower-case hexadecimal digits, got `{digest}`")));
        }
        Ok(Self { inner })
    }
}

pub(crate) fn is_sha256(hex: &str) -> bool {
    hex.len() == 64 && hex.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

impl OciReference {
    /// Digest of the manifest, `sha256:...`, if the reference has one.
    #[must_use]
    pub fn digest(&self) -> Option<&str> {
        self.inner.digest()
    }

    /// Name of the guest: the last part of the repository.
    #[must_use]
    pub fn name(&self) -> &str {
        let repository = self.inner.repository();
        repository.rsplit('/').next().unwrap_or(repository)
    }

    /// This reference with `digest`, which pins the content.
    #[must_use]
    pub fn pinned(&self, digest: &str) -> Self {
        Self { inner: self.inner.clone_with_digest(digest.to_owned()) }
    }

    pub(crate) fn inner(&self) -> &Reference {
        &self.inner
    }

    pub(crate) fn registry(&self) -> &str {
        self.inner.registry()
    }

    /// Whether the registry is on this machine, where plain HTTP is safe.
    pub(crate) fn is_local(&self) -> bool {
        let registry = self.registry();
        let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
        matches!(host, "localhost" | "127.0.0.1" | "[::1]")
    }
}

impl fmt::Display for OciReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::GuestReference;

    const HEX: &str = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";

    #[test]
    fn references_round_trip() {
        for text in [
            "oci://ghcr.io/someone/guests/roofline:1.2".to_owned(),
            format!("oci://localhost:5000/roofline@sha256:{HEX}"),
            format!("oci://localhost:5000/roofline:1@sha256:{HEX}"),
        ] {
            let reference: OciReference = text.parse().expect(&text);
            assert_eq!(reference.to_string(), text);
            assert_eq!(reference.name(), "roofline");
        }
        assert_eq!(GuestReference::parse("a/b.wasm").expect("a path"), GuestReference::Path("a/b.wasm".into()));
    }

    #[test]
    fn invalid_references_are_refused_with_the_reason() {
        for (text, expected) in [
            ("oci://roofline:1", "expected a registry"),
            ("oci://library/roofline", "expected a registry"),
            ("oci://", "expected a registry"),
            ("oci://ghcr.io/UPPER", "invalid guest reference"),
            ("oci://ghcr.io/a@sha256:12", "invalid guest reference"),
            (&format!("oci://ghcr.io/a@sha512:{HEX}{HEX}"), "expected a SHA-256 digest"),
        ] {
            let error = GuestReference::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn only_registries_of_this_machine_are_accessed_without_encryption() {
        let is_local = |text: &str| text.parse::<OciReference>().expect(text).is_local();
        assert!(is_local("oci://localhost:5000/a") && is_local("oci://127.0.0.1:5000/a"));
        assert!(!is_local("oci://localhost.example.com:5000/a") && !is_local("oci://10.0.0.1:5000/a"));
    }
}
