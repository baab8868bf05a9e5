//! The deterministic wasmtime engine, and the store of each instance.

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

/// Stack limit of a guest's calls. It belongs to the engine, so it is not a limit of one guest.
const WASM_STACK_BYTES: usize = 512 << 10;

pub(crate) fn engine() -> Result<&'static Engine, String> {
    static ENGINE: OnceLock<Result<Engine, String>> = OnceLock::new();
    let make = || Engine::new(&config(AddressSpace::of_process())).map_err(|error| format!("{error:#}"));
    ENGINE.get_or_init(make).as_ref().map_err(Clone::clone)
}

/// The engine, with its epoch counter running for real-time limits.
pub(crate) fn watched_engine() -> Result<&'static Engine, String> {
    static WATCHED: Mutex<bool> = Mutex::new(false);
    let engine = engine()?;
    watchdog::watch(engine, &WATCHED).map_err(|error| format!("no thread for the limit of time: {error}"))?;
    Ok(engine)
}

/// Settings of the engine. `address_space` changes how memory accesses are checked, but not a guest's answers or
/// fuel. It changes the machine code and so the entry's name in the cache.
pub(crate) fn config(address_space: AddressSpace) -> Config {
    let mut config = Config::new();
    address_space.apply(&mut config);
    config
        .wasm_component_model(true)
        // Compilation, which is cached, takes a third longer. Pricing a step is a few nanoseconds faster.
        .cranelift_opt_level(OptLevel::Speed)
        // Only NaN payloads are nondeterministic in arithmetic. This costs a quarter of the time of a roofline step.
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        // Fuel limits a call by work, so that a limit is hit on every machine or on none.
        .consume_fuel(true)
        // Live engines also limit real time. The check costs a few nanoseconds a call; one engine serves both modes.
        .epoch_interruption(true)
        // Only the kind of a trap is reported, so a backtrace is unnecessary.
        .wasm_backtrace_max_frames(None)
        .max_wasm_stack(WASM_STACK_BYTES);
    config
}

/// The host's state of an instance: limits, memory size and telemetry.
pub(crate) struct HostState {
    limits: Limits,
    memory_bytes: usize,
    pub(crate) telemetry: TelemetryMeter,
    pub(crate) remarks: RemarksOfCall,
    /// KV group shapes of the step being priced, if the latency model reads them.
    pub(crate) kv_groups: Option<Vec<KvGroupShape>>,
    /// Whether the router has declined the details of engines.
    pub(crate) omits_details: bool,
    pub(crate) wasi: Option<Box<WasiState>>,
}

impl HostState {
    /// Size in bytes of the largest linear memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

/// Inputs of a fresh instance other than its limits.
pub(crate) struct InstanceInputs {
    /// Seed of `wasi:random`.
    pub(crate) seed: u64,
    /// Receives the instance's telemetry.
    pub(crate) sink: Option<Arc<dyn NoteSink>>,
}

/// Makes a store with the limits set, and no budget for a call yet.
pub(crate) fn store(engine: &Engine, limits: &Limits, inputs: InstanceInputs) -> Store<HostState> {
    let InstanceInputs { seed, sink } = inputs;
    let wasi = WasiState::new(limits.wasi, seed, limits.observe_bytes, sink.clone());
    // The interfaces of `wit/` have no resources, so only WASI needs handles.
    let handles = if wasi.is_some() { wasi::HANDLES_MAX } else { 0 };
    let (telemetry, remarks) = (TelemetryMeter::new(limits, sink), RemarksOfCall::new(limits));
    let state =
        HostState { limits: *limits, memory_bytes: 0, telemetry, remarks, kv_groups: None, omits_details: false, wasi };
    let mut store = Store::new(engine, state);
    store.limiter(|state| state);
    store.set_max_component_handles(handles);
    store.set_epoch_deadline(watchdog::NEVER_TICKS);
    store
}

pub(crate) fn allot(store: &mut Store<HostState>, budget: Budget) -> wasmtime::Result<()> {
    store.set_hostcall_fuel(budget.answer_bytes);
    store.data_mut().telemetry.begin_call();
    if let Some(limit) = budget.wall_time {
        store.set_epoch_deadline(watchdog::ticks(limit));
    }
    store.set_fuel(budget.fuel)
}

/// The reason why the host refused something. wasmtime carries it as the error of the trap.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(pub(crate) CallFault);

/// Refuses growth with a trap instead of the -1 of `memory.grow`, which guests turn into an abort without a message.
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

/// The fault of a failed call in `store`, with the last log line if the guest panicked.
#[cold]
pub(crate) fn fault_in(store: &Store<HostState>, error: &wasmtime::Error, budget: Budget) -> CallFault {
    match fault(error, budget) {
        CallFault::Panicked { .. } => {
            CallFault::Panicked { last_line: store.data().telemetry.last_line().map(str::to_owned) }
        }
        other => other,
    }
}

/// Converts wasmtime's error to the guest's fault.
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

/// The operating system's error, if it caused the failure. It is never the guest's, because guests make no system
/// calls.
#[cold]
pub(crate) fn host_failure(error: &wasmtime::Error) -> Option<String> {
    let is_of_system = error
        .chain()
        .any(|cause| cause.is::<std::io::Error>() || cause.is::<rustix::io::Errno>() || cause.is::<OutOfMemory>());
    is_of_system.then(|| format!("{error:#}"))
}
