//! The deterministic engine, and the store that every instance lives in.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use vcr_core::latency::KvGroupShape;
use wasmtime::{Config, Engine, OptLevel, OutOfMemory, ResourceLimiter, Store, Trap};

use crate::address_space::AddressSpace;
use crate::error::CallFault;
use crate::limits::{Budget, Limits};
use crate::observe::{NoteSink, TelemetryMeter};
use crate::remarks::RemarksOfCall;
use crate::wasi::{self, WasiState};
use crate::watchdog;

/// Stack of a guest's calls. Part of the engine, so not a limit of one guest.
const WASM_STACK_BYTES: usize = 512 << 10;

/// The engine that compiles and runs every guest.
pub(crate) fn engine() -> Result<&'static Engine, String> {
    static ENGINE: OnceLock<Result<Engine, String>> = OnceLock::new();
    let make = || Engine::new(&config(AddressSpace::of_process())).map_err(|error| format!("{error:#}"));
    ENGINE.get_or_init(make).as_ref().map_err(Clone::clone)
}

/// The engine, with a running clock for limits of real time.
pub(crate) fn watched_engine() -> Result<&'static Engine, String> {
    static WATCHED: Mutex<bool> = Mutex::new(false);
    let engine = engine()?;
    watchdog::watch(engine, &WATCHED).map_err(|error| format!("no thread for the limit of time: {error}"))?;
    Ok(engine)
}

/// The settings of the engine. `address_space` changes how memory accesses are checked, never a
/// guest's answers or fuel; the machine code differs, and with it its name in the cache.
pub(crate) fn config(address_space: AddressSpace) -> Config {
    let mut config = Config::new();
    address_space.apply(&mut config);
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
        // or on none.
        .consume_fuel(true)
        // Live engines bound a call by real time too. The test costs a few
        // nanoseconds a call, and one engine serves both kinds.
        .epoch_interruption(true)
        // Only the kind of a trap is reported, so its stack is not walked.
        .wasm_backtrace_max_frames(None)
        .max_wasm_stack(WASM_STACK_BYTES);
    config
}

/// The host's state of an instance: the limits on its growth, its size, and its telemetry.
pub(crate) struct HostState {
    limits: Limits,
    memory_bytes: usize,
    pub(crate) telemetry: TelemetryMeter,
    pub(crate) remarks: RemarksOfCall,
    /// The shapes of the step that a latency model prices, if it reads them.
    pub(crate) kv_groups: Option<Vec<KvGroupShape>>,
    pub(crate) wasi: Option<Box<WasiState>>,
}

impl HostState {
    /// Bytes of the largest linear memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

/// The parts of a fresh instance other than its limits.
pub(crate) struct InstanceInputs {
    /// Source of the randomness that is granted.
    pub(crate) seed: u64,
    /// The receiver of its telemetry.
    pub(crate) sink: Option<Arc<dyn NoteSink>>,
}

/// A store with the limits in force and nothing allotted to a call yet.
pub(crate) fn store(engine: &Engine, limits: &Limits, inputs: InstanceInputs) -> Store<HostState> {
    let InstanceInputs { seed, sink } = inputs;
    let wasi = WasiState::new(limits.wasi, seed, limits.observe_bytes, sink.clone());
    // The interfaces of `wit/` have no resources.
    let handles = if wasi.is_some() { wasi::HANDLES_MAX } else { 0 };
    let (telemetry, remarks) = (TelemetryMeter::new(limits, sink), RemarksOfCall::new(limits));
    let state = HostState { limits: *limits, memory_bytes: 0, telemetry, remarks, kv_groups: None, wasi };
    let mut store = Store::new(engine, state);
    store.limiter(|state| state);
    store.set_max_component_handles(handles);
    store.set_epoch_deadline(watchdog::NEVER_TICKS);
    store
}

/// Sets the budget of the next call.
pub(crate) fn allot(store: &mut Store<HostState>, budget: Budget) -> wasmtime::Result<()> {
    store.set_hostcall_fuel(budget.answer_bytes);
    store.data_mut().telemetry.begin_call();
    if let Some(limit) = budget.wall_time {
        store.set_epoch_deadline(watchdog::ticks(limit));
    }
    store.set_fuel(budget.fuel)
}

/// Why the host refused something: travels through wasmtime as the error of the
/// trap.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(pub(crate) CallFault);

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

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        if let Some(reason) = host_failure(&error) {
            return Err(wasmtime::Error::new(Refused(CallFault::Host { reason })));
        }
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

/// The fault of a call in `store`, with the end of its log if it panicked.
#[cold]
pub(crate) fn fault_in(store: &Store<HostState>, error: &wasmtime::Error, budget: Budget) -> CallFault {
    match fault(error, budget) {
        CallFault::Panicked { .. } => {
            CallFault::Panicked { last_line: store.data().telemetry.last_line().map(str::to_owned) }
        }
        other => other,
    }
}

/// Describes the guest's fault, given wasmtime's error.
#[cold]
pub(crate) fn fault(error: &wasmtime::Error, budget: Budget) -> CallFault {
    if let Some(Refused(fault)) = error.downcast_ref::<Refused>() {
        return fault.clone();
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => return CallFault::OutOfFuel { fuel: budget.fuel },
        Some(Trap::Interrupt) => {
            return CallFault::TimedOut { limit: budget.wall_time.unwrap_or(Duration::ZERO) };
        }
        Some(Trap::StackOverflow) => return CallFault::StackOverflow,
        Some(Trap::UnreachableCodeReached) => return CallFault::Panicked { last_line: None },
        Some(trap) => {
            return CallFault::Trapped { reason: trap.to_string() };
        }
        None => {}
    }
    if let Some(reason) = host_failure(error) {
        return CallFault::Host { reason };
    }
    let reason = format!("{error:#}");
    // wasmtime has no type for this error.
    if reason.contains("fuel allocated for hostcalls has been exhausted") {
        return CallFault::AnswerTooLarge { limit_bytes: budget.answer_bytes };
    }
    CallFault::Trapped { reason }
}

/// Error of the operating system, if that is the cause of a failure: guests make no system calls,
/// so its errors are never theirs.
#[cold]
pub(crate) fn host_failure(error: &wasmtime::Error) -> Option<String> {
    let is_of_system = error
        .chain()
        .any(|cause| cause.is::<std::io::Error>() || cause.is::<rustix::io::Errno>() || cause.is::<OutOfMemory>());
    is_of_system.then(|| format!("{error:#}"))
}
