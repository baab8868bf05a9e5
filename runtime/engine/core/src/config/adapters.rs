//! Settings for the time that adapters cost.

use super::{ConfigError, EngineConfigInput};

/// Times that adapters cost. All adapters have the same size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterCosts {
    /// Number of adapters that the host keeps; `max_loras` if that is more.
    pub host_slots: u32,
    /// Time to load an adapter into the host.
    pub load_ns: u64,
    /// Time to copy an adapter from the host into a slot of the device.
    pub copy_ns: u64,
    /// Time that each adapter used in a step adds to it.
    pub step_ns: u64,
    /// Time that each token computed with an adapter adds to its step.
    pub token_ns: u64,
}

pub(super) fn check(input: &EngineConfigInput, errors: &mut Vec<ConfigError>) {
    if input.adapter_costs.is_some() && input.max_loras == 0 {
        let reason = "without it no request has an adapter";
        errors.push(ConfigError::Needs { field: "adapter_costs", needed: "max_loras", reason });
    }
}
