//! Conditions that end an answer before its length.

use anyhow::{Result, ensure};
use vllm_engine_core_client::protocol::output::{EngineCoreFinishReason, StopReason};
use vllm_engine_core_client::protocol::sampling::EngineCoreSamplingParams;

use crate::expect::{Verdict, same};
use crate::session::{Answer, Session, fresh_prompt, request, request_with};

const LENGTH: u32 = 12;

/// A prompt, the engine's answer to it, and the index of a token's first occurrence.
struct Known {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    place: usize,
}

impl Known {
    async fn of(session: &Session) -> Result<Self> {
        let prompt = fresh_prompt(40);
        let tokens = session.ask(request(prompt.clone(), LENGTH)).await?.tokens;
        let is_new = |place: &usize| !tokens[..*place].contains(&tokens[*place]);
        let place = (0..tokens.len() - 4).rev().find(is_new).unwrap_or_default();
        Ok(Self { prompt, tokens, place })
    }

    fn token(&self) -> u32 {
        self.tokens[self.place]
    }

    async fn again(&self, session: &Session, change: impl FnOnce(&mut EngineCoreSamplingParams)) -> Result<Answer> {
        session.ask(request_with(self.prompt.clone(), LENGTH, change)).await
    }
}

pub async fn a_stop_token_ends_an_answer(session: &Session) -> Result<Verdict> {
    let known = Known::of(session).await?;
    let token = known.token();
    let answer = known.again(session, |params| {
        params.stop_token_ids = vec![5, token];
        params.all_stop_token_ids = [5, token].into();
    });
    let answer = answer.await?;
    same("tokens", &answer.tokens[..], &known.tokens[..=known.place])?;
    answer.ended(EngineCoreFinishReason::Stop, Some(StopReason::TokenId(token)))?;
    Ok(Verdict::Held)
}

/// A model may have generated it anyway; a simulator plans its place.
pub async fn the_end_of_sequence_ends_an_answer(session: &Session) -> Result<Verdict> {
    let known = Known::of(session).await?;
    let token = known.token();
    let answer = known.again(session, |params| {
        params.eos_token_id = Some(token);
        params.all_stop_token_ids = [token].into();
    });
    let answer = answer.await?;
    let place = answer.tokens.iter().position(|found| *found == token);
    if place.is_none() && answer.tokens.len() == LENGTH as usize {
        return Ok(Verdict::LeftOut("the engine does not come to the end of the sequence".to_owned()));
    }
    same("the place of the end of the sequence", place, Some(answer.tokens.len() - 1))?;
    answer.ended(EngineCoreFinishReason::Stop, None)?;
    Ok(Verdict::Held)
}

/// A frontend that is set to ignore the end of a sequence still names it among
/// all stop tokens.
pub async fn other_tokens_end_nothing(session: &Session) -> Result<Verdict> {
    let known = Known::of(session).await?;
    let token = known.token();
    let answer = known.again(session, |params| params.all_stop_token_ids = [token].into()).await?;
    same("tokens", &answer.tokens, &known.tokens)?;
    answer.ended(EngineCoreFinishReason::Length, None)?;
    Ok(Verdict::Held)
}

pub async fn min_tokens_come_before_a_stop(session: &Session) -> Result<Verdict> {
    let known = Known::of(session).await?;
    let token = known.token();
    let at_least = known.place + 3;
    let answer = known.again(session, |params| {
        params.min_tokens = at_least as u32;
        params.stop_token_ids = vec![token];
        params.all_stop_token_ids = [token].into();
    });
    let answer = answer.await?;
    ensure!(answer.tokens.len() >= at_least, "expected at least {at_least} tokens, found {:?}", answer.tokens);
    ensure!(!answer.tokens[..at_least].contains(&token), "the stop token {token} came early in {:?}", answer.tokens);
    Ok(Verdict::Held)
}
