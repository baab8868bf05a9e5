//! Guests on disk, stored by the digest of their manifest.

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::registry::auth::DockerConfig;
use crate::registry::client::{Pulled, RegistryClient, component_layer};
use crate::registry::digest::sha256;
use crate::registry::error::RegistryError;
use crate::registry::oci_reference::OciReference;

/// Overrides the folder of pulled guests.
const FOLDER_VARIABLE: &str = "VCR_GUEST_STORE";

/// Largest component that is pulled.
const COMPONENT_BYTES_MAX: u64 = 64 << 20;

/// A guest on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Name of the guest.
    pub name: String,
    /// Path of the component.
    pub path: PathBuf,
    /// The reference with its digest.
    pub pinned: OciReference,
}

/// A folder of pulled guests, and the credentials to pull more.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    docker: DockerConfig,
}

impl Store {
    /// Opens the folder that the environment names, or the user's default folder.
    pub fn from_env() -> Result<Self, RegistryError> {
        let given = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let usual = || {
            let base = given("XDG_CACHE_HOME").or_else(|| Some(given("HOME")?.join(".cache")))?;
            Some(base.join("vcr").join("guests"))
        };
        let folder = given(FOLDER_VARIABLE).or_else(usual).ok_or_else(|| RegistryError::Store {
            path: PathBuf::new(),
            reason: format!("set {FOLDER_VARIABLE}, XDG_CACHE_HOME or HOME"),
        })?;
        Ok(Self { folder, docker: DockerConfig::from_env() })
    }

    /// Opens a store in `folder`.
    #[must_use]
    pub fn new(folder: PathBuf, docker: DockerConfig) -> Self {
        Self { folder, docker }
    }

    /// Returns the guest of a reference with a digest. A missing or damaged guest is pulled from its registry.
    ///
    /// # Errors
    /// When the reference has no digest, or the guest cannot be pulled.
    pub fn find(&self, reference: &OciReference) -> Result<Found, RegistryError> {
        let Some(digest) = reference.digest() else {
            return Err(RegistryError::NoDigest { reference: reference.to_string() });
        };
        if let Some(path) = self.kept(reference, digest) {
            return Ok(Found { name: reference.name().to_owned(), path, pinned: reference.clone() });
        }
        self.pull(reference)
    }

    /// Downloads a guest from its registry, by tag or digest.
    ///
    /// # Errors
    /// When the registry cannot be reached, or its content is invalid.
    pub fn pull(&self, reference: &OciReference) -> Result<Found, RegistryError> {
        let auth = self.docker.auth(reference.registry())?;
        let pulled = RegistryClient::new(reference, auth, "pull")?.pull(COMPONENT_BYTES_MAX)?;
        let path = self.keep(&pulled)?;
        let pinned = reference.pinned(&pulled.manifest_digest);
        Ok(Found { name: reference.name().to_owned(), path, pinned })
    }

    /// Uploads the component at `path` and returns the reference with its digest.
    ///
    /// # Errors
    /// When the file cannot be read or the registry refuses it.
    pub fn push(&self, path: &Path, reference: &OciReference) -> Result<OciReference, RegistryError> {
        let component = vcr_base::input::read_bytes(path, COMPONENT_BYTES_MAX)
            .map_err(|source| RegistryError::Read { path: path.to_owned(), source })?;
        if let Some(digest) = reference.digest() {
            let problem = format!("expected a tag instead of `{digest}`, which the content decides");
            return Err(RegistryError::BadReference { text: reference.to_string(), problem });
        }
        let auth = self.docker.auth(reference.registry())?;
        let digest = RegistryClient::new(reference, auth, "push")?.push(component)?;
        Ok(reference.pinned(&digest))
    }

    /// The component of the manifest with this digest, if both are stored and intact.
    fn kept(&self, reference: &OciReference, digest: &str) -> Option<PathBuf> {
        let manifest = fs::read(self.manifest_path(digest)).ok()?;
        if sha256(&manifest) != digest {
            return None;
        }
        let layer = component_layer(reference, &manifest).ok()?;
        let path = self.component_path(&layer.digest);
        let component = fs::read(&path).ok()?;
        (sha256(&component) == layer.digest).then_some(path)
    }

    fn keep(&self, pulled: &Pulled) -> Result<PathBuf, RegistryError> {
        let failed = |error: io::Error| RegistryError::Store { path: self.folder.clone(), reason: error.to_string() };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(failed)?;
        let path = self.component_path(&sha256(&pulled.component));
        write_whole(&path, &pulled.component).map_err(failed)?;
        write_whole(&self.manifest_path(&pulled.manifest_digest), &pulled.manifest).map_err(failed)?;
        Ok(path)
    }

    fn manifest_path(&self, digest: &str) -> PathBuf {
        self.folder.join(format!("{}.json", digest.replace(':', "-")))
    }

    fn component_path(&self, digest: &str) -> PathBuf {
        self.folder.join(format!("{}.wasm", digest.replace(':', "-")))
    }
}

/// Writes a file atomically.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut draft = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(path))?;
    draft.write_all(bytes)?;
    draft.persist(path)?;
    Ok(())
}
