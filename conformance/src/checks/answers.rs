//! Requests and their outputs.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use vllm_engine_core_client::protocol::output::EngineCoreFinishReason;

use crate::expect::{Verdict, same};
use crate::session::{Session, fresh_prompt, request, request_with};

pub async fn many_at_once_stream_to_their_ends(session: &Session) -> Result<Verdict> {
    let sizes: Vec<(usize, u32)> = (0..24).map(|index| (1 + 13 * index, 1 + (7 * index as u32) % 40)).collect();
    let asked = sizes.iter().map(|(prompt, tokens)| session.ask(request(fresh_prompt(*prompt), *tokens)));
    for (answer, (prompt, tokens)) in try_join_all(asked).await?.iter().zip(&sizes) {
        let what = format!("tokens for a prompt of {prompt}");
        same(&what, answer.tokens.len(), *tokens as usize)?;
        answer.ended(EngineCoreFinishReason::Length, None)?;
        ensure!(
            answer.outputs.iter().all(|output| output.new_logprobs.is_none()),
            "logprobs came that nobody asked for"
        );
        // A token a step, unless the engine drafts some.
        ensure!(*tokens < 20 || answer.outputs.len() > 2, "{tokens} tokens came in {} outputs", answer.outputs.len());
    }
    Ok(Verdict::Held)
}

pub async fn the_likeliest_tokens_are_the_same_again(session: &Session) -> Result<Verdict> {
    let prompt = fresh_prompt(50);
    let first = session.ask(request(prompt.clone(), 16)).await?;
    let second = session.ask(request(prompt, 16)).await?;
    same("tokens at temperature 0", second.tokens, first.tokens)?;
    Ok(Verdict::Held)
}

/// Full blocks are found again, except for the last token of a prompt, which is
/// always computed.
pub async fn what_was_asked_before_is_cached(session: &Session) -> Result<Verdict> {
    let block = session.block_size();
    for (length, blocks) in [(3 * block + 1, 3), (3 * block, 2), (block - 1, 0)] {
        let prompt = fresh_prompt(length);
        let first = session.ask(request(prompt.clone(), 2)).await?;
        same("cached tokens of a new prompt", first.prefill.num_cached_tokens, 0)?;
        let second = session.ask(request(prompt, 2)).await?;
        let what = format!("cached tokens of {length} in blocks of {block}");
        same(&what, second.prefill.num_cached_tokens as usize, blocks * block)?;
    }
    Ok(Verdict::Held)
}

pub async fn a_salt_or_a_wish_keeps_from_the_cache(session: &Session) -> Result<Verdict> {
    let prompt = fresh_prompt(3 * session.block_size() + 1);
    session.ask(request(prompt.clone(), 1)).await?;
    let mut salted = request(prompt.clone(), 1);
    salted.cache_salt = Some("salt".to_owned());
    same("cached tokens with a salt", session.ask(salted).await?.prefill.num_cached_tokens, 0)?;
    let unread = request_with(prompt, 1, |params| params.skip_reading_prefix_cache = Some(true));
    same("cached tokens with the wish for none", session.ask(unread).await?.prefill.num_cached_tokens, 0)?;
    Ok(Verdict::Held)
}

pub async fn the_models_length_ends_an_answer(session: &Session) -> Result<Verdict> {
    let length = session.ready().max_model_len as usize;
    let room = (session.ready().num_gpu_blocks as usize).saturating_sub(1) * session.block_size();
    if length > room.min(40_000) {
        return Ok(Verdict::LeftOut(format!("a request of {length} tokens is too long for this")));
    }
    let answer = session.ask(request(fresh_prompt(length - 3), 100)).await?;
    same("tokens for a prompt that leaves room for 3", answer.tokens.len(), 3)?;
    answer.ended(EngineCoreFinishReason::Length, None)?;
    Ok(Verdict::Held)
}
