//! Calls that are not requests.

use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use futures::StreamExt;
use vllm_engine_core_client::Error;
use vllm_engine_core_client::protocol::output::EngineCoreFinishReason;
use vllm_engine_core_client::protocol::utility::PauseMode;

use crate::expect::{Verdict, same};
use crate::line;
use crate::session::{Session, fresh_prompt, request};

/// Long enough to see that something does not come.
const MOMENT: Duration = Duration::from_millis(300);

/// That a call was answered, were it by a refusal.
fn is_answered<T>(result: Result<T, Error>) -> Result<()> {
    match result {
        Ok(_) | Err(Error::UtilityCallFailed { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub async fn an_unknown_method_is_answered(session: &Session) -> Result<Verdict> {
    match session.client.call_utility::<(), _>("no_such_method", ()).await {
        Err(Error::UtilityCallFailed { message, .. }) => {
            ensure!(message.contains("no_such_method"), "the refusal does not name the method: {message}");
            Ok(Verdict::Held)
        }
        other => bail!("expected a refusal, found {other:?}"),
    }
}

pub async fn generating_is_a_supported_task(session: &Session) -> Result<Verdict> {
    let tasks: Vec<Vec<String>> = session.client.call_utility("get_supported_tasks", ()).await?;
    ensure!(tasks[0].iter().any(|task| task == "generate"), "the tasks are {tasks:?}");
    Ok(Verdict::Held)
}

pub async fn caches_are_reset(session: &Session) -> Result<Verdict> {
    session.client.reset_mm_cache().await?;
    session.client.reset_encoder_cache().await?;
    let prompt = fresh_prompt(3 * session.block_size() + 1);
    session.ask(request(prompt.clone(), 2)).await?;
    session.metric_becomes("vllm:num_requests_running", 0.0).await?;
    ensure!(session.client.reset_prefix_cache(false, false).await?, "an idle engine refused");
    same("cached tokens after a reset", session.ask(request(prompt, 2)).await?.prefill.num_cached_tokens, 0)?;
    Ok(Verdict::Held)
}

pub async fn a_kept_pause_freezes_requests(session: &Session) -> Result<Verdict> {
    let client = &session.client;
    ensure!(!client.is_scheduler_paused().await?, "it is paused before a pause");
    line::pause(client, PauseMode::Keep).await?;
    ensure!(client.is_scheduler_paused().await?, "it is not paused after a pause");
    let mut stream = session.begin(request(fresh_prompt(20), 5)).await?;
    let early = tokio::time::timeout(MOMENT, stream.next()).await;
    ensure!(early.is_err(), "an output came in a pause: {early:?}");
    client.resume_scheduler().await?;
    ensure!(!client.is_scheduler_paused().await?, "it is paused after resuming");
    let mut tokens = 0;
    while let Some(output) = stream.next().await {
        tokens += output?.new_token_ids.len();
    }
    same("tokens after the pause", tokens, 5)?;
    Ok(Verdict::Held)
}

pub async fn a_waiting_pause_lets_requests_end(session: &Session) -> Result<Verdict> {
    let mut stream = session.begin(request(fresh_prompt(20), 30)).await?;
    let first = stream.next().await.ok_or_else(|| anyhow!("no output came"))??;
    line::pause(&session.client, PauseMode::Wait).await?;
    // The pause is answered when everything has ended.
    let mut tokens = first.new_token_ids.len();
    while let Some(output) = tokio::time::timeout(MOMENT, stream.next()).await? {
        tokens += output?.new_token_ids.len();
    }
    same("tokens of the request that ran", tokens, 30)?;
    ensure!(session.client.is_scheduler_paused().await?, "it is not paused after a pause");
    session.client.resume_scheduler().await?;
    session.ask(request(fresh_prompt(20), 3)).await?;
    Ok(Verdict::Held)
}

pub async fn an_aborting_pause_ends_requests(session: &Session) -> Result<Verdict> {
    let mut stream = session.begin(request(fresh_prompt(10), session.endless())).await?;
    stream.next().await.ok_or_else(|| anyhow!("no output came"))??;
    line::pause(&session.client, PauseMode::Abort).await?;
    let mut last = None;
    while let Some(output) = stream.next().await {
        last = Some(output?);
    }
    same("finish_reason", last.and_then(|output| output.finish_reason), Some(EngineCoreFinishReason::Abort))?;
    #[cfg(feature = "0.33")]
    a_paused_engine_rejects(session).await?;
    session.client.resume_scheduler().await?;
    session.ask(request(fresh_prompt(20), 3)).await?;
    Ok(Verdict::Held)
}

#[cfg(feature = "0.33")]
async fn a_paused_engine_rejects(session: &Session) -> Result<()> {
    let mut stream = session.begin(request(fresh_prompt(20), 3)).await?;
    let output = stream.next().await.ok_or_else(|| anyhow!("no output came"))??;
    same("finish_reason", output.finish_reason, Some(EngineCoreFinishReason::Error))?;
    let error = output.error.as_ref().ok_or_else(|| anyhow!("the rejection has no error"))?;
    same("code and retryable", (error.code.as_str(), error.retryable), ("engine_paused", true))
}

pub async fn an_engine_sleeps_and_wakes(session: &Session) -> Result<Verdict> {
    let client = &session.client;
    ensure!(!client.is_sleeping().await?, "it sleeps from the start");
    #[cfg(feature = "0.28")]
    if !session.ready().enable_sleep_mode {
        is_answered(client.sleep(1, PauseMode::Abort).await)?;
        is_answered(line::wake_up(client).await)?;
        return Ok(Verdict::LeftOut("the engine has no sleep mode".to_owned()));
    }
    for level in [1, 2] {
        client.sleep(level, PauseMode::Abort).await?;
        ensure!(client.is_sleeping().await?, "it is awake at level {level}");
        ensure!(line::wake_up(client).await?, "it is not fully awake after level {level}");
        ensure!(!client.is_sleeping().await?, "it sleeps after it was woken from level {level}");
        same("tokens of an engine that slept", session.ask(request(fresh_prompt(20), 3)).await?.tokens.len(), 3)?;
    }
    Ok(Verdict::Held)
}

pub async fn adapters_come_and_go(session: &Session) -> Result<Verdict> {
    let client = &session.client;
    let adapter = line::lora("an-adapter", 7);
    #[cfg(feature = "0.29")]
    if !session.ready().supports_lora {
        is_answered(client.add_lora(&adapter).await)?;
        return Ok(Verdict::LeftOut("the engine takes no adapters".to_owned()));
    }
    let loaded = async || client.call_utility::<Vec<u64>, _>("list_loras", ()).await.map(|engines| engines.concat());
    ensure!(client.add_lora(&adapter).await?, "the adapter was refused");
    same("adapters", loaded().await?, vec![7])?;
    let prompt = fresh_prompt(3 * session.block_size() + 1);
    session.ask(request(prompt.clone(), 2)).await?;
    let mut adapted = request(prompt, 4);
    adapted.lora_request = Some(adapter);
    let answer = session.ask(adapted).await?;
    same("tokens with an adapter", answer.tokens.len(), 4)?;
    same("cached tokens of another adapter", answer.prefill.num_cached_tokens, 0)?;
    ensure!(client.remove_lora(7).await?, "the adapter stays");
    same("adapters after removal", loaded().await?, vec![])?;
    ensure!(!client.remove_lora(7).await?, "the adapter was removed twice");
    Ok(Verdict::Held)
}

pub async fn workers_are_called(session: &Session) -> Result<Verdict> {
    let args: [u32; 0] = [];
    let kwargs = std::collections::BTreeMap::<String, u32>::new();
    let results = session.client.collective_rpc("check_health", Some(5.0), args, kwargs).await?;
    let workers = session.ready().world_size as usize;
    same("results of workers", results, vec![rmpv::Value::Nil; workers])?;
    Ok(Verdict::Held)
}

/// An engine without a profiler may refuse.
pub async fn a_profile_starts_and_stops(session: &Session) -> Result<Verdict> {
    is_answered(line::start_profile(&session.client).await)?;
    is_answered(session.client.stop_profile(None).await)?;
    Ok(Verdict::Held)
}

pub async fn weights_have_a_version(session: &Session) -> Result<Verdict> {
    #[cfg(feature = "0.28")]
    {
        session.client.get_weight_version().await?;
        session.client.set_weight_version("second").await?;
        same("the weights' version", session.client.get_weight_version().await?.as_str(), "second")?;
        session.ask(request(fresh_prompt(20), 3)).await?;
        Ok(Verdict::Held)
    }
    #[cfg(not(feature = "0.28"))]
    {
        _ = session;
        Ok(Verdict::LeftOut("this version's client does not ask".to_owned()))
    }
}

pub async fn memory_of_the_cache_is_released(session: &Session) -> Result<Verdict> {
    #[cfg(feature = "0.31")]
    {
        is_answered(session.client.release_kv_cache_memory().await)?;
        is_answered(session.client.wake_up(None).await)?;
        Ok(Verdict::Held)
    }
    #[cfg(not(feature = "0.31"))]
    {
        _ = session;
        Ok(Verdict::LeftOut("this version's client does not ask".to_owned()))
    }
}
