//! The deterministic engine, and the store that every instance lives in.

use std::sync::OnceLock;

use wasmtime::{Config, Engine, OptLevel, ResourceLimiter, Store, Trap};

use crate::cache;
use crate::error::CallFault;
use crate::limits::{Budget, Limits};

/// Stack of a guest's calls. Part of the engine, so not a limit of one guest.
const WASM_STACK_BYTES: usize = 512 << 10;

/// The engine that compiles and runs every guest that is loaded from a file.
/// What it compiles it keeps on disk, so that a guest is compiled once and not
/// once a run.
///
/// # Errors
/// What wasmtime says where it cannot run on this machine.
pub(crate) fn engine_for_files() -> Result<&'static Engine, String> {
    static ENGINE: OnceLock<Result<Engine, String>> = OnceLock::new();
    ENGINE.get_or_init(|| engine_of(config().cache(cache::open()))).as_ref().map_err(Clone::clone)
}

/// The same for guests that are in memory, and may be made to be thrown away:
/// they leave nothing on disk.
///
/// # Errors
/// What wasmtime says where it cannot run on this machine.
pub(crate) fn engine_for_bytes() -> Result<&'static Engine, String> {
    static ENGINE: OnceLock<Result<Engine, String>> = OnceLock::new();
    ENGINE.get_or_init(|| engine_of(&config())).as_ref().map_err(Clone::clone)
}

fn engine_of(config: &Config) -> Result<Engine, String> {
    Engine::new(config).map_err(|error| format!("{error:#}"))
}

fn config() -> Config {
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        // Takes a third longer to compile than no optimisation, which the cache
        // makes up for, and prices a step a few nanoseconds sooner.
        .cranelift_opt_level(OptLevel::Speed)
        // The payload of a NaN is the one thing that arithmetic may choose. The
        // price is about a quarter of a roofline step inside the guest.
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        // Fuel bounds a call by work, so that a limit is hit on every machine
        // or on none. There is no limit by time.
        .consume_fuel(true)
        // A trap is told by its kind alone, so nobody needs to walk its stack.
        .wasm_backtrace_max_frames(None)
        .max_wasm_stack(WASM_STACK_BYTES);
    config
}

/// What the host keeps beside an instance: the limits on its growth, and how far
/// it has grown.
pub(crate) struct HostState {
    limits: Limits,
    memory_bytes: usize,
}

impl HostState {
    /// Bytes of the largest linear memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

/// A store with the limits in force and nothing allotted to a call yet.
pub(crate) fn store(engine: &Engine, limits: &Limits) -> Store<HostState> {
    let mut store = Store::new(engine, HostState { limits: *limits, memory_bytes: 0 });
    store.limiter(|state| state);
    // The interfaces have no resources.
    store.set_max_component_handles(0);
    store
}

/// Lets the next call use so much.
pub(crate) fn allot(store: &mut Store<HostState>, budget: Budget) -> wasmtime::Result<()> {
    store.set_hostcall_fuel(budget.answer_bytes);
    store.set_fuel(budget.fuel)
}

/// Why growth was refused: travels through wasmtime as the error of the trap.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(CallFault);

/// Refuses by a trap rather than by the -1 of `memory.grow`, because a guest
/// makes an anonymous abort of that.
impl ResourceLimiter for HostState {
    fn memory_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let limit_bytes = self.limits.memory_bytes;
        if desired > limit_bytes {
            let fault = CallFault::Memory { asked_bytes: desired, limit_bytes };
            return Err(wasmtime::Error::new(Refused(fault)));
        }
        self.memory_bytes = self.memory_bytes.max(desired);
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        let fault = CallFault::MemoryBeyondType { limit_bytes: self.limits.memory_bytes };
        Err(wasmtime::Error::new(Refused(fault)))
    }

    fn table_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let limit = self.limits.table_elements;
        if desired > limit {
            return Err(wasmtime::Error::new(Refused(CallFault::Table { asked: desired, limit })));
        }
        Ok(true)
    }

    fn instances(&self) -> usize {
        self.limits.core_items
    }

    fn tables(&self) -> usize {
        self.limits.core_items
    }

    fn memories(&self) -> usize {
        self.limits.core_items
    }
}

/// Says what the guest did, given what wasmtime made of it.
#[cold]
pub(crate) fn fault(error: &wasmtime::Error, budget: Budget) -> CallFault {
    if let Some(Refused(fault)) = error.downcast_ref::<Refused>() {
        return fault.clone();
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => return CallFault::OutOfFuel { fuel: budget.fuel },
        Some(Trap::StackOverflow) => return CallFault::StackOverflow,
        Some(Trap::UnreachableCodeReached) => return CallFault::Panicked,
        Some(trap) => {
            return CallFault::Trapped { reason: trap.to_string() };
        }
        None => {}
    }
    let reason = format!("{error:#}");
    // wasmtime gives this error no type of its own.
    if reason.contains("fuel allocated for hostcalls has been exhausted") {
        return CallFault::AnswerTooLarge { limit_bytes: budget.answer_bytes };
    }
    CallFault::Trapped { reason }
}
