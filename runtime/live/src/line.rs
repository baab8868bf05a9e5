//! Which line of vLLM the frontend is of, and what that changes.

use vcr_wire::{EngineInputs, Line};

use crate::error::LiveError;
use crate::server::Server;

impl Server {
    /// Speaks as the frontend's line, once it has shown it.
    pub(crate) fn learn_line(&mut self, inputs: &EngineInputs) -> Result<(), LiveError> {
        let Some(evidence) = inputs.line_evidence() else { return Ok(()) };
        self.line_is_known = true;
        if evidence.is_too_old() {
            let sentence = format!(
                "the frontend is older than vLLM 0.27: its requests have {} elements, those of 0.27 to 0.33 have 20 to \
                 22; vcr play serves none of them",
                evidence.request_len
            );
            tracing::error!(rank = self.rank, "{sentence}");
            self.refuses_all = Some(sentence);
            return Ok(());
        }
        if evidence.is_newer() {
            tracing::warn!(
                rank = self.rank,
                "the frontend is newer than vLLM 0.33: its requests have {} elements; what they say beyond 22 is passed over",
                evidence.request_len
            );
        }
        if let Some(line) = self.config.identity.line {
            if evidence.pick(line) != line {
                tracing::warn!(
                    rank = self.rank,
                    "the frontend's requests look like those of vLLM {} to {}, but --vllm-line says {line}",
                    evidence.oldest,
                    evidence.newest
                );
            }
            return Ok(());
        }
        if evidence.oldest.rules().outputs_len < self.line.rules().outputs_len {
            self.outputs.leave_weight_version_out();
        }
        let line = evidence.pick(self.line);
        tracing::info!(
            rank = self.rank,
            "the frontend is of vLLM {}; speaking as to {line}",
            if evidence.oldest == evidence.newest {
                line.to_string()
            } else {
                format!("{} to {}", evidence.oldest, evidence.newest)
            }
        );
        self.speak_as(line);
        Ok(())
    }

    /// Speaks as to a frontend of `line` from now on.
    pub(crate) fn speak_as(&mut self, line: Line) {
        if line == self.line {
            return;
        }
        self.line = line;
        self.outputs.set_line(line.rules());
        self.stats.set_line(line.rules());
        if let Some(events) = &mut self.kv_events {
            // Nothing has been stored: the first request is just coming.
            events.restart(line, self.engine.config().block_size);
        }
    }
}
