//! Shared by the targets of the server's readers: its built-in model.

use std::sync::OnceLock;

use vcr_frontend::{Adapters, CallParsing, ChatOptions, FrontendKind, MediaRules, Model};
use vcr_text::tools::CallForm;
use vcr_text::{ChatTemplate, GenerationConfig, Tokenizer};

/// The model and its chats.
pub fn model() -> &'static (Model, ChatOptions) {
    static MODEL: OnceLock<(Model, ChatOptions)> = OnceLock::new();
    MODEL.get_or_init(|| {
        let tokenizer = Tokenizer::builtin();
        let model = Model {
            names: vec!["sim".to_owned()],
            root: "sim".to_owned(),
            template: Some(ChatTemplate::builtin()),
            generation: GenerationConfig::default(),
            eos_tokens: tokenizer.eos_token_ids().to_vec(),
            max_model_len: 4096,
            vocab_size: tokenizer.vocab_size(),
            tokenizer,
            embedding_dimensions: 8,
            media: MediaRules::default(),
            adapters: Adapters::new([]),
            stream_interval: 1,
            frontend: FrontendKind::Python,
        };
        let calls = CallForm::named("hermes").map_or(CallParsing::Disabled, CallParsing::Form);
        (model, ChatOptions { calls, ..ChatOptions::default() })
    })
}
