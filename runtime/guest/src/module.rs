use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use vcr_core::latency::LatencyModel;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::error::{GuestError, LoadProblem};
use crate::inspect::{self, ApiVersion};
use crate::latency::GuestLatency;
use crate::latest::LatencyModule;
use crate::limits::Limits;
use crate::versions::OpenError;
use crate::{sandbox, versions};

/// A guest, compiled once. Cloning shares the compiled code, and every thread
/// may make models from it; each model has an instance to itself.
#[derive(Clone)]
pub struct GuestModule {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    digest: String,
    api_version: ApiVersion,
    limits: Limits,
    latency: Box<dyn LatencyModule>,
}

impl GuestModule {
    /// Reads, checks and compiles the component at `path`. The guest is known
    /// by the file name without its extension.
    ///
    /// # Errors
    /// When the file cannot be read or is no guest that this build can run.
    pub fn load(path: impl AsRef<Path>, limits: Limits) -> Result<Self, GuestError> {
        let path = path.as_ref();
        let bytes = read_up_to(path, limits.component_bytes)
            .map_err(|source| GuestError::Read { path: path.into(), source })?;
        let shown = path.display().to_string();
        let name = path.file_stem().map_or_else(|| shown.clone(), |stem| stem.to_string_lossy().into_owned());
        Self::open(name, &shown, &bytes, limits, sandbox::engine_for_files)
    }

    /// Checks and compiles a component that is already in memory, known as
    /// `name`.
    ///
    /// # Errors
    /// When the bytes are no guest that this build can run.
    pub fn from_bytes(name: &str, bytes: &[u8], limits: Limits) -> Result<Self, GuestError> {
        Self::open(name.to_owned(), name, bytes, limits, sandbox::engine_for_bytes)
    }

    fn open(
        name: String,
        shown: &str,
        bytes: &[u8],
        limits: Limits,
        engine: fn() -> Result<&'static Engine, String>,
    ) -> Result<Self, GuestError> {
        let refused = |problem| GuestError::Load { guest: shown.to_owned(), problem };

        let size_bytes = bytes.len() as u64;
        if size_bytes > limits.component_bytes {
            let limit_bytes = limits.component_bytes;
            return Err(refused(LoadProblem::TooLarge { size_bytes, limit_bytes }));
        }
        let api_version = inspect::latency_version(bytes).map_err(refused)?;
        // Only now: most files that are no guests never need an engine.
        let engine = engine().map_err(|reason| GuestError::Sandbox { reason })?;
        let component = Component::from_binary(engine, bytes)
            .map_err(|error| refused(LoadProblem::Compile { reason: format!("{error:#}") }))?;
        let latency = versions::open_latency(api_version, &component, &limits).map_err(|error| match error {
            OpenError::Unfit(reason) => refused(LoadProblem::Unfit { reason }),
            OpenError::Fault(fault) => GuestError::Call { guest: name.clone(), call: "instantiate", fault },
        })?;

        let digest = hex(&Sha256::digest(bytes));
        Ok(Self { shared: Arc::new(Shared { name, digest, api_version, limits, latency }) })
    }

    /// The name that errors and reports use.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// SHA-256 of the component, in lower-case hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.shared.digest
    }

    /// The version of the guest API that the component was made for.
    #[must_use]
    pub fn api_version(&self) -> ApiVersion {
        self.shared.api_version
    }

    /// The limits that its models run under.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// Makes the latency model of one engine in a fresh instance. `config_json`
    /// is one JSON document; what belongs in it is the guest's to say.
    ///
    /// # Errors
    /// When the guest rejects the config or fails while it configures itself.
    pub fn latency_model(&self, config_json: &str, seed: u64) -> Result<Box<dyn LatencyModel>, GuestError> {
        let shared = &self.shared;
        let instance = shared
            .latency
            .configure(&shared.limits, config_json, seed)
            .map_err(|fault| GuestError::Call { guest: shared.name.clone(), call: "configure", fault })?;
        Ok(Box::new(GuestLatency::new(shared.name.clone(), shared.limits, instance)))
    }
}

impl fmt::Debug for GuestModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestModule")
            .field("name", &self.shared.name)
            .field("digest", &self.shared.digest)
            .field("api_version", &self.shared.api_version)
            .finish_non_exhaustive()
    }
}

/// Reads a file, but not much more than `limit_bytes` of it: enough to see that
/// it is too large.
fn read_up_to(path: &Path, limit_bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
