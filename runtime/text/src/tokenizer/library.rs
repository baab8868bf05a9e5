//! Tokenizers of the `tokenizers` library.

use std::collections::BTreeMap;

use tokenizers::{
    AddedToken, DecoderWrapper, Model, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    TokenizerImpl,
};

use super::bpe::Bpe;

/// A tokenizer of the library, whatever model it has.
pub(super) trait Library: Send + Sync {
    fn encode(&self, text: &str, add_special: bool) -> tokenizers::Result<Vec<u32>>;
    fn decode(&self, ids: &[u32], skip_special: bool) -> tokenizers::Result<String>;
    fn token_to_id(&self, text: &str) -> Option<u32>;
    fn id_to_token(&self, id: u32) -> Option<String>;
    fn decoder(&self) -> Option<&DecoderWrapper>;
    fn added_tokens(&self) -> BTreeMap<u32, AddedToken>;
    /// The largest id of the model, without added tokens.
    fn last_of_model(&self) -> Option<u32>;
}

/// A model that knows its largest id.
trait WithLast: Model {
    fn last(&self) -> Option<u32>;
}

impl WithLast for Bpe {
    fn last(&self) -> Option<u32> {
        (self.get_vocab_size() as u32).checked_sub(1)
    }
}

impl WithLast for ModelWrapper {
    fn last(&self) -> Option<u32> {
        self.get_vocab().into_values().max()
    }
}

type WithModel<M> = TokenizerImpl<M, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

impl<M: WithLast + Send + Sync> Library for WithModel<M> {
    fn encode(&self, text: &str, add_special: bool) -> tokenizers::Result<Vec<u32>> {
        self.encode_fast(text, add_special).map(|encoding| encoding.get_ids().to_vec())
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> tokenizers::Result<String> {
        TokenizerImpl::decode(self, ids, skip_special)
    }

    fn token_to_id(&self, text: &str) -> Option<u32> {
        TokenizerImpl::token_to_id(self, text)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        TokenizerImpl::id_to_token(self, id)
    }

    fn decoder(&self) -> Option<&DecoderWrapper> {
        self.get_decoder()
    }

    fn added_tokens(&self) -> BTreeMap<u32, AddedToken> {
        self.get_added_tokens_decoder().into_iter().collect()
    }

    fn last_of_model(&self) -> Option<u32> {
        self.get_model().last()
    }
}

/// Reads `tokenizer.json`.
///
/// # Errors
/// Those of the library.
pub(super) fn read(bytes: &[u8]) -> Result<Box<dyn Library>, String> {
    if let Ok(tokenizer) = serde_json::from_slice::<WithModel<Bpe>>(bytes) {
        return Ok(Box::new(tokenizer));
    }
    let tokenizer = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
    Ok(Box::new(tokenizer.into_inner()))
}
