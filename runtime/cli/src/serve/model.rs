//! The model that `vcr serve` serves.

use std::collections::BTreeMap;
use std::path::Path;

use vcr_frontend::Model;
use vcr_text::{ChatTemplate, GenerationConfig, ModelFolder, Tokenizer};
use vcr_wire::LoraRequest;

use super::args::ServerArgs;
use crate::play::unusable::Unusable;
use crate::service::with_causes;

/// The name of the built-in model.
const BUILTIN: &str = "sim";

/// What the options say of the model, but for the longest sequence of the engines, and
/// the model's own.
pub(crate) fn model(args: &ServerArgs) -> Result<(Model, Option<u32>), Unusable> {
    let adapters = args.lora_modules.iter().zip(1..).map(|((name, path), int_id)| {
        let adapter = LoraRequest { name: name.clone(), int_id, path: path.clone(), ..LoraRequest::default() };
        (name.clone(), adapter)
    });
    let adapters: BTreeMap<String, LoraRequest> = adapters.collect();
    let names = |default: String| {
        if args.served_model_name.is_empty() { vec![default] } else { args.served_model_name.clone() }
    };
    let Some(path) = &args.model else {
        let tokenizer = Tokenizer::builtin();
        let model = Model {
            names: names(BUILTIN.to_owned()),
            root: BUILTIN.to_owned(),
            template: Some(ChatTemplate::builtin()),
            generation: GenerationConfig::default(),
            eos_tokens: tokenizer.eos_token_ids().to_vec(),
            max_model_len: 0,
            vocab_size: tokenizer.vocab_size(),
            tokenizer,
            adapters,
        };
        return Ok((model, None));
    };
    let folder = ModelFolder::load(path).map_err(|error| Unusable {
        message: format!("MODEL {}: {}", path.display(), with_causes(&error)),
        hint: Some("give a folder with a tokenizer.json, or leave it out for the built-in tokenizer".to_owned()),
    })?;
    let eos_tokens = folder.eos_token_ids();
    let name = folder.cached_name.clone().unwrap_or_else(|| file_name(path));
    let model = Model {
        names: names(name),
        root: path.display().to_string(),
        vocab_size: folder.vocab_size(),
        tokenizer: folder.tokenizer,
        template: folder.chat_template,
        generation: folder.generation,
        eos_tokens,
        max_model_len: 0,
        adapters,
    };
    Ok((model, folder.max_model_len))
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| BUILTIN.to_owned(), |name| name.to_string_lossy().into_owned())
}
