//! Replays with Dynamo's KV router, through the entry point of Dynamo's mocker that keeps prompts compact.

use std::path::Path;

use anyhow::Result;
use dynamo_mocker::config::MockerConfig;
use dynamo_mocker::loadgen::Trace;
use dynamo_mocker::replay::{
    OfflineDisaggReplayConfig, ReplayRouterMode, SlaThresholds,
    simulate_loaded_trace_disagg_with_router_mode_and_options, simulate_loaded_trace_with_router_mode_and_options,
};
use serde_json::json;

use super::Options;

pub(super) fn replay(path: &Path, options: &Options) -> Result<Vec<u8>> {
    let trace = Trace::from_mooncake(path, options.trace_block_size)?;
    let workers = |worker_type: &str| {
        let mut engine = options.engine.clone();
        engine.insert("worker_type".to_owned(), worker_type.into());
        MockerConfig::from_value(json!({"engine": engine, "dp_size": options.ranks}))
    };
    let (mode, sla) = (ReplayRouterMode::KvRouter, SlaThresholds::default());
    let report = if options.prefill == 0 {
        simulate_loaded_trace_with_router_mode_and_options(
            workers("aggregated")?,
            None,
            None,
            trace,
            options.workers,
            1.0,
            mode,
            false,
            None,
            sla,
        )?
    } else {
        let config = OfflineDisaggReplayConfig {
            prefill_args: workers("prefill")?,
            decode_args: workers("decode")?,
            num_prefill_workers: options.prefill,
            num_decode_workers: options.decode,
        };
        simulate_loaded_trace_disagg_with_router_mode_and_options(
            config, None, None, trace, 1.0, mode, false, None, sla,
        )?
    };
    Ok(serde_json::to_vec(&report)?)
}
