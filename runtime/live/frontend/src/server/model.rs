//! The served model: its names, tokenizer and limits.

use std::cmp::Ordering;

use vcr_text::{ChatTemplate, GenerationConfig, Tokenizer};
use vcr_wire::LoraRequest;

use super::adapters::Adapters;
use super::error::ApiError;
use super::frontend_kind::FrontendKind;
use crate::media::MediaRules;

/// Longer texts are refused without tokenizing them if they certainly exceed the limit.
const LONG_TEXT_BYTES: usize = 64 * 1024;

/// The served model.
#[derive(Clone, Debug)]
pub struct Model {
    /// The model's names. Responses use the first.
    pub names: Vec<String>,
    /// The model's folder or name, for `/v1/models`.
    pub root: String,
    pub tokenizer: Tokenizer,
    /// The chat template. Without one, chats are refused.
    pub template: Option<ChatTemplate>,
    /// Default sampling parameters.
    pub generation: GenerationConfig,
    /// Tokens that end a text. The first is the engines' EOS token.
    pub eos_tokens: Vec<u32>,
    /// The maximum length of a sequence.
    pub max_model_len: u32,
    /// The size of the vocabulary, which may be larger than the tokenizer's.
    pub vocab_size: u32,
    /// Dimensions of an embedding.
    pub embedding_dimensions: u32,
    /// Rules for counting images, audio and video.
    pub media: MediaRules,
    pub adapters: Adapters,
    /// Number of tokens in a chunk of a stream. A request can ask for more.
    pub stream_interval: u32,
    /// The simulated frontend of vLLM, which decides the error texts.
    pub frontend: FrontendKind,
}

impl Model {
    /// Finds the model or adapter that a request names. A missing or empty name means the served model. Returns the
    /// name for the response, and the adapter if one is named.
    pub fn resolve(&self, asked: Option<&str>) -> Result<(String, Option<LoraRequest>), ApiError> {
        let first = self.names.first().cloned().unwrap_or_default();
        match asked.filter(|name| !name.is_empty()) {
            None => Ok((first, None)),
            Some(name) if self.names.iter().any(|known| known == name) => Ok((first, None)),
            Some(name) => match self.adapters.get(name) {
                Some(adapter) => Ok((name.to_owned(), Some(adapter))),
                None => Err(self.unknown(name)),
            },
        }
    }

    /// The error for an unknown model name.
    fn unknown(&self, name: &str) -> ApiError {
        let error = ApiError::unknown_model(name);
        match self.frontend {
            FrontendKind::Rust => error,
            FrontendKind::Python => {
                ApiError { message: format!("{} Valid aliases: {}.", error.message, self.names.join(", ")), ..error }
            }
        }
    }

    /// The maximum length of the output for a prompt of this length.
    pub fn max_tokens(&self, asked: Option<u32>, prompt_tokens: usize) -> Result<u32, ApiError> {
        let limit = self.max_model_len;
        let start = format!("This model's maximum context length is {limit} tokens. However, your prompt");
        let end = "Please reduce the length of the input prompt.";
        match prompt_tokens.cmp(&(limit as usize)) {
            Ordering::Greater => self.check_prompt(prompt_tokens).map(|()| 0),
            Ordering::Equal if self.frontend == FrontendKind::Python => Err(ApiError::invalid_param(
                "max_tokens",
                "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
            )),
            Ordering::Equal => {
                let message =
                    format!("{start} fills it with {limit} input tokens, leaving no room for output tokens. {end}");
                Err(ApiError::invalid_param("input_tokens", message))
            }
            Ordering::Less => {
                let room = limit - prompt_tokens as u32;
                Ok(asked.or(self.generation.max_new_tokens).map_or(room, |asked| asked.min(room)))
            }
        }
    }

    /// Refuses a prompt that is longer than the maximum model length.
    pub fn check_prompt(&self, prompt_tokens: usize) -> Result<(), ApiError> {
        let limit = self.max_model_len;
        if prompt_tokens <= limit as usize {
            return Ok(());
        }
        let end = match self.frontend {
            FrontendKind::Python => format!(" (parameter=input_tokens, value={prompt_tokens})"),
            FrontendKind::Rust => String::new(),
        };
        Err(self.too_long(&format!("{prompt_tokens}"), &end))
    }

    /// Refuses a text with more tokens than the maximum model length. The Python server stops counting there, so
    /// its error says "at least".
    pub fn check_text_prompt(&self, prompt_tokens: usize) -> Result<(), ApiError> {
        let counted = self.max_model_len as usize + 1;
        if self.frontend == FrontendKind::Rust || prompt_tokens < counted {
            return self.check_prompt(prompt_tokens);
        }
        Err(self.too_long(&format!("at least {counted}"), &format!(" (parameter=input_tokens, value={counted})")))
    }

    fn too_long(&self, count: &str, end: &str) -> ApiError {
        let limit = self.max_model_len;
        ApiError::invalid_param(
            "input_tokens",
            format!(
                "This model's maximum context length is {limit} tokens. However, your prompt contains {count} input \
                 tokens, which exceeds this limit even without any output tokens. Please reduce the length of the \
                 input prompt.{end}"
            ),
        )
    }

    /// Refuses a long text that is too long even if it consists of the longest tokens. As in vLLM, this avoids
    /// tokenizing it, which takes far more time and memory. Shorter texts are refused by their number of tokens.
    pub fn check_text(&self, text: &str) -> Result<(), ApiError> {
        if text.len() < LONG_TEXT_BYTES {
            return Ok(());
        }
        let (limit, chars) = (self.max_model_len, text.chars().count());
        let most = (limit as usize).saturating_mul(self.tokenizer.max_token_chars());
        if chars <= most {
            return Ok(());
        }
        Err(ApiError::invalid_param(
            "input_text",
            format!(
                "You passed {chars} input characters. However, the model's context length is only {limit} tokens, \
                 resulting in a maximum input length of {limit} tokens (at most {most} characters). Please reduce the \
                 length of the input prompt."
            ),
        ))
    }

    /// Tokenizes a prompt that must not be truncated.
    pub fn encode_whole(&self, text: &str, add_special: bool) -> Result<Vec<u32>, ApiError> {
        self.check_text(text)?;
        self.encode(text, add_special)
    }

    /// Tokenizes a text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, ApiError> {
        self.tokenizer.encode(text, add_special).map_err(|error| ApiError::invalid(error.to_string()))
    }
}

#[cfg(test)]
impl Model {
    /// A model for tests, with the built-in tokenizer.
    pub(crate) fn builtin() -> Self {
        let tokenizer = Tokenizer::builtin();
        Self {
            names: vec!["sim".to_owned()],
            root: "sim".to_owned(),
            template: Some(ChatTemplate::builtin()),
            generation: GenerationConfig::default(),
            eos_tokens: Vec::new(),
            max_model_len: 100,
            vocab_size: tokenizer.vocab_size(),
            tokenizer,
            embedding_dimensions: 8,
            media: MediaRules::default(),
            adapters: Adapters::new([]),
            stream_interval: 1,
            frontend: FrontendKind::Rust,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        Model {
            names: vec!["sim".to_owned(), "other".to_owned()],
            template: None,
            adapters: Adapters::new([("fine".to_owned(), "/adapters/fine".to_owned())]),
            ..Model::builtin()
        }
    }

    #[test]
    fn models_have_several_names_and_adapters() {
        let model = model();
        assert_eq!(model.resolve(None).expect("the first"), ("sim".to_owned(), None));
        assert_eq!(model.resolve(Some("")).expect("the first").0, "sim");
        // As in vLLM, responses use the first name.
        assert_eq!(model.resolve(Some("other")).expect("the second").0, "sim");
        assert!(model.resolve(Some("fine")).expect("an adapter").1.is_some());
        assert_eq!(model.resolve(Some("x")), Err(ApiError::unknown_model("x")));
        let error = Model { frontend: FrontendKind::Python, ..model }.resolve(Some("x")).expect_err("there is none");
        assert_eq!(error.message, "The model `x` does not exist. Valid aliases: sim, other.");
    }

    #[test]
    fn outputs_fill_the_context_at_most() {
        let model = model();
        assert_eq!(model.max_tokens(Some(16), 90), Ok(10));
        assert_eq!(model.max_tokens(None, 90), Ok(10));
        let message = |tokens| model.max_tokens(None, tokens).expect_err("it is too long").message;
        assert!(message(101).contains("maximum context length is 100 tokens. However, your prompt contains 101 input"));
        assert!(message(100).contains("your prompt fills it with 100 input tokens, leaving no room"));
    }

    /// A text is refused by its length only if no tokenization could make it fit.
    #[test]
    fn texts_that_cannot_fit_are_refused_by_their_length() {
        let longest = |model: &Model| model.max_model_len as usize * model.tokenizer.max_token_chars();
        let model = Model { max_model_len: 20_000, ..model() };
        let most = longest(&model);
        assert!(most > LONG_TEXT_BYTES, "{most}");
        assert_eq!(model.check_text(&"a".repeat(most)), Ok(()));
        let error = model.check_text(&"a".repeat(most + 1)).expect_err("it is too long");
        assert_eq!((error.status.as_u16(), error.param), (400, Some("input_text".into())));
        let numbers =
            format!("passed {} input characters. However, the model's context length is only 20000", most + 1);
        assert!(error.message.contains(&numbers), "{}", error.message);
        // The limit is in characters, not bytes.
        assert_eq!(model.check_text(&"\u{e4}".repeat(most)), Ok(()));
        // Short texts are counted in tokens.
        let model = Model { max_model_len: 10, ..model };
        assert_eq!(model.check_text(&"a".repeat(LONG_TEXT_BYTES - 1)), Ok(()));
        assert!(model.check_text(&"a".repeat(LONG_TEXT_BYTES)).is_err());
    }
}
