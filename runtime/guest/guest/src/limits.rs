use std::time::Duration;

use crate::wasi::WasiGrants;

/// The limits of a guest. All except the time limit of live engines count machine-independent quantities, so a run
/// that passes on one machine passes on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Fuel to instantiate and configure an instance. A unit is about an instruction; 500 million take about a
    /// second.
    pub fuel_per_configure: u64,
    /// Additional fuel for each byte of the config. Parsing JSON takes about half of it.
    pub fuel_per_config_byte: u64,
    /// Base fuel of one call.
    pub fuel_per_call: u64,
    /// Additional fuel for each item of a call: a step to price, a request that starts or ends, a wanted token, or an
    /// event. A roofline uses some hundred units a step.
    pub fuel_per_item: u64,
    /// Maximum number of steps in one pricing call. A longer batch is split, to bound the list in the guest's memory.
    pub steps_per_call: usize,
    /// Maximum bytes of prompts, stop tokens and structured outputs of the requests that start in one token call.
    /// More requests are split over several calls; a request that alone is larger has a call to itself.
    pub request_bytes_per_call: usize,
    /// Maximum linear memory of one instance, in bytes. An instance serves one engine.
    pub memory_bytes: usize,
    /// Maximum table elements of one instance.
    pub table_elements: usize,
    /// Maximum number, each, of core instances, memories and tables in one component.
    pub core_items: usize,
    /// Maximum bytes of one answer, results or error text. Items with answers of their own add to this.
    pub answer_bytes: usize,
    /// Maximum size of a component file in bytes, checked before compilation.
    pub component_bytes: u64,
    /// Maximum number of `observe` calls that an instance may make within one call.
    pub observe_calls_per_call: u32,
    /// Maximum number of counter and gauge names of one instance.
    pub observe_names: usize,
    /// Maximum telemetry of one instance over its life, in bytes: texts, and 16 for each annotation, line and gauge
    /// value. The standard outputs of WASI have a separate limit of the same size.
    pub observe_bytes: u64,
    /// Maximum number of requests that a token source may refuse in one call; 1 KiB of each reason is kept.
    pub refusals_per_call: usize,
    /// Maximum number of times that a token source may set accepted drafts in one call.
    pub acceptances_per_call: usize,
    /// Maximum real time of one call, for live engines, whose frontend waits for the guest. Instantiating and
    /// configuring may take ten times as long. `None`: no limit depends on the clock.
    pub wall_time_per_call: Option<Duration>,
    /// The WASI interfaces that a guest may import.
    pub wasi: WasiGrants,
}

/// Factor of the time limit for configuring: a large config takes long to parse.
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
    /// The budget to instantiate and to configure with a config of this many bytes.
    pub(crate) fn configure_budget(&self, config_bytes: usize) -> Budget {
        let reading = self.fuel_per_config_byte.saturating_mul(config_bytes as u64);
        Budget {
            fuel: self.fuel_per_configure.saturating_add(reading),
            answer_bytes: self.answer_bytes,
            wall_time: self.wall_time_per_call.map(|limit| limit.saturating_mul(CONFIGURE_CALLS)),
        }
    }

    /// The budget of a call with `items` items whose valid answer may have `expected_bytes`.
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
    /// Real-time limit, if any.
    pub(crate) wall_time: Option<Duration>,
}
