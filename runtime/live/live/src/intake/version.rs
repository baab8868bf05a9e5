//! Detection of the frontend's vLLM version from its requests.

use vcr_wire::{EngineInputs, Protocol, VllmMinor};

use crate::serving::Serving;

#[derive(Debug, Default)]
pub(crate) struct FrontendVersion {
    is_known: bool,
    /// The reason why the frontend cannot be served, if it cannot.
    refusal: Option<String>,
}

impl FrontendVersion {
    /// Whether the frontend's first request was seen.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known
    }

    pub(crate) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Detects the version from the first request and uses its protocol.
    pub(crate) fn detect(&mut self, serving: &mut Serving, inputs: &EngineInputs) {
        let rank = serving.context.rank;
        let Some(evidence) = inputs.line_evidence() else { return };
        self.is_known = true;
        if evidence.is_too_old() {
            let sentence = format!(
                "the frontend is older than vLLM 0.27: its requests have {} elements, those of 0.27 to 0.33 have 20 to \
                 22; vcr play serves none of them",
                evidence.request_len
            );
            tracing::error!(rank, "{sentence}");
            self.refusal = Some(sentence);
            return;
        }
        if evidence.is_newer() {
            tracing::warn!(
                rank,
                "the frontend is newer than vLLM 0.33: its requests have {} elements; elements beyond 22 are ignored",
                evidence.request_len
            );
        }
        if let Some(version) = serving.context.config.identity.version {
            if evidence.pick(version) != version {
                tracing::warn!(
                    rank,
                    "the frontend's requests look like those of vLLM {} to {}, but --vllm-minor is {version}",
                    evidence.oldest,
                    evidence.newest
                );
            }
            return;
        }
        let current = serving.egress.version();
        if evidence.oldest.rules().outputs_len < current.rules().outputs_len {
            serving.egress.outputs.omit_weight_version();
        }
        let version = evidence.pick(current);
        tracing::info!(
            rank,
            "the frontend is of vLLM {}; speaking as to {version}",
            if evidence.oldest == evidence.newest {
                version.to_string()
            } else {
                format!("{} to {}", evidence.oldest, evidence.newest)
            }
        );
        set_version(serving, version);
    }

    /// Adopts the version that another engine has detected: all engines have the same frontend.
    pub(crate) fn adopt(&mut self, serving: &mut Serving, version: VllmMinor, sends_weight_version: bool) {
        if self.is_known {
            return;
        }
        self.is_known = true;
        if !sends_weight_version {
            serving.egress.outputs.omit_weight_version();
        }
        set_version(serving, version);
    }
}

fn set_version(serving: &mut Serving, version: VllmMinor) {
    let block_size = serving.context.config.engine.block_size();
    serving.egress.set_version(version, block_size);
}
