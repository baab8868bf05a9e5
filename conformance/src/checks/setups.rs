//! How engines and clients come together.

use anyhow::{Result, ensure};
use futures::future::try_join_all;

use crate::engine::EngineCommand;
use crate::expect::{Verdict, same};
use crate::line;
use crate::session::{Session, Setup, fresh_prompt, request};

pub async fn the_ready_response_tells_of_the_engine(session: &Session) -> Result<Verdict> {
    let ready = session.ready();
    let line = format!("{}.", line::NAME);
    ensure!(
        ready.vllm_version.starts_with(&line),
        "expected a version of {}, found {}",
        line::NAME,
        ready.vllm_version
    );
    ensure!(!ready.instance_id.is_empty(), "the instance has no id");
    let counts = [
        ("max_model_len", ready.max_model_len),
        ("num_gpu_blocks", ready.num_gpu_blocks),
        ("block_size", ready.block_size),
        ("max_num_seqs", ready.max_num_seqs),
        ("max_num_batched_tokens", ready.max_num_batched_tokens),
        ("world_size", ready.world_size),
        ("tensor_parallel_size", ready.tensor_parallel_size.into()),
        ("pipeline_parallel_size", ready.pipeline_parallel_size.into()),
        ("decode_context_parallel_size", ready.decode_context_parallel_size.into()),
    ];
    for (name, count) in counts {
        ensure!(count > 0, "`{name}` is 0");
    }
    same("data_parallel_rank", ready.data_parallel_rank, 0)?;
    same("the client's count of blocks", session.client.total_num_gpu_blocks(), ready.num_gpu_blocks)?;
    Ok(Verdict::Held)
}

pub async fn unix_sockets_will_do(command: &EngineCommand) -> Result<Verdict> {
    if !command.mentions("{address}") {
        return Ok(Verdict::LeftOut("the command has no {address}".to_owned()));
    }
    let session = Session::start(command, Setup { ipc: true, ..Setup::default() }).await?;
    ensure!(session.client.input_address().starts_with("ipc://"), "the client uses {}", session.client.input_address());
    let answer = session.ask(request(fresh_prompt(20), 5)).await?;
    same("tokens", answer.tokens.len(), 5)?;
    Ok(Verdict::Held)
}

pub async fn engines_are_chosen_by_rank(command: &EngineCommand) -> Result<Verdict> {
    two_engines(command, false).await
}

/// Engines behind a coordinator answer only while a wave runs. The first requests start one, and
/// those after a rest the next.
pub async fn a_coordinator_opens_its_gate(command: &EngineCommand) -> Result<Verdict> {
    two_engines(command, true).await
}

async fn two_engines(command: &EngineCommand, coordinator: bool) -> Result<Verdict> {
    if !command.mentions("{rank}") {
        return Ok(Verdict::LeftOut("the command has no {rank}".to_owned()));
    }
    let session = Session::start(command, Setup { engines: 2, coordinator, ..Setup::default() }).await?;
    same("engines", session.client.engine_indices(), vec![0, 1])?;
    for _ in 0..2 {
        let asked = (0..6_u32).map(|index| {
            let mut request = request(fresh_prompt(30), 8);
            request.data_parallel_rank = Some(index % 2);
            session.ask(request)
        });
        for (index, answer) in try_join_all(asked).await?.iter().enumerate() {
            same("tokens", answer.tokens.len(), 8)?;
            same("the engine that answered", answer.last().engine_index as usize, index % 2)?;
        }
        session.metric_becomes("vllm:num_requests_running", 0.0).await?;
    }
    session.is_well()?;
    Ok(Verdict::Held)
}
