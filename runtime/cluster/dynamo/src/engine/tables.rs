//! Step times from operator tables: the arguments `aic_*`.

use vcr_cluster::LatencyFactory;
use vcr_core::factory::copies;
use vcr_core::latency::{LatencyError, LatencyModel, StepBatch, StepShape, price_until_horizon};
use vcr_latency::WorkerPhases;
use vcr_latency::tables::{DATA_VARIABLE, INSTALL, Tables, TablesError, TablesInput};

use super::Raw;
use crate::keys::Keys;

/// Dynamo's default.
const DEFAULT_SYSTEM: &str = "h200_sxm";

/// Reads the flat arguments. None if `aic_backend` is missing.
pub(super) fn flat(raw: &Raw, keys: &mut Keys<'_>) -> Option<TablesInput> {
    let backend = keys.text("aic_backend");
    if backend.is_none() {
        let others = [
            "aic_system",
            "aic_backend_version",
            "aic_model_path",
            "aic_gemm_dtype",
            "aic_moe_dtype",
            "aic_fmha_dtype",
            "aic_kv_cache_dtype",
            "aic_comm_dtype",
        ];
        keys.pass_over(&others, "it is read together with `aic_backend` only");
        return None;
    }
    let system = keys.text("aic_system");
    let model = keys.text("aic_model_path");
    if model.is_none() && !keys.has_problem("aic_model_path") {
        keys.problem("aic_model_path", "is missing; `aic_backend` prices passes of a model");
    }
    keys.refuse(&["aic_comm_dtype"], |value| *value == "half", "collectives were measured with \"half\"; remove it");
    let (version, gemm, moe) =
        (keys.text("aic_backend_version"), keys.text("aic_gemm_dtype"), keys.text("aic_moe_dtype"));
    let (attention, kv_cache) = (keys.text("aic_fmha_dtype"), keys.text("aic_kv_cache_dtype"));
    Some(TablesInput {
        backend: backend?,
        version,
        tensor_parallel: raw.tensor_parallel_size.unwrap_or(1),
        expert_parallel: raw.moe_ep_size.unwrap_or(1),
        attention_dp: raw.attention_dp_size.unwrap_or(1),
        gemm_dtype: gemm,
        moe_dtype: moe,
        kv_cache_dtype: kv_cache,
        attention_dtype: attention,
        ..TablesInput::new(system.as_deref().unwrap_or(DEFAULT_SYSTEM), &model?)
    })
}

/// Makes latency models that use operator tables.
pub(super) fn latency(input: &TablesInput, phases: WorkerPhases, speeds: [f64; 2]) -> Result<LatencyFactory, String> {
    let tables = Tables::new(input).map_err(|error| unusable(&error))?;
    Ok(copies(Passes { tables, phases, speeds }))
}

/// The error of a replay, which names the folder of the tables by the environment only.
fn unusable(error: &TablesError) -> String {
    let install = format!("install it with `{INSTALL}`, then name its folder with {DATA_VARIABLE}");
    match (error, error.hint()) {
        (TablesError::NoData, _) => {
            format!("missing {DATA_VARIABLE}: expected the folder of the package aiconfigurator-core; {install}")
        }
        (TablesError::NotThePackage { .. }, _) => format!("{error}; {install}"),
        (_, Some(hint)) => format!("{error}; {hint}"),
        (_, None) => error.to_string(),
    }
}

/// Prices passes by tables, at Dynamo's speeds. Only the phases that the worker computes take time.
#[derive(Clone)]
struct Passes {
    tables: Tables,
    phases: WorkerPhases,
    /// Divisors of all times, and further divisors of passes without prompts.
    speeds: [f64; 2],
}

impl Passes {
    /// The pass without the phases that take no time.
    fn charged(&self, shape: &StepShape) -> StepShape {
        match self.phases {
            WorkerPhases::Both => *shape,
            WorkerPhases::Prefill => StepShape {
                decode_requests: 0,
                decode_tokens: 0,
                decode_context_tokens: 0,
                sampled_requests: shape.prefill_completions,
                ..*shape
            },
            WorkerPhases::Decode => StepShape {
                prefill_requests: 0,
                prefill_tokens: 0,
                prefill_context_tokens: 0,
                prefill_attention_pairs: 0,
                sampled_requests: shape.decode_requests,
                ..*shape
            },
        }
    }
}

impl LatencyModel for Passes {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |shape| {
            let charged = self.charged(shape);
            let mut priced = Vec::with_capacity(1);
            let alone = StepBatch { start_ns: 0, horizon_ns: 0, shapes: &[charged] };
            self.tables.price(&alone, &mut priced)?;
            let [speed, decode_speed] = self.speeds;
            let speed = if charged.prefill_tokens > 0 { speed } else { speed * decode_speed };
            let ns = priced.first().copied().unwrap_or(0) as f64 / speed;
            Ok(ns.round() as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_name_tables_by_the_environment() {
        for error in [TablesError::NoData, TablesError::NotThePackage { by: DATA_VARIABLE, folder: "nowhere".into() }] {
            let text = unusable(&error);
            assert!(text.contains("name its folder with VCR_TABLES") && !text.contains("`data`"), "{text}");
        }
    }
}
