//! Dynamo's rules for combinations of engine arguments.

use vcr_core::sglang::SglangConfigInput;

use super::{Kind, MAX_EXTRA_TOKENS, Raw};
use super::{state, tiers};
use crate::keys::Keys;

/// Adds a problem for each contradiction between arguments.
pub(super) fn check(raw: &Raw, keys: &mut Keys<'_>) {
    let engine = if raw.is_nested { "engine." } else { "" };
    let mut problem = |key: &str, text: String| keys.problem(&format!("{engine}{key}"), text);
    let kind = raw.engine_type.unwrap_or(Kind::Vllm);
    if raw.max_model_len.is_some() && kind != Kind::Vllm && !raw.is_nested {
        problem("max_model_len", "is for `engine_type` \"vllm\" only; remove it".to_owned());
    }
    let page_size = raw.sglang.as_ref().and_then(|sglang| sglang.page_size);
    if kind == Kind::Sglang
        && let (Some(page), Some(block)) = (page_size, raw.block_size)
        && page != block
    {
        problem("sglang.page_size", format!("is {page}, but `block_size` is {block}; they must be equal"));
    }
    if kind == Kind::Sglang {
        let block = raw.block_size.or(page_size).unwrap_or(1);
        let chunk = raw
            .sglang
            .as_ref()
            .and_then(|sglang| sglang.chunked_prefill_size)
            .unwrap_or(SglangConfigInput::default().chunked_prefill_size);
        if !chunk.is_multiple_of(block) {
            problem(
                "sglang.chunked_prefill_size",
                format!("expected a multiple of `block_size` ({block}), got {chunk}"),
            );
        }
    }
    let interval = raw.prefill_schedule_interval.unwrap_or(1);
    let ranks = raw.attention_dp_size.filter(|&size| size > 1).or(raw.dp_size).unwrap_or(1);
    if interval > 1 && kind != Kind::Vllm {
        let text = "is for engines of type \"vllm\" only; `prefill_decode_interval` is that of \"sglang\"";
        problem("prefill_schedule_interval", text.to_owned());
    } else if interval > 1 && ranks > 1 && raw.async_scheduling == Some(true) {
        let text = "cannot be combined with `async_scheduling` where engines have several ranks; remove one of them";
        problem("prefill_schedule_interval", text.to_owned());
    }
    if raw.prefill_decode_interval.is_some_and(|interval| interval > 0) && kind != Kind::Sglang {
        problem("prefill_decode_interval", "is for engines of type \"sglang\" only; remove it".to_owned());
    }
    if raw.async_scheduling == Some(true) && kind != Kind::Vllm {
        problem("async_scheduling", "is for engines of type \"vllm\" only; remove it".to_owned());
    }
    if raw.async_scheduling == Some(true) && raw.nextn.is_some() {
        problem("async_scheduling", "cannot be combined with `aic_nextn`; remove one of them".to_owned());
    }
    match raw.nextn {
        Some(nextn) if nextn > MAX_EXTRA_TOKENS => {
            problem("aic_nextn", format!("expected 1 to {MAX_EXTRA_TOKENS}, got {nextn}"));
        }
        Some(_) if raw.decode_speedup_ratio.is_some_and(|ratio| ratio != 1.0) => problem(
            "aic_nextn",
            "needs `decode_speedup_ratio` 1: the gain of several tokens per pass is simulated".to_owned(),
        ),
        None if raw.rates.is_some() => {
            problem("aic_nextn_accept_rates", "needs `aic_nextn`: without it there is nothing to accept".to_owned());
        }
        _ => {}
    }
    tiers::check(raw, &mut problem);
    state::check(raw, raw.block_size.unwrap_or(64), &mut problem);
    if raw.moe_tp_size.is_some() || raw.moe_ep_size.is_some() {
        let of = |size: Option<u32>| u64::from(size.unwrap_or(1));
        let (dense, experts) =
            (of(raw.tensor_parallel_size) * of(raw.attention_dp_size), of(raw.moe_tp_size) * of(raw.moe_ep_size));
        if dense != experts {
            let text = format!(
                "and `aic_moe_ep_size` make {experts} GPUs, but `aic_tp_size` and `aic_attention_dp_size` {dense}; \
                 they must be equal"
            );
            problem("aic_moe_tp_size", text);
        }
    }
}
