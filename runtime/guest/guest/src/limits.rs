use std::time::Duration;

use crate::wasi::WasiGrants;

/// The limits of a guest. Every limit except that of live engines counts something that is the same
/// on every machine, so a run that passes on one passes on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Fuel to instantiate and configure one instance. One unit is about one
    /// WebAssembly instruction; 500 million take around a second.
    pub fuel_per_configure: u64,
    /// Fuel that each byte of the config adds: to read JSON takes about half of it.
    pub fuel_per_config_byte: u64,
    /// Fuel of one call, however little it is about.
    pub fuel_per_call: u64,
    /// Fuel that each thing adds that a call is about: a step to be priced, a
    /// request that starts or ends, a token wanted, an event. A roofline uses
    /// some hundred units a step.
    pub fuel_per_item: u64,
    /// Steps of one pricing call; a longer batch is split over several calls. Bounds the list that
    /// the guest must take into its memory.
    pub steps_per_call: usize,
    /// Prompts, stop tokens and structured outputs of the requests that start in
    /// one call for tokens, in bytes; more requests are spread over several
    /// calls. A longer request has a call to itself.
    pub request_bytes_per_call: usize,
    /// Linear memory of one instance, in bytes. An instance serves one engine.
    pub memory_bytes: usize,
    /// Elements of the tables of one instance.
    pub table_elements: usize,
    /// Core instances, memories and tables, each, inside one component.
    pub core_items: usize,
    /// Bytes that the host may copy for one answer: results and error texts. Grows with the size of
    /// a call that has no limit of its own.
    pub answer_bytes: usize,
    /// Size of a component file, in bytes, checked before it is compiled.
    pub component_bytes: u64,
    /// Calls of the functions of `observe` that an instance may make in one of
    /// its own calls.
    pub observe_calls_per_call: u32,
    /// Names of counters and gauges of one instance.
    pub observe_names: usize,
    /// Bytes of telemetry of one instance over its life: texts, and 16 for each
    /// annotation, line and value of a gauge. As many again may be written to
    /// the standard outputs of WASI.
    pub observe_bytes: u64,
    /// Requests that a token source may refuse in one call; 1 KiB of each reason
    /// is kept.
    pub refusals_per_call: usize,
    /// Number of times that a token source may set a request's accepted drafts in one call.
    pub acceptances_per_call: usize,
    /// Real time of one call, for live engines, which share it with a frontend
    /// that waits; to instantiate and configure an instance may take ten times
    /// as long. `None`: the clock of the machine decides nothing.
    pub wall_time_per_call: Option<Duration>,
    /// The parts of WASI that a guest may import.
    pub wasi: WasiGrants,
}

/// The real time of configuring, in calls: a large config takes long to read.
const CONFIGURE_CALLS: u32 = 10;

impl Default for Limits {
    fn default() -> Self {
        Self {
            fuel_per_configure: 500_000_000,
            fuel_per_config_byte: 200,
            fuel_per_call: 50_000_000,
            fuel_per_item: 1_000_000,
            steps_per_call: 256,
            request_bytes_per_call: 8 << 20,
            memory_bytes: 64 << 20,
            table_elements: 100_000,
            core_items: 64,
            answer_bytes: 64 << 10,
            component_bytes: 64 << 20,
            observe_calls_per_call: 1024,
            observe_names: 64,
            observe_bytes: 1 << 20,
            refusals_per_call: 16_384,
            acceptances_per_call: 65_536,
            wall_time_per_call: None,
            wasi: WasiGrants::default(),
        }
    }
}

impl Limits {
    /// For instantiating, and configuring with a config of this many bytes.
    pub(crate) fn configure_budget(&self, config_bytes: usize) -> Budget {
        let reading = self.fuel_per_config_byte.saturating_mul(config_bytes as u64);
        Budget {
            fuel: self.fuel_per_configure.saturating_add(reading),
            answer_bytes: self.answer_bytes,
            wall_time: self.wall_time_per_call.map(|limit| limit.saturating_mul(CONFIGURE_CALLS)),
        }
    }

    /// For a call about `items` things whose honest answer may have
    /// `expected_bytes`.
    pub(crate) fn budget(&self, items: usize, expected_bytes: usize) -> Budget {
        Budget {
            fuel: self.fuel_per_call.saturating_add(self.fuel_per_item.saturating_mul(items as u64)),
            answer_bytes: self.answer_bytes.saturating_add(expected_bytes),
            wall_time: self.wall_time_per_call,
        }
    }
}

/// The limits of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) fuel: u64,
    pub(crate) answer_bytes: usize,
    /// Limit of real time, if there is one.
    pub(crate) wall_time: Option<Duration>,
}
