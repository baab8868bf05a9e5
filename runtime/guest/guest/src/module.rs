mod role;

use std::fmt;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use vcr_core::fault::FailureInjector;
use vcr_core::latency::{EngineInfo, LatencyModel};
use vcr_core::policy::SchedulingPolicy;
use vcr_core::route::Router;
use vcr_core::scale::Autoscaler;
use vcr_core::tokens::BatchTokenSource;
use wasmtime::component::Component;

use crate::component::api_version::ApiVersion;
use crate::component::cache::Cache;
use crate::component::compile::{self, CompileError};
use crate::component::digest::digest;
use crate::component::schema::ConfigSchema;
use crate::component::{inspect, size};
use crate::error::{CallFault, GuestError, LoadProblem};
use crate::latest::{Maker, OpenGuest, Setup};
use crate::limits::Limits;
use crate::observe::NoteSink;
use crate::versions::OpenError;
use crate::world::World;
use crate::{sandbox, versions};

pub use role::GuestRole;
use role::sealed::Sealed;

/// A guest, compiled once. Clones share the code; each plugin made from it has its own instance.
#[derive(Clone)]
pub struct GuestModule {
    shared: Arc<Shared>,
    /// Receives the telemetry of instances made from this handle.
    sink: Option<Arc<dyn NoteSink>>,
    /// Properties of the engine, for latency models made from this handle.
    engine: EngineInfo,
}

struct Shared {
    name: String,
    /// The file's name in errors.
    shown: String,
    digest: String,
    world: World,
    api_version: ApiVersion,
    example_config: Option<String>,
    schema: Option<ConfigSchema>,
    limits: Limits,
    component: Component,
    guest: OpenGuest,
}

impl GuestModule {
    /// Reads, checks and compiles the component at `path`. The guest's name is the file name without extension.
    ///
    /// # Errors
    /// When the file cannot be read or is not a guest that this build can run.
    pub fn load(path: impl AsRef<Path>, limits: Limits) -> Result<Self, GuestError> {
        let path = path.as_ref();
        let shown = path.display().to_string();
        let name = path.file_stem().map_or_else(|| shown.clone(), |stem| stem.to_string_lossy().into_owned());
        Self::load_as(&name, path, limits)
    }

    /// Like [`load`](Self::load), but the guest's name is `name`.
    ///
    /// # Errors
    /// When the file cannot be read or is not a guest that this build can run.
    pub fn load_as(name: &str, path: impl AsRef<Path>, limits: Limits) -> Result<Self, GuestError> {
        let path = path.as_ref();
        let limit_bytes = limits.component_bytes;
        let bytes = read_up_to(path, limit_bytes).map_err(|source| GuestError::Read { path: path.into(), source })?;
        if bytes.len() as u64 > limit_bytes {
            let problem = LoadProblem::TooLarge { size_bytes: size_of_file(path), limit_bytes };
            return Err(GuestError::Load { guest: path.display().to_string(), problem });
        }
        Self::open(name.to_owned(), &path.display().to_string(), &bytes, limits, Cache::from_env())
    }

    /// Checks and compiles a component in memory, as the guest `name`. The result is not cached on disk, because the
    /// component may be temporary.
    ///
    /// # Errors
    /// When the bytes are not a guest that this build can run.
    pub fn from_bytes(name: &str, bytes: &[u8], limits: Limits) -> Result<Self, GuestError> {
        Self::open(name.to_owned(), name, bytes, limits, None)
    }

    fn open(name: String, shown: &str, bytes: &[u8], limits: Limits, cache: Option<Cache>) -> Result<Self, GuestError> {
        let refused = |problem| GuestError::Load { guest: shown.to_owned(), problem };

        let size_bytes = bytes.len() as u64;
        if size_bytes > limits.component_bytes {
            let limit_bytes = limits.component_bytes;
            return Err(refused(LoadProblem::TooLarge { size_bytes: Some(size_bytes), limit_bytes }));
        }
        let declared = inspect::declared(bytes, limits.wasi).map_err(refused)?;
        size::check(bytes).map_err(refused)?;
        let schema = declared.config_schema.map(ConfigSchema::new).transpose();
        let schema = schema.map_err(|reason| refused(LoadProblem::BadSchema { reason }))?;
        let (world, api_version) = (declared.world, declared.api_version);
        // Made late, because most files that are not guests are refused before.
        let engine = match limits.wall_time_per_call {
            Some(_) => sandbox::watched_engine(),
            None => sandbox::engine(),
        };
        let engine = engine.map_err(|reason| GuestError::Sandbox { reason })?;
        let digest = digest(bytes);
        let compiled = match cache {
            Some(cache) => cache.compiled(engine, &digest, bytes),
            None => compile::compiled(engine, bytes),
        };
        let component = compiled.map_err(|error| match error {
            CompileError::Compiler(error) => match sandbox::host_failure(&error) {
                Some(reason) => GuestError::Host { guest: name.clone(), reason },
                None => refused(LoadProblem::Compile { reason: format!("{error:#}") }),
            },
            CompileError::Slow { limit } => refused(LoadProblem::SlowToCompile { limit }),
            CompileError::NoThread(error) => {
                GuestError::Host { guest: name.clone(), reason: format!("no thread to compile it: {error}") }
            }
        })?;
        let guest = versions::open(world, api_version, &component, &limits).map_err(|error| match error {
            OpenError::Unfit(reason) => refused(LoadProblem::Unfit { reason }),
            OpenError::Fault(fault) => GuestError::of_call(&name, "instantiate", fault, None),
        })?;

        let shown = shown.to_owned();
        let example_config = declared.example_config;
        let shared = Arc::new(Shared {
            name,
            shown,
            digest,
            world,
            api_version,
            example_config,
            schema,
            limits,
            component,
            guest,
        });
        Ok(Self { shared, sink: None, engine: EngineInfo::default() })
    }

    /// This guest with `sink` as the receiver of telemetry. Without a sink, telemetry is dropped.
    #[must_use]
    pub fn observed_by(&self, sink: Arc<dyn NoteSink>) -> Self {
        Self { sink: Some(sink), ..self.clone() }
    }

    /// This guest as the latency model of `engine`. Without an engine, it gets the default properties, as in checks.
    #[must_use]
    pub fn serving(mut self, engine: Option<&EngineInfo>) -> Self {
        if let Some(engine) = engine {
            self.engine = engine.clone();
        }
        self
    }

    /// The guest's name in errors and reports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// SHA-256 of the component, in lower-case hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.shared.digest
    }

    /// The guest's world, which determines the roles that [`make`](Self::make) can return.
    #[must_use]
    pub fn world(&self) -> World {
        self.shared.world
    }

    /// Version of the guest API that the component was built for.
    #[must_use]
    pub fn api_version(&self) -> ApiVersion {
        self.shared.api_version
    }

    /// A valid config as JSON, if the component has one.
    #[must_use]
    pub fn example_config(&self) -> Option<&str> {
        self.shared.example_config.as_deref()
    }

    /// The JSON schema of the config, if the component has one.
    #[must_use]
    pub fn config_schema(&self) -> Option<&str> {
        self.shared.schema.as_ref().map(ConfigSchema::text)
    }

    /// The problems that the schema finds in a config, each with the path of its value.
    pub(crate) fn schema_problems(&self, config_json: &str) -> Option<String> {
        self.shared.schema.as_ref()?.problems(config_json)
    }

    /// Limits of the guest's instances.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// Configures an instance and drops it, to check the config.
    pub fn try_config(&self, config_json: &str) -> Result<(), GuestError> {
        self.try_config_with(config_json, 0)
    }

    /// Like [`try_config`](Self::try_config), with a seed.
    pub(crate) fn try_config_with(&self, config_json: &str, seed: u64) -> Result<(), GuestError> {
        match &self.shared.guest {
            OpenGuest::Latency(maker) => self.configure(maker.as_ref(), config_json, seed).map(drop),
            OpenGuest::Tokens(maker) => self.configure(maker.as_ref(), config_json, seed).map(drop),
            OpenGuest::Faults(maker) => self.configure(maker.as_ref(), config_json, seed).map(drop),
            OpenGuest::Policy(maker) => self.configure(maker.as_ref(), config_json, seed).map(drop),
            OpenGuest::Router(maker) => self.configure(maker.as_ref(), config_json, seed).map(drop),
            OpenGuest::Scaler(maker) => self.configure(maker.as_ref(), config_json, seed).map(drop),
        }
    }

    pub(crate) fn component(&self) -> &Component {
        &self.shared.component
    }

    pub(crate) fn open_guest(&self) -> &OpenGuest {
        &self.shared.guest
    }

    /// Makes the guest's role in a fresh instance. `config_json` is a JSON document defined by the guest.
    ///
    /// # Errors
    /// When the guest is of another world, rejects the config or fails while it configures itself.
    pub fn make<R: GuestRole + ?Sized>(&self, config_json: &str, seed: u64) -> Result<Box<R>, GuestError> {
        R::make(self, config_json, seed)
    }

    /// Like [`make`](Self::make), with the error type of the engine core.
    pub fn plug_in<R>(&self, config_json: &str, seed: u64) -> Result<Box<R>, R::Error>
    where
        R: GuestRole + Sealed<CallError = <R as GuestRole>::Error> + ?Sized,
    {
        self.make(config_json, seed).map_err(|error| R::error(self.name().to_owned(), error.to_string()))
    }

    /// Makes the latency model of one engine, as [`make`](Self::make) does.
    pub fn latency_model(&self, config_json: &str, seed: u64) -> Result<Box<dyn LatencyModel>, GuestError> {
        self.make(config_json, seed)
    }

    /// Makes the token source of one engine, as [`make`](Self::make) does.
    pub fn token_source(&self, config_json: &str, seed: u64) -> Result<Box<dyn BatchTokenSource>, GuestError> {
        self.make(config_json, seed)
    }

    /// Makes the failure injector of one engine, as [`make`](Self::make) does.
    pub fn failure_injector(&self, config_json: &str, seed: u64) -> Result<Box<dyn FailureInjector>, GuestError> {
        self.make(config_json, seed)
    }

    /// Makes the scheduler policy of one engine, as [`make`](Self::make) does.
    pub fn scheduler_policy(&self, config_json: &str, seed: u64) -> Result<Box<dyn SchedulingPolicy>, GuestError> {
        self.make(config_json, seed)
    }

    /// Makes the router of one pool, as [`make`](Self::make) does.
    pub fn router(&self, config_json: &str, seed: u64) -> Result<Box<dyn Router>, GuestError> {
        self.make(config_json, seed)
    }

    /// Makes the autoscaler of one pool, as [`make`](Self::make) does.
    pub fn autoscaler(&self, config_json: &str, seed: u64) -> Result<Box<dyn Autoscaler>, GuestError> {
        self.make(config_json, seed)
    }

    pub(crate) fn configure<I: ?Sized>(
        &self,
        maker: &dyn Maker<I>,
        config_json: &str,
        seed: u64,
    ) -> Result<Box<I>, GuestError> {
        let setup =
            Setup { limits: &self.shared.limits, config_json, seed, engine: &self.engine, sink: self.sink.clone() };
        let configured = match (maker.configure(setup), self.schema_problems(config_json)) {
            // The guest's error knows more about the config, the schema knows the path.
            (Err(CallFault::Rejected { reason }), Some(problems)) => {
                Err(CallFault::Rejected { reason: format!("{reason}\n{problems}") })
            }
            (Ok(_), Some(reason)) => Err(CallFault::Rejected { reason }),
            (configured, _) => configured,
        };
        configured.map_err(|fault| GuestError::of_call(&self.shared.name, "configure", fault, self.example_config()))
    }

    pub(crate) fn of_other_world(&self, expected: World) -> GuestError {
        let problem = LoadProblem::OtherWorld { found: self.shared.world, expected };
        GuestError::Load { guest: self.shared.shown.clone(), problem }
    }
}

impl fmt::Debug for GuestModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestModule")
            .field("name", &self.shared.name)
            .field("digest", &self.shared.digest)
            .field("world", &self.shared.world)
            .field("api_version", &self.shared.api_version)
            .finish_non_exhaustive()
    }
}

/// Reads a file, but at most slightly more than `limit_bytes`: enough to see that the file is too large.
pub(crate) fn read_up_to(path: &Path, limit_bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    vcr_base::input::open(path)?.take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The size of a regular file; none for devices and pipes.
pub(crate) fn size_of_file(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|about| about.len())
}
