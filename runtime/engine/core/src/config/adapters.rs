//! Settings for the time that adapters cost.

use super::{ConfigError, EngineConfigInput};

/// Times of adapters, all of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterCosts {
    /// Adapters that the host keeps; `max_loras` if that is more.
    pub host_slots: u32,
    /// Load of one into the host.
    pub load_ns: u64,
    /// Copy of one from the host into a slot of the device.
    pub copy_ns: u64,
    /// Time of a step for each of its adapters.
    pub step_ns: u64,
    /// Time of a step for each token that is computed with an adapter.
    pub token_ns: u64,
}

/// Checks the costs together with the other settings.
pub(super) fn check(input: &EngineConfigInput, errors: &mut Vec<ConfigError>) {
    if input.adapter_costs.is_some() && input.max_loras == 0 {
        let reason = "without it no request has an adapter";
        errors.push(ConfigError::Needs { field: "adapter_costs", needed: "max_loras", reason });
    }
}
