//! `guest(#{ ... })`: a WebAssembly component for any option that accepts its world.

use std::path::PathBuf;
use std::sync::Arc;

use rhai::{Dynamic, Engine, Map, Position};
use vcr_core::PluginContext;
use vcr_guest::{CallFault, FailureSink, GuestError, GuestModule, Limits, WasiGrants, World};
use vcr_guest_tools::registry::{GuestReference, RegistryError, Store};

use crate::results::guest_telemetry::Recorder;
use crate::script::context::Context;
use crate::script::error::{Blame, Scripted, Thrown};
use crate::script::options::{Options, describe};
use crate::script::refusal::Refusal;
use crate::script::register::with_options;

/// Page size of WebAssembly memory.
const WASM_PAGE_BYTES: usize = 64 << 10;

/// The address space of a 32-bit guest.
const MAX_MEMORY_BYTES: usize = 4 << 30;

/// A guest with its configuration, which was tried once.
#[derive(Clone)]
pub(crate) struct GuestSpec {
    pub(crate) module: GuestModule,
    pub(crate) config_json: String,
    /// The value of the same option that replaces a failed instance.
    pub(crate) fallback: Option<Dynamic>,
    number: usize,
    recorder: Arc<Recorder>,
    /// Set if the guest refuses its configuration.
    refusal: Option<Arc<Refusal>>,
}

impl GuestSpec {
    /// Loads the guest at a path or in a registry, without a fallback. `position` is the position of the call in
    /// the script, if any.
    ///
    /// # Errors
    /// If the guest cannot be loaded, or fails for a reason other than its configuration.
    pub(crate) fn load(
        context: &Context,
        path: &str,
        limits: Limits,
        config_json: String,
        position: Position,
    ) -> Result<Self, Thrown> {
        let (module, resolved) = load(context, path, limits)?;
        context.state().inputs.guest(path, module.digest(), resolved);
        // Makes a first instance now, so that an invalid configuration costs no run.
        let refusal = match module.try_config(&config_json) {
            Ok(()) => None,
            Err(error @ GuestError::Call { fault: CallFault::Rejected { .. }, .. }) => {
                let refusal = Arc::new(Refusal::new(thrown(&error), position));
                context.state().refusals.push(Arc::clone(&refusal));
                Some(refusal)
            }
            Err(error) => return Err(thrown(&error)),
        };
        let number = context.recorder.list(&module, &config_json);
        Ok(Self { module, config_json, fallback: None, number, recorder: Arc::clone(&context.recorder), refusal })
    }

    /// Checks that the guest has the expected world and accepts its configuration.
    pub(crate) fn must_be(&self, expected: World) -> Result<(), String> {
        let found = self.module.world();
        if found == expected {
            let Some(refusal) = &self.refusal else { return Ok(()) };
            refusal.becomes_due();
            return Err(format!("a guest that takes its config: {}", refusal.thrown.message));
        }
        let name = self.module.name();
        let (wanted, is) = (expected.name(), found.name());
        Err(format!("a {expected} (world `{wanted}`), but the guest `{name}` is a {found} (world `{is}`)"))
    }

    /// The guest for the instance at `plugin_context`, whose telemetry is recorded.
    pub(crate) fn at(&self, plugin_context: &PluginContext<'_>) -> GuestModule {
        self.module.observed_by(self.recorder.sink(self.number, plugin_context))
    }

    /// The sink to call when the instance at `plugin_context` has failed and its fallback continues.
    pub(crate) fn failure_sink(&self, plugin_context: &PluginContext<'_>) -> FailureSink {
        self.recorder.failure_sink(self.number, plugin_context)
    }
}

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "guest", make_guest);
}

fn make_guest(context: &Context, mut options: Options<'_>) -> Scripted<GuestSpec> {
    let path = options.string("path");
    let path = options.required("path", path);
    let config = options.take("config").unwrap_or_else(|| Dynamic::from_map(Map::new()));
    let fallback = options.take("fallback");
    let default = Limits::default();
    let limits = Limits {
        wasi: wasi_grants(&mut options),
        wall_time_per_call: context.guest_wall_time,
        fuel_per_call: options.u64("fuel").unwrap_or(default.fuel_per_call),
        memory_bytes: options.bytes("memory").map_or(default.memory_bytes, |bytes| bytes as usize),
        ..default
    };
    // Limits that no guest can keep are errors of the script.
    if limits.fuel_per_call == 0 {
        options.problem("fuel", "invalid `fuel`: expected at least 1");
    }
    if !(WASM_PAGE_BYTES..=MAX_MEMORY_BYTES).contains(&limits.memory_bytes) {
        options.problem(
            "memory",
            "invalid `memory`: expected 64KiB, one page of WebAssembly memory, to 4GiB, all that a guest can address",
        );
    }
    let json = match serde_json::to_string(&config) {
        Ok(json) => json,
        Err(error) => {
            options.problem("config", format!("`config` cannot be passed on as JSON: {error}"));
            String::new()
        }
    };
    let call = options.call_position();
    options.finish()?;
    let spec = GuestSpec::load(context, &path, limits, json, call).map_err(|thrown| thrown.at(call))?;
    Ok(GuestSpec { fallback, ..spec })
}

/// Reads the option `wasi`: the interfaces that the guest may import.
fn wasi_grants(options: &mut Options<'_>) -> WasiGrants {
    let mut grants = WasiGrants::default();
    for name in options.array("wasi").unwrap_or_default() {
        let text = name.clone().into_string().unwrap_or_default();
        if !grants.grant(&text) {
            let names = WasiGrants::names().map(|name| format!("\"{name}\"")).join(", ");
            options.problem("wasi", format!("`wasi` may hold {names}, but holds {}", describe(&name)));
        }
    }
    grants
}

/// Loads the guest at a path, or by its digest from a registry. Also returns its file.
fn load(context: &Context, path: &str, limits: Limits) -> Result<(GuestModule, PathBuf), Thrown> {
    let reference = GuestReference::parse(path).map_err(|error| not_found(&error))?;
    let (name, resolved) = match &reference {
        GuestReference::Path(_) => {
            let path = context.resolve(path);
            context.reads(&path)?;
            (None, path)
        }
        GuestReference::Oci(reference) if context.options.files_by_name.contains_key(path) => {
            (Some(reference.name().to_owned()), context.resolve(path))
        }
        GuestReference::Oci(reference) => {
            let found = Store::from_env().and_then(|store| store.find(reference));
            let found = found.map_err(|error| not_found(&error))?;
            (Some(found.name), found.path)
        }
    };
    let loaded = || match &name {
        Some(name) => GuestModule::load_as(name, &resolved, limits),
        None => GuestModule::load(&resolved, limits),
    };
    if limits != Limits::default() {
        return loaded().map(|module| (module, resolved.clone())).map_err(|error| thrown(&error));
    }
    let module = context.loaded.guest(resolved.clone(), loaded).map_err(|error| thrown(&error))?;
    Ok((module, resolved))
}

fn not_found(error: &RegistryError) -> Thrown {
    Thrown { blame: Blame::Input, message: error.to_string(), hint: error.hint() }
}

/// Errors in files and configurations are the user's; failures of calls are the guest's.
fn thrown(error: &GuestError) -> Thrown {
    let blame = match error {
        GuestError::Read { .. } | GuestError::Load { .. } => Blame::Input,
        GuestError::Call { fault: CallFault::Rejected { .. }, .. } => Blame::Input,
        GuestError::Call { .. } | GuestError::Host { .. } | GuestError::Sandbox { .. } => Blame::Fault,
    };
    Thrown { blame, message: error.to_string(), hint: error.hint() }
}
