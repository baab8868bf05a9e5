//! The part of the OCI distribution protocol that guests need.

use std::io;
use std::time::Duration;

use oci_client::Client;
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::OciDistributionError;
use oci_client::manifest::{OCI_IMAGE_MEDIA_TYPE, OciDescriptor, OciImageManifest};
use oci_client::secrets::RegistryAuth;
use wasmparser::{Encoding, Parser, Payload};

use crate::registry::digest::sha256;
use crate::registry::download::Downloads;
use crate::registry::error::RegistryError;
use crate::registry::oci_reference::{OciReference, is_sha256};

/// Media types of components that other WebAssembly tools use.
const COMPONENT_MEDIA_TYPE: &str = "application/wasm";
const OLD_COMPONENT_MEDIA_TYPE: &str = "application/vnd.wasm.content.layer.v1+wasm";
/// Annotation with the file name of a layer.
const TITLE_ANNOTATION: &str = "org.opencontainers.image.title";
const CONFIG_MEDIA_TYPE: &str = "application/vnd.wasm.config.v0+json";

/// The largest manifest that registries must accept.
const MANIFEST_BYTES_MAX: u64 = 4 << 20;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time without data from the registry.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct RegistryClient<'a> {
    reference: &'a OciReference,
    auth: RegistryAuth,
    client: Client,
    runtime: tokio::runtime::Runtime,
    what: &'static str,
}

/// A download with verified digests.
pub(crate) struct Pulled {
    pub(crate) manifest_digest: String,
    pub(crate) manifest: Vec<u8>,
    pub(crate) component: Vec<u8>,
}

impl<'a> RegistryClient<'a> {
    pub(crate) fn new(
        reference: &'a OciReference,
        auth: RegistryAuth,
        what: &'static str,
    ) -> Result<Self, RegistryError> {
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let protocol = if reference.is_local() { ClientProtocol::Http } else { ClientProtocol::Https };
        let client = Client::new(ClientConfig {
            protocol,
            connect_timeout: Some(CONNECT_TIMEOUT),
            read_timeout: Some(READ_TIMEOUT),
            user_agent: concat!("vcr/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let reason = |error: io::Error| RegistryError::Registry {
            what,
            reference: reference.to_string(),
            reason: error.to_string(),
        };
        Ok(Self { reference, auth, client, runtime: runtime.map_err(reason)?, what })
    }

    pub(crate) fn pull(&self, bytes_max: u64) -> Result<Pulled, RegistryError> {
        let image = self.reference.inner();
        let is_local = self.reference.is_local();
        let mut downloads = Downloads::new(image, is_local, self.auth.clone()).map_err(|reason| self.broken(reason))?;
        let path = format!("manifests/{}", image.digest().or(image.tag()).unwrap_or("latest"));
        let manifest = downloads.get(&path, OCI_IMAGE_MEDIA_TYPE, MANIFEST_BYTES_MAX);
        let manifest = self.runtime.block_on(manifest).map_err(|reason| self.broken(reason))?;
        let manifest_digest = sha256(&manifest);
        if let Some(expected) = self.reference.digest() {
            self.check(expected, &manifest_digest)?;
        }
        let layer = component_layer(self.reference, &manifest)?;
        let size_bytes = u64::try_from(layer.size).unwrap_or(u64::MAX);
        if size_bytes > bytes_max {
            return Err(self.not_a_guest(format!("expected at most {bytes_max} bytes, got {size_bytes}")));
        }
        let path = format!("blobs/{}", layer.digest);
        let component = downloads.get(&path, "*/*", size_bytes);
        let component = self.runtime.block_on(component).map_err(|reason| self.broken(reason))?;
        self.check(&layer.digest, &sha256(&component))?;
        Ok(Pulled { manifest_digest, manifest, component })
    }

    /// Uploads a component and returns the digest of the manifest.
    pub(crate) fn push(&self, component: Vec<u8>) -> Result<String, RegistryError> {
        let image = self.reference.inner();
        let mut layer = descriptor(COMPONENT_MEDIA_TYPE, &component);
        // `oras pull` writes only layers that have a file name.
        let file_name = format!("{}.wasm", self.reference.name());
        layer.annotations = Some([(TITLE_ANNOTATION.to_owned(), file_name)].into());
        let (imports, exports) = names(&component).map_err(|reason| self.not_a_guest(reason))?;
        // The config has no real time or place, so equal components have equal digests. The format requires a time.
        let config = serde_json::json!({
            "created": "1970-01-01T00:00:00Z",
            "architecture": "wasm",
            "os": "wasip2",
            "layerDigests": [layer.digest],
            "component": {"imports": imports, "exports": exports},
        });
        let config = config.to_string().into_bytes();
        let manifest = OciImageManifest {
            media_type: Some(OCI_IMAGE_MEDIA_TYPE.to_owned()),
            config: descriptor(CONFIG_MEDIA_TYPE, &config),
            layers: vec![layer.clone()],
            ..OciImageManifest::default()
        };
        let config_digest = manifest.config.digest.clone();
        let manifest = serde_json::to_vec(&manifest).expect("a manifest is plain texts and numbers");
        let digest = sha256(&manifest);
        let push = async {
            self.client.store_auth_if_needed(image.resolve_registry(), &self.auth).await;
            let operation = oci_client::RegistryOperation::Push;
            self.client.auth(image, &self.auth, operation).await?;
            self.client.push_blob(image, component, &layer.digest).await?;
            self.client.push_blob(image, config, &config_digest).await?;
            let media_type = OCI_IMAGE_MEDIA_TYPE.parse().expect("it is letters and dots");
            self.client.push_manifest_raw(image, manifest, media_type).await
        };
        self.runtime.block_on(push).map_err(|error| self.failed(&error))?;
        Ok(digest)
    }

    fn check(&self, expected: &str, actual: &str) -> Result<(), RegistryError> {
        if expected == actual {
            return Ok(());
        }
        Err(RegistryError::Mismatch {
            reference: self.reference.to_string(),
            expected: expected.to_owned(),
            actual: actual.to_owned(),
        })
    }

    fn not_a_guest(&self, problem: String) -> RegistryError {
        RegistryError::NoGuest { reference: self.reference.to_string(), problem }
    }

    /// The error of the protocol, with its causes.
    fn failed(&self, error: &OciDistributionError) -> RegistryError {
        let reference = self.reference.to_string();
        if let OciDistributionError::DigestError(oci_client::errors::DigestError::VerificationError {
            expected,
            actual,
        }) = error
        {
            return RegistryError::Mismatch { reference, expected: expected.clone(), actual: actual.clone() };
        }
        let mut reason = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(inner) = cause {
            let text = inner.to_string();
            if !reason.contains(&text) {
                reason.push_str(": ");
                reason.push_str(&text);
            }
            cause = inner.source();
        }
        self.broken(reason)
    }

    fn broken(&self, reason: String) -> RegistryError {
        RegistryError::Registry { what: self.what, reference: self.reference.to_string(), reason }
    }
}

/// Names of a component's imports and exports.
fn names(component: &[u8]) -> Result<(Vec<String>, Vec<String>), String> {
    let damaged = |error: wasmparser::BinaryReaderError| format!("the component is damaged: {error}");
    let (mut imports, mut exports, mut depth) = (Vec::new(), Vec::new(), 0_usize);
    for payload in Parser::new(0).parse_all(component) {
        match payload.map_err(damaged)? {
            Payload::Version { encoding: Encoding::Module, .. } if depth == 0 => {
                return Err("expected a component, got a core module".to_owned());
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    imports.push(import.map_err(damaged)?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    exports.push(export.map_err(damaged)?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok((imports, exports))
}

fn descriptor(media_type: &str, bytes: &[u8]) -> OciDescriptor {
    OciDescriptor {
        media_type: media_type.to_owned(),
        digest: sha256(bytes),
        size: bytes.len() as i64,
        ..OciDescriptor::default()
    }
}

pub(crate) fn component_layer(reference: &OciReference, manifest: &[u8]) -> Result<OciDescriptor, RegistryError> {
    let not_a_guest = |problem: String| RegistryError::NoGuest { reference: reference.to_string(), problem };
    let manifest: OciImageManifest = serde_json::from_slice(manifest)
        .map_err(|error| not_a_guest(format!("expected the manifest of an artifact: {error}")))?;
    match &manifest.layers[..] {
        [layer] if [COMPONENT_MEDIA_TYPE, OLD_COMPONENT_MEDIA_TYPE].contains(&layer.media_type.as_str()) => {
            // The digest becomes part of a path.
            let is_digest = layer.digest.strip_prefix("sha256:").is_some_and(is_sha256);
            if is_digest {
                Ok(layer.clone())
            } else {
                Err(not_a_guest("expected a layer with a SHA-256 digest".to_owned()))
            }
        }
        [layer] => Err(not_a_guest(format!("expected a component, got a layer of the type `{}`", layer.media_type))),
        layers => Err(not_a_guest(format!("expected 1 layer, got {}", layers.len()))),
    }
}
