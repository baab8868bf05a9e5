//! Scheduler statistics, as they reach the client's metrics.

use anyhow::{Result, ensure};

use crate::expect::{Verdict, same};
use crate::session::{Session, fresh_prompt, request};

pub async fn prefix_cache_counters_add_up(session: &Session) -> Result<Verdict> {
    let counters = || -> Result<(f64, f64)> {
        Ok((session.metric("vllm:prefix_cache_queries_total")?, session.metric("vllm:prefix_cache_hits_total")?))
    };
    let before = counters()?;
    let prompt = fresh_prompt(4 * session.block_size() + 5);
    let (mut queries, mut hits) = before;
    for _ in 0..3 {
        let answer = session.ask(request(prompt.clone(), 4)).await?;
        queries += f64::from(answer.prefill.num_prompt_tokens);
        hits += f64::from(answer.prefill.num_local_cached_tokens);
    }
    ensure!(hits > before.1, "the engine caches no prefixes");
    session.metric_becomes("vllm:prefix_cache_queries_total", queries).await?;
    same("queries and hits", counters()?, (queries, hits))?;
    Ok(Verdict::Held)
}

pub async fn an_idle_engine_runs_nothing(session: &Session) -> Result<Verdict> {
    session.ask(request(fresh_prompt(100), 10)).await?;
    session.metric_becomes("vllm:num_requests_running", 0.0).await?;
    session.metric_becomes("vllm:num_requests_waiting", 0.0).await?;
    // Blocks that are only cached do not count as used.
    session.metric_becomes("vllm:kv_cache_usage_perc", 0.0).await?;
    Ok(Verdict::Held)
}

/// Tokens of an output beyond the first one were drafted.
pub async fn drafts_are_counted(session: &Session) -> Result<Verdict> {
    let counters = || -> Result<[f64; 3]> {
        Ok([
            session.metric("vllm:spec_decode_num_drafts_total")?,
            session.metric("vllm:spec_decode_num_draft_tokens_total")?,
            session.metric("vllm:spec_decode_num_accepted_tokens_total")?,
        ])
    };
    let before = counters()?;
    let answer = session.ask(request(fresh_prompt(30), 40)).await?;
    session.metric_becomes("vllm:num_requests_running", 0.0).await?;
    let after = counters()?;
    let [drafts, draft_tokens, accepted] = [0, 1, 2].map(|index| after[index] - before[index]);
    if drafts == 0.0 {
        return Ok(Verdict::LeftOut("the engine drafts nothing".to_owned()));
    }
    // The last drafts may be cut.
    let beyond = (answer.tokens.len() - answer.outputs.len()) as f64;
    ensure!(
        beyond <= accepted && accepted <= draft_tokens && drafts <= draft_tokens,
        "{beyond} tokens came beyond one an output; counted are {drafts} drafts of {draft_tokens} tokens, {accepted} accepted"
    );
    Ok(Verdict::Held)
}
