//! Prompts that one engine computes for another.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vllm_engine_core_client::protocol::request::EngineCoreRequest;

use crate::engine::EngineCommand;
use crate::expect::{Verdict, same};
use crate::session::{Session, Setup, fresh_prompt, request_with};

/// Keys that engines of this version report for a prompt they have computed.
const KEYS: &[&str] = &[
    "remote_block_ids",
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "tp_size",
    "remote_num_tokens",
    #[cfg(feature = "0.28")]
    "transfer_mode",
    #[cfg(feature = "0.29")]
    "dcp_size",
    #[cfg(feature = "0.29")]
    "pp_size",
    #[cfg(feature = "0.31")]
    "remote_prefill_cached_tokens",
    #[cfg(feature = "0.33")]
    "remote_registration_generation",
];

fn on(rank: u32, prompt: &[u32], max_tokens: u32, transfer: Value) -> EngineCoreRequest {
    let mut request = request_with(prompt.to_vec(), max_tokens, |params| {
        params.extra_args = Some([("kv_transfer_params".to_owned(), transfer)].into());
    });
    request.data_parallel_rank = Some(rank);
    request
}

/// As a router does it: it passes the first engine's answer to the second.
pub async fn a_prompt_is_computed_elsewhere(command: &EngineCommand) -> Result<Verdict> {
    if !command.mentions("{rank}") {
        return Ok(Verdict::LeftOut("the command has no {rank}".to_owned()));
    }
    let session = Session::start(command, Setup { engines: 2, ..Setup::default() }).await?;
    let prompt = fresh_prompt(3 * session.block_size() + 5);
    let asked = json!({"do_remote_decode": true, "do_remote_prefill": false});
    let prefill = session.ask(on(0, &prompt, 1, asked)).await?;
    let Some(params) = prefill.last().kv_transfer_params.clone() else {
        return Ok(Verdict::LeftOut("the engine hands over nothing".to_owned()));
    };
    let params: Value = serde_json::to_value(params)?;
    same("do_remote_prefill", &params["do_remote_prefill"], &json!(true))?;
    same("do_remote_decode", &params["do_remote_decode"], &json!(false))?;
    for key in KEYS {
        ensure!(params.get(key).is_some(), "the parameters have no `{key}`: {params}");
    }
    let groups = params["remote_block_ids"].as_array().context("`remote_block_ids` is not a list")?;
    same("blocks handed over", groups[0].as_array().map(Vec::len), Some(4))?;

    let decode = session.ask(on(1, &prompt, 8, params)).await?;
    same("tokens", decode.tokens.len(), 8)?;
    same("the engine that answered", decode.last().engine_index, 1)?;
    let fetched = decode.prefill.num_external_cached_tokens as usize;
    ensure!(fetched + 1 >= prompt.len(), "only {fetched} of {} tokens were fetched", prompt.len());
    session.is_well()?;
    Ok(Verdict::Held)
}
