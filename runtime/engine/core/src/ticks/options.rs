//! The options of an engine that schedules by ticks, declared once, as `config/options.rs`
//! declares those of vLLM's.

use crate::config::options::options;

options! {
    crate::ticks::TickConfigInput, crate::ticks::TickConfig;
    TOTAL_KV_PAGES total_kv_pages: Count("count", 1..=u32::MAX), "total_kv_pages", None, Simulated, "KV pages";
    PAGE_SIZE_TOKENS page_size_tokens: Count("tokens", 1..=u32::MAX), "page_size_tokens", None, Simulated,
        "tokens of a KV page";
    MAX_ACTIVE max_active: Count("count", 1..=u32::MAX), "max_active", None, Simulated,
        "maximum number of admitted requests";
    PREFILL_TOKENS_PER_TICK prefill_tokens_per_tick: Count("tokens", 1..=u32::MAX), "prefill_tokens_per_tick", None,
        Simulated, "maximum prompt tokens of the requests that one tick admits; a longer prompt is refused";
    DECODE_WIDTH decode_width: Count("count", 1..=u32::MAX), "decode_width", None, Simulated,
        "maximum number of requests that get a token in one tick";
}
