//! The model of `vcr serve`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use vcr_frontend::{Adapters, MediaRules, Model};
use vcr_text::{ChatTemplate, GenerationConfig, ModelFolder, TextError, Tokenizer};
use vcr_wire::VllmMinor;

use super::args::{FrontendArg, ServerArgs};
use crate::play::engine::EngineArgs;
use crate::play::unusable::Unusable;

const BUILTIN: &str = "sim";

/// Engine settings from a model's folder.
#[derive(Default)]
pub(crate) struct OwnSettings {
    /// The longest sequence.
    pub(crate) max_model_len: Option<u32>,
    pub(crate) config: Option<PathBuf>,
    /// Size of a token's hidden state.
    pub(crate) hidden_size: Option<u32>,
}

/// Makes the model that the options describe, and its settings for the engines.
pub(crate) fn model(
    args: &ServerArgs,
    engine: &EngineArgs,
    media: MediaRules,
) -> Result<(Model, OwnSettings), Unusable> {
    let adapters = Adapters::new(args.lora_modules.clone());
    let given = match args.served_model_name.is_empty() {
        true => engine.served_names(Some(VllmMinor::V0_33))?,
        false => args.served_model_name.clone(),
    };
    let names = |default: String| if given.is_empty() { vec![default] } else { given.clone() };
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
            embedding_dimensions: 0,
            media,
            adapters,
            stream_interval: args.stream_interval,
            frontend: args.frontend.into(),
        };
        return Ok((model, OwnSettings::default()));
    };
    if !path.exists() {
        let message = format!("invalid MODEL {}: expected an existing folder of a model", path.display());
        let hint = "nothing is downloaded: give the folder of a model that is on this machine, with its tokenizer.json \
                    (hf download NAME prints its path), or leave MODEL out for the built-in tokenizer and name the \
                    model by --served-model-name";
        return Err(Unusable { message, hint: Some(hint.to_owned()) });
    }
    let folder = ModelFolder::load(path).map_err(|error| Unusable {
        // The error's text includes its causes.
        message: format!("MODEL {}: {error}", path.display()),
        hint: Some(match error {
            TextError::Template(_) => {
                "correct chat_template.jinja, or `chat_template` of tokenizer_config.json, in this folder".to_owned()
            }
            _ => "give a folder with a tokenizer.json, or leave it out for the built-in tokenizer".to_owned(),
        }),
    })?;
    if let Some(Err(error)) = folder.chat_template.as_ref().map(ChatTemplate::check) {
        let message = format!("MODEL {}: invalid chat template: {error}", path.display());
        return Err(Unusable { message, hint: Some("it has to render a chat of one message".to_owned()) });
    }
    let eos_tokens = folder.eos_token_ids();
    let hidden_size = folder.hidden_size();
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
        embedding_dimensions: 0,
        media,
        adapters,
        stream_interval: args.stream_interval,
        frontend: args.frontend.into(),
    };
    let config = folder.config.map(|_| folder.path.join("config.json"));
    Ok((model, OwnSettings { max_model_len: folder.max_model_len, config, hidden_size }))
}

/// The tokenizer's config for clients, if enabled: its file, special tokens as strings, and the chat template.
pub(crate) fn tokenizer_info(args: &ServerArgs, model: &Model) -> Result<Option<Value>, Unusable> {
    let is_shown = args.enable_tokenizer_info_endpoint && matches!(args.frontend, FrontendArg::Python);
    if !is_shown {
        return Ok(None);
    }
    let path = args.model.as_ref().map(|path| path.join("tokenizer_config.json")).filter(|path| path.is_file());
    let mut info = match path {
        Some(path) => {
            let unusable =
                |error: String| Unusable::new(format!("--enable-tokenizer-info-endpoint: {}: {error}", path.display()));
            let text = vcr_base::input::read_text(&path, vcr_base::input::MAX_CONFIG_BYTES);
            let text = text.map_err(|error| unusable(error.to_string()))?;
            serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?
        }
        None => json!({}),
    };
    texts_of_tokens(&mut info);
    if let (Some(info), Some(template)) = (info.as_object_mut(), &model.template) {
        info.insert("chat_template".to_owned(), template.source().into());
    }
    Ok(Some(info))
}

/// Replaces the objects of special tokens by their strings.
fn texts_of_tokens(value: &mut Value) {
    match value {
        Value::Object(map) => match map.get("content").filter(|_| map.contains_key("lstrip")) {
            Some(content) => *value = content.clone(),
            None => map.values_mut().for_each(texts_of_tokens),
        },
        Value::Array(values) => values.iter_mut().for_each(texts_of_tokens),
        _ => {}
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| BUILTIN.to_owned(), |name| name.to_string_lossy().into_owned())
}
