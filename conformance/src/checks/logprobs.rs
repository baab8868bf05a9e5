//! How likely tokens were.

use anyhow::{Result, anyhow, ensure};
use vllm_engine_core_client::protocol::logprobs::{PositionLogprobs, TokenLogprob};

use crate::expect::{Verdict, same};
use crate::session::{Session, fresh_prompt, request_with};

/// Small arrays ride in the message, large ones behind it.
const FEW: usize = 2;
const MANY: usize = 20;

pub async fn sampled_tokens_have_logprobs(session: &Session) -> Result<Verdict> {
    for count in [0, FEW, MANY] {
        let request = request_with(fresh_prompt(30), 9, |params| params.logprobs = Some(count as i32));
        let answer = session.ask(request).await?;
        for output in &answer.outputs {
            let logprobs = output.new_logprobs.as_ref().and_then(|logprobs| logprobs.as_direct());
            let logprobs = logprobs.ok_or_else(|| anyhow!("an output has no logprobs"))?;
            same("positions", logprobs.positions.len(), output.new_token_ids.len())?;
            for (position, token) in logprobs.positions.iter().zip(&output.new_token_ids) {
                is_sound(position, *token, count)?;
                // Ties may give it a rank behind others.
                let likeliest = position.entries.iter().all(|entry| entry.logprob <= position.entries[0].logprob);
                ensure!(likeliest, "at temperature 0 another token is likelier: {:?}", position.entries);
            }
        }
    }
    Ok(Verdict::Held)
}

/// One row for each token of the prompt behind its first.
pub async fn prompts_have_logprobs(session: &Session) -> Result<Verdict> {
    for (length, count) in [(3, 0), (20, FEW), (300, MANY)] {
        let prompt = fresh_prompt(length);
        let request = request_with(prompt.clone(), 3, |params| params.prompt_logprobs = Some(count as i32));
        let answer = session.ask(request).await?;
        let expected: Vec<&PositionLogprobs> = answer
            .outputs
            .iter()
            .filter_map(|output| output.new_prompt_logprobs_tensors.as_ref()?.as_direct())
            .flat_map(|logprobs| &logprobs.positions)
            .collect();
        same(&format!("positions of a prompt of {length}"), expected.len(), length - 1)?;
        for (position, token) in expected.iter().zip(&prompt[1..]) {
            is_sound(position, *token, count)?;
        }
    }
    Ok(Verdict::Held)
}

/// The token itself, then the likeliest ones in order.
fn is_sound(position: &PositionLogprobs, token: u32, count: usize) -> Result<()> {
    let entries = &position.entries;
    same("entries of a position", entries.len(), 1 + count)?;
    same("the token of a position", entries[0].token_id, token)?;
    ensure!(entries[0].rank >= 1, "the rank of token {token} is 0");
    let likeliest = &entries[1..];
    ensure!(entries.iter().all(|entry| entry.logprob <= 0.0), "a token is more than certain: {entries:?}");
    ensure!(
        likeliest.windows(2).all(|pair| pair[0].logprob >= pair[1].logprob),
        "the likeliest tokens are not in order: {entries:?}"
    );
    let rank = entries[0].rank as usize;
    let as_likely = |entry: &TokenLogprob| entry.token_id == token || entry.logprob == entries[0].logprob;
    ensure!(
        rank > count || likeliest.iter().any(as_likely),
        "token {token} of rank {rank} is not among the likeliest: {entries:?}"
    );
    Ok(())
}
