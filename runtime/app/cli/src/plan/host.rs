//! Whether host memory for KV helps a deployment.

use crate::plan::halt::Halt;
use crate::plan::load::{Cut, Facts};
use crate::plan::script::Case;
use crate::plan::simulate::{Simulated, Simulator};
use crate::plan::space::{HOST_GIB, Shape, without};

/// Smaller shares of prompt tokens count as none.
const NOTHING: f64 = 0.01;

/// A sentence on whether host memory helps a deployment. Simulates the same deployment with and without host memory;
/// none if the space has only one of them.
pub(crate) fn of_host(
    simulator: &Simulator<'_>,
    facts: &Facts,
    (shape, replicas): (&Shape, u32),
    requests: Option<u64>,
) -> Result<Option<String>, Halt> {
    let rest =
        |shape: &Shape| (without(&shape.command, &[HOST_GIB]), shape.router.clone(), shape.mode, shape.gpu.clone());
    let own = rest(shape);
    let of_kind = |one: &&Shape| rest(one) == own && (one.host_gib_per_gpu > 0) != (shape.host_gib_per_gpu > 0);
    let other = simulator.shapes.iter().filter(of_kind).max_by_key(|one| one.host_gib_per_gpu);
    let Some(other) = other else { return Ok(None) };
    let case = |shape| Case { shape, replicas, cut: Cut { requests, factor: 1.0 }, slower: 1.0 };
    let (own, other) = (simulator.case(&case(shape))?, simulator.case(&case(other))?);
    let is_used = shape.host_gib_per_gpu > 0;
    let (with, plain) = if is_used { (own, other) } else { (other, own) };
    Ok(Some(sentence(&with, &plain, facts.shared_prompts, is_used)))
}

fn sentence(with: &Simulated, plain: &Simulated, shared_prompts: f64, is_used: bool) -> String {
    let share = |tokens: u64| tokens as f64 / with.numbers.prompt_tokens.max(1) as f64;
    let loaded = share(with.numbers.host_cached_tokens);
    let text = |share: f64| format!("{:.1} %", share * 100.0);
    if let Some(reason) = &with.refused {
        return format!("host memory: {reason}");
    }
    if is_used {
        return format!("host memory gives row 1 {} of its prompt tokens", text(loaded));
    }
    let why = if shared_prompts < NOTHING {
        format!("prompts share {} of their tokens with earlier ones", text(shared_prompts))
    } else if loaded < NOTHING {
        let cached = text(share(with.numbers.cached_tokens));
        format!("the GPUs hold what prompts share, {cached} of their tokens, and the host gives {}", text(loaded))
    } else {
        let headroom = |one: &Simulated| vcr_report::headroom_text(one.score.headroom);
        let (before, after) = (headroom(plain), headroom(with));
        format!("it gives {} of the prompt tokens, but headroom goes from {before} to {after}", text(loaded))
    };
    format!("host memory does not help row 1: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_numbers() {
        let of = |prompt_tokens, cached_tokens, host_cached_tokens| {
            let mut one = Simulated::refused(String::new());
            one.refused = None;
            one.numbers.prompt_tokens = prompt_tokens;
            one.numbers.cached_tokens = cached_tokens;
            one.numbers.host_cached_tokens = host_cached_tokens;
            one
        };
        let said = |with: &Simulated, shared, is_used| sentence(with, &of(1000, 0, 0), shared, is_used);
        assert!(said(&of(1000, 0, 0), 0.002, false).contains("share 0.2 % of their tokens"));
        assert!(said(&of(1000, 500, 1), 0.5, false).contains("50.0 % of their tokens, and the host gives 0.1 %"));
        assert!(said(&of(1000, 500, 300), 0.5, false).contains("it gives 30.0 % of the prompt tokens, but headroom"));
        assert_eq!(said(&of(1000, 500, 300), 0.5, true), "host memory gives row 1 30.0 % of its prompt tokens");
    }
}
