//! Commands of other threads, such as the control plane's.

use crate::admin::Admin;
use crate::context::plugin_context;
use crate::handle::Command;
use crate::serving::Serving;
use vcr_core::PauseState;

impl Admin {
    /// Handles the commands since the last call.
    pub(crate) fn handle_commands(&mut self, serving: &mut Serving) {
        while let Some(command) = serving.shared().next_command() {
            serving.snapshot.expire();
            let rank = serving.context.rank;
            match command {
                Command::SetLatency { factory, name } => {
                    match factory(&plugin_context(serving.context.config.seed, "latency", rank)) {
                        Ok(model) => serving.stepper.set_latency(model, name),
                        Err(error) => tracing::error!(rank, "the latency model stays as it is: {error}"),
                    }
                }
                Command::SetTimeScale(scale) => serving.stepper.set_time_scale(scale),
                Command::AddFault(rule) => serving.faults.add(rule),
                Command::ClearFaults => serving.faults.clear(),
                Command::SetPaused(true) => serving.stepper.pause(PauseState::PausedAll),
                Command::SetPaused(false) => self.resume(serving),
                Command::ResetPrefixCache => _ = serving.reset_prefix_cache(true),
            }
        }
    }
}
