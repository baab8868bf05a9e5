//! `guest(#{ ... })`: a WebAssembly component, to be given wherever something of
//! its world is wanted.

use std::sync::Arc;

use rhai::{Dynamic, Engine, Map};
use vcr_guest::{CallFault, GuestError, GuestModule, Limits, World};

use crate::context::Context;
use crate::error::{Blame, Scripted, Thrown};
use crate::options::Options;
use crate::vocabulary::with_options;

/// The unit in which WebAssembly memory grows.
const WASM_PAGE_BYTES: usize = 64 << 10;

/// A guest and its config, tried once.
#[derive(Clone)]
pub(crate) struct GuestSpec {
    pub(crate) module: GuestModule,
    pub(crate) config_json: String,
}

impl GuestSpec {
    /// Checks that it is of the world that is wanted.
    ///
    /// # Errors
    /// What is wanted and what it is, in words that go on behind "must be".
    pub(crate) fn must_be(&self, expected: World) -> Result<(), String> {
        let found = self.module.world();
        if found == expected {
            return Ok(());
        }
        let name = self.module.name();
        let (wanted, is) = (expected.name(), found.name());
        Err(format!("a {expected} (world `{wanted}`), but the guest `{name}` is a {found} (world `{is}`)"))
    }
}

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "guest", make_guest);
}

fn make_guest(context: &Context, mut options: Options<'_>) -> Scripted<GuestSpec> {
    let path = options.string("path");
    let path = options.required("path", path);
    let config = options.take("config").unwrap_or_else(|| Dynamic::from_map(Map::new()));
    let default = Limits::default();
    let limits = Limits {
        fuel_per_call: options.u64("fuel").unwrap_or(default.fuel_per_call),
        memory_bytes: options.bytes("memory").map_or(default.memory_bytes, |bytes| bytes as usize),
        ..default
    };
    // Limits that no guest can keep are a slip of the script, not of the guest.
    if limits.fuel_per_call == 0 {
        options.problem("fuel", "`fuel` must be at least 1");
    }
    if limits.memory_bytes < WASM_PAGE_BYTES {
        options.problem("memory", "`memory` must be at least 64KiB, one page of WebAssembly memory");
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
    let module = load(context, &path, limits).map_err(|error| thrown(&error).at(call))?;
    // Makes a first instance now, so that a bad configuration costs no run.
    module.try_config(&json).map_err(|error| thrown(&error).at(call))?;
    Ok(GuestSpec { module, config_json: json })
}

fn load(context: &Context, path: &str, limits: Limits) -> Result<GuestModule, GuestError> {
    let resolved = context.resolve(path);
    if limits != Limits::default() {
        return GuestModule::load(&resolved, limits);
    }
    if let Some(module) = context.state().guests.get(&resolved) {
        return Ok(module.clone());
    }
    let module = GuestModule::load(&resolved, limits)?;
    context.state().guests.insert(resolved, module.clone());
    Ok(module)
}

/// Files and configurations are the user's; what a guest does is its own fault.
fn thrown(error: &GuestError) -> Thrown {
    let blame = match error {
        GuestError::Read { .. } | GuestError::Load { .. } => Blame::Input,
        GuestError::Call { fault: CallFault::Rejected { .. }, .. } => Blame::Input,
        GuestError::Call { .. } | GuestError::Sandbox { .. } => Blame::Fault,
    };
    Thrown { blame, message: error.to_string(), hint: error.hint() }
}
