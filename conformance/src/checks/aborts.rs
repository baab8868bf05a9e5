//! Requests aborted by their frontend.

use anyhow::{Result, anyhow};
use futures::StreamExt;
use vllm_engine_core_client::protocol::output::EngineCoreFinishReason;

use crate::expect::{Verdict, same};
use crate::session::{Session, fresh_prompt, request};

pub async fn a_dropped_stream_is_forgotten(session: &Session) -> Result<Verdict> {
    let mut stream = session.begin(request(fresh_prompt(10), session.endless())).await?;
    stream.next().await.ok_or_else(|| anyhow!("no output came"))??;
    session.metric_becomes("vllm:num_requests_running", 1.0).await?;
    drop(stream);
    // Its statistics show whether something else runs when it ends.
    session.ask(request(fresh_prompt(10), 3)).await?;
    session.metric_becomes("vllm:num_requests_running", 0.0).await?;
    Ok(Verdict::Held)
}

pub async fn an_aborted_id_is_free_again(session: &Session) -> Result<Verdict> {
    let long = request(fresh_prompt(10), session.endless());
    let mut again = request(fresh_prompt(30), 6);
    again.request_id.clone_from(&long.request_id);
    let id = long.request_id.clone();
    let mut stream = session.begin(long).await?;
    stream.next().await.ok_or_else(|| anyhow!("no output came"))??;
    session.client.abort(&[id]).await?;
    let mut last = None;
    while let Some(output) = stream.next().await {
        last = Some(output?);
    }
    let reason = last.and_then(|output| output.finish_reason);
    same("finish_reason", reason, Some(EngineCoreFinishReason::Abort))?;
    // Pending outputs of the old request arrive before this is answered.
    session.ask(request(fresh_prompt(10), 2)).await?;
    let answer = session.ask(again).await?;
    same("tokens of the request that has the id now", answer.tokens.len(), 6)?;
    Ok(Verdict::Held)
}
