//! Reasons for refusing requests.

use crate::encoder::PromptItem;
use crate::engine::Engine;
use crate::request::Prompt;

/// The reason why a request was not accepted, or could never end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
#[allow(missing_docs, reason = "the error texts describe them")]
pub enum RejectReason {
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error("the prompt leaves no room for output within `max_model_len`")]
    PromptTooLong,
    #[error("prompt and output together need more KV blocks than the engine has")]
    ExceedsKvPool,
    #[error("the prompt and the reserve for its output together need all KV pages of the engine or more")]
    ExceedsKvReserve,
    /// A load leaves the blocks free that a drafter's first step may need. If these and the prompt
    /// exceed the pool, vLLM's scheduler never starts the load (0.27 to 0.33).
    #[error(
        "the prompt and the blocks that a load of KV leaves free for drafts together exceed the KV blocks of the engine"
    )]
    LoadNeverFits,
    #[error("prompt and output together exceed `max_num_batched_tokens` and chunked prefill is off")]
    ExceedsTokenBudget,
    /// A step that computes a later chunk of a prompt never computes the last position of `max_model_len`.
    /// So a prompt without output that fills `max_model_len` never ends (vLLM issue 47971, open in 0.33).
    #[error(
        "the prompt fills `max_model_len` and has no output: its last token is never computed if the prompt is split"
    )]
    LastTokenNeverComputed,
    #[error("the prompt exceeds `prefill_tokens_per_tick`, and prompts are not split")]
    ExceedsPrefillBudget,
    #[error("the request's KV comes from another engine or goes there, which this scheduler cannot do")]
    KvTransfersOff,
    #[error("a request of the same number is under way")]
    DuplicateRequest,
    #[error("the request names an adapter, but the engine has none")]
    AdaptersOff,
    /// Resumable requests are simulated since 0.32, and not with states, tiers, connectors or multimodal items.
    #[error(
        "the request is resumable (streaming input), which is simulated since 0.32 for text, first come, first served, \
         without states (`mamba`) and `kv_tiers`, and with EAGLE or MTP in 0.33 with `disable_lookahead_block_hashes`"
    )]
    SessionNotSimulated,
    /// For example, structured outputs cannot be combined with sessions or per-request times.
    #[error(
        "the request has structured outputs, which are simulated only by vLLM's engine, and not with streaming inputs, \
         `request_times`, and tiers or reservations as in Dynamo's mocker"
    )]
    StructuredNotSimulated,
    #[error("the grammar of its structured outputs cannot be compiled")]
    GrammarFailed,
    #[error("the places of the prompt's multimodal items are not ascending, or not in the prompt")]
    MisplacedItems,
    /// In encoder-decoder models, each prompt has exactly one item, which has no placeholder tokens.
    #[error(
        "the input of the encoder is not one item before the prompt, without tokens for it, as layers of cross attention \
         need it"
    )]
    NotOneEncoderPrompt,
    #[error("a multimodal item has more embeddings than `max_num_encoder_input_tokens` or `encoder_cache_size` allows")]
    ItemExceedsEncoder,
    #[error("a multimodal item exceeds the tokens of a chunk, and `disable_chunked_mm_input` does not let it be split")]
    ItemExceedsChunk,
}

impl Engine {
    pub(super) fn check_items(&self, prompt: &Prompt) -> Result<(), RejectReason> {
        let config = &self.config;
        if config.is_encoder_decoder() {
            return self.check_encoder_prompt(prompt);
        }
        let mut end = 0;
        for item in prompt.items() {
            if item.offset_tokens() < end || item.len_tokens() == 0 || item.end_tokens() > prompt.len_tokens() {
                return Err(RejectReason::MisplacedItems);
            }
            end = item.end_tokens();
            if item.num_embeds() > config.largest_item_embeds() {
                return Err(RejectReason::ItemExceedsEncoder);
            }
            if config.disable_chunked_mm_input() && !self.can_hold_whole(item) {
                return Err(RejectReason::ItemExceedsChunk);
            }
        }
        Ok(())
    }

    /// Checks that the encoder's prompt is one item without placeholder tokens in the decoder's prompt.
    fn check_encoder_prompt(&self, prompt: &Prompt) -> Result<(), RejectReason> {
        match prompt.items() {
            [] => Ok(()),
            [item] if item.end_tokens() == 0 && item.num_embeds() > 0 => {
                if item.num_embeds() > self.config.largest_item_embeds() {
                    Err(RejectReason::ItemExceedsEncoder)
                } else {
                    Ok(())
                }
            }
            _ => Err(RejectReason::NotOneEncoderPrompt),
        }
    }

    /// Whether a chunk can be long enough for an item that `disable_chunked_mm_input` keeps whole.
    fn can_hold_whole(&self, item: &PromptItem) -> bool {
        let config = &self.config;
        let drafting = config.drafting();
        // A chunk ends this many tokens before an item that does not fit, because the drafter reads ahead.
        let before = item.offset_tokens().min(drafting.prefill_lookahead_tokens);
        if before == 0 && !config.rules().keeps_first_item_whole() {
            // A chunk that begins with the item may split it. vLLM does not start with items longer than this.
            return item.len_tokens() <= config.max_num_batched_tokens();
        }
        let mut longest_chunk = config.longest_chunk();
        if config.long_prefill_token_threshold() > 0 {
            longest_chunk = longest_chunk.min(config.long_prefill_token_threshold());
        }
        before.saturating_add(item.len_tokens()) <= longest_chunk
    }
}
