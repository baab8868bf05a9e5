//! Bounds of families from the latencies of a single request, before the load is simulated.

use std::sync::Arc;

use serde::Serialize;
use vcr_cluster::Report;
use vcr_cluster::metrics::Trend;

use crate::plan::halt::Halt;
use crate::plan::load::{Cut, Facts};
use crate::plan::objective::Objective;
use crate::plan::script::Case;
use crate::plan::search::Family;
use crate::plan::simulate::Simulator;
use crate::plan::space::{LeftOut, Mode, Shape};
use crate::terminal::text::counted;

/// Output length of the single request: enough gaps for a mean ITL.
const OUTPUT_TOKENS: u64 = 9;
/// Share of prompt tokens common to requests from which cache hits are considered.
const SHARED: f64 = 0.01;
/// Share of the work that must be done while the load arrives; the rest may be done later.
const DURING: f64 = 0.9;

/// Latencies of a single request on a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Alone {
    /// ITL of a decode.
    pub(crate) itl_ms: f64,
    /// Prefill rate of the longest prompt.
    pub(crate) prompt_tokens_per_s: f64,
}

/// An objective that even a single request violates.
struct Broken {
    objective: String,
    value_ms: f64,
    prompt_tokens: u64,
    headroom: f64,
}

/// The families that may keep the objectives, with the latencies of single requests.
#[derive(Default)]
pub(crate) struct Bounded {
    pub(crate) families: Vec<Family>,
    pub(crate) alones: Vec<Alone>,
    pub(crate) left_out: Vec<LeftOut>,
    /// If all families are left out, the one whose single request is nearest to the objectives.
    pub(crate) nearest: Option<(Family, Alone)>,
}

/// Splits families into those that may keep the objectives and others, and sets where the search for replicas starts.
pub(crate) fn bound(simulator: &Simulator<'_>, facts: &Facts, families: Vec<Family>) -> Result<Bounded, Halt> {
    let found = simulator.each_of(&families, |_, family| alone(simulator, facts, family));
    let Bounded { families: mut kept, mut alones, mut left_out, .. } = Bounded::default();
    let mut nearest: Option<(f64, (Family, Alone))> = None;
    for (family, found) in families.into_iter().zip(found) {
        let shape = &simulator.shapes[family.shapes[0]];
        let mut leave = |reason: String| {
            left_out.push(LeftOut { deployments: shape.family_text(), reason, count: family.shapes.len() });
        };
        match found? {
            Err(reason) => leave(reason),
            Ok((alone, Some(Broken { objective, value_ms, prompt_tokens, headroom }))) => {
                leave(format!(
                    "`{objective}` is broken by one request alone: {} with a prompt of {}",
                    vcr_base::units::format_ns(value_ms * 1e6),
                    counted(prompt_tokens, "token")
                ));
                if nearest.as_ref().is_none_or(|(known, _)| headroom > *known) {
                    nearest = Some((headroom, (family, alone)));
                }
            }
            Ok((alone, None)) => {
                let least = least(&alone, shape, facts).clamp(family.fewest, family.most);
                kept.push(Family { least, ..family });
                alones.push(alone);
            }
        }
    }
    let nearest = nearest.map(|(_, nearest)| nearest).filter(|_| kept.is_empty());
    Ok(Bounded { families: kept, alones, left_out, nearest })
}

/// Prompt lengths to simulate: those at the percentiles of TTFT objectives, and the longest.
fn lengths(objectives: &[Objective], facts: &Facts) -> Vec<u64> {
    let of = objectives.iter().filter(|one| bounds_ttft(one)).filter_map(|one| {
        let share = one.percentile()? / 100.0;
        Some(if facts.shared_prompts < SHARED { facts.prompt_at(share) } else { 1 })
    });
    of.chain([facts.prompt_at(1.0)]).collect()
}

fn is_upper(objective: &Objective, metrics: &[&str]) -> bool {
    let limit = objective.limit();
    limit.is_some_and(|limit| {
        limit.is_upper == Some(true)
            && metrics.contains(&limit.metric.as_str())
            && !["min", "count", "rate", "std"].contains(&limit.statistic.as_str())
    })
}

fn bounds_ttft(objective: &Objective) -> bool {
    is_upper(objective, &["ttft"]) && objective.percentile().is_some()
}

type Found = Result<(Alone, Option<Broken>), String>;

/// Simulates single requests with the first flags of a family.
fn alone(simulator: &Simulator<'_>, facts: &Facts, family: &Family) -> Result<Found, Halt> {
    let inputs = simulator.inputs;
    let shape = &simulator.shapes[family.shapes[0]];
    let most = u64::from(inputs.bounds.max_model_len).saturating_sub(OUTPUT_TOKENS).max(1);
    let lengths: Vec<u64> = lengths(&inputs.objectives, facts).into_iter().map(|tokens| tokens.min(most)).collect();
    // An hour apart, so that requests never overlap.
    let workloads = lengths.iter().enumerate().map(|(number, tokens)| {
        format!(
            "burst(#{{ name: \"{number}\", at: \"{number}h\", count: 1, prompt_tokens: {tokens}, \
             output_tokens: {OUTPUT_TOKENS} }})"
        )
    });
    let workloads = workloads.collect::<Vec<_>>().join(", ");
    let case = Case { shape, replicas: 1, cut: Cut::WHOLE, slower: 1.0 };
    let outcome = match simulator.script(case.script_with(inputs, &workloads, false)?)? {
        Ok(outcome) => outcome,
        Err(reason) => return Ok(Err(reason)),
    };
    let run = &outcome.runs[0];
    let ttft_ms: Vec<f64> = (0..lengths.len()).map(|number| mean_ms(run, number, Trend::Ttft)).collect();
    let itl_ms = mean_ms(run, 0, Trend::Itl);
    let (last_tokens, last_ms) = (lengths[lengths.len() - 1], ttft_ms[ttft_ms.len() - 1]);
    let alone = Alone { itl_ms, prompt_tokens_per_s: last_tokens as f64 / (last_ms / 1e3).max(1e-9) };
    let headroom = |objective: &Objective, value_ms: f64| {
        objective.limit().and_then(|limit| limit.headroom(value_ms)).unwrap_or(0.0)
    };
    let of_ttft = inputs.objectives.iter().filter(|one| bounds_ttft(one)).zip(lengths.iter().zip(&ttft_ms));
    let of_ttft = of_ttft.map(|(objective, (tokens, ms))| (objective, *tokens, *ms));
    let gaps = inputs.objectives.iter().filter(|one| is_upper(one, &["itl", "tpot"]));
    let all = of_ttft.chain(gaps.map(|objective| (objective, lengths[0], itl_ms)));
    let all = all.map(|(objective, tokens, ms)| Broken {
        objective: objective.text(),
        value_ms: ms,
        prompt_tokens: tokens,
        headroom: headroom(objective, ms),
    });
    let broken = all.filter(|one| one.headroom < 0.0).min_by(|a, b| a.headroom.total_cmp(&b.headroom));
    Ok(Ok((alone, broken)))
}

fn mean_ms(run: &Arc<Report>, workload: usize, trend: Trend) -> f64 {
    let metrics = run.workloads.get(&workload.to_string());
    metrics.and_then(|metrics| metrics.trend(trend)).map_or(0.0, |trend| trend.mean)
}

/// Estimates the fewest replicas for the load: prefills take as long as in a single request, and decodes run in the
/// largest batch at the ITL of a single request.
fn least(alone: &Alone, shape: &Shape, facts: &Facts) -> u32 {
    let most_seqs = word_after(&shape.flags, "--max-num-seqs").unwrap_or(256.0);
    let computed_tokens = facts.prompt_tokens as f64 * (1.0 - facts.shared_prompts);
    let prompts_s = computed_tokens / alone.prompt_tokens_per_s.max(1.0);
    let decodes_s = facts.output_tokens as f64 * alone.itl_ms / 1e3 / most_seqs;
    let span_s = facts.span_s.max(1.0);
    let replicas = match shape.mode {
        Mode::Aggregated => prompts_s.max(decodes_s) / span_s,
        Mode::Disaggregated { prefill, decode } => {
            (prompts_s / f64::from(prefill)).max(decodes_s / f64::from(decode)) / span_s
        }
    };
    (replicas * DURING).ceil().clamp(1.0, f64::from(u32::MAX)) as u32
}

/// The number after a flag.
pub(crate) fn word_after(flags: &str, name: &str) -> Option<f64> {
    let mut words = flags.split_whitespace().skip_while(|word| *word != name);
    words.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_and_decodes_need_replicas() {
        let shape = Shape {
            model: String::new(),
            gpu: String::new(),
            price_per_gpu_hour: 1.0,
            mode: Mode::Aggregated,
            tensor_parallel: 1,
            pipeline_parallel: 1,
            data_parallel: 1,
            expert_parallel: false,
            gpus_per_engine: 1,
            router: String::new(),
            link: String::new(),
            flags: "--max-num-seqs 100 --max-num-batched-tokens 8192".to_owned(),
            host_gib_per_gpu: 0,
            command: String::new(),
        };
        let facts = Facts {
            requests: 100,
            span_s: 10.0,
            prompt_tokens: 400_000,
            output_tokens: 100_000,
            longest_tokens: 1,
            shared_prompts: 0.5,
            prompts: vec![1.0],
            lengths: vec![1],
        };
        // 200,000 prompt tokens at 5,000 a second take 40 s. Nine tenths of that must fit into 10 s.
        let alone = Alone { itl_ms: 10.0, prompt_tokens_per_s: 5_000.0 };
        assert_eq!(least(&alone, &shape, &facts), 4);
        // 100,000 output tokens, 100 at a time, take 100 s at 100 ms.
        assert_eq!(least(&Alone { itl_ms: 100.0, ..alone }, &shape, &facts), 9);
        let split = Shape { mode: Mode::Disaggregated { prefill: 2, decode: 1 }, ..shape };
        assert_eq!(least(&alone, &split, &facts), 2);
    }

    #[test]
    fn numbers_are_found_behind_their_flags() {
        assert_eq!(word_after("--a 1 --b 2.5", "--b"), Some(2.5));
        assert_eq!(word_after("--a 1", "--b"), None);
    }
}
