//! Prompts of text completions.

use serde::Deserialize;

use crate::server::error::ApiError;
use crate::server::model::Model;

/// One prompt or several, as text or tokens.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

/// A prompt in tokens, and its text where that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tokenized {
    pub(super) tokens: Vec<u32>,
    pub(super) text: Option<String>,
}

impl Prompt {
    /// The tokens of all prompts; `id` is the request's name for errors.
    pub(super) fn tokenize(
        self,
        model: &Model,
        add_special: bool,
        truncate: Option<i64>,
        id: &str,
    ) -> Result<Vec<Tokenized>, ApiError> {
        let of_text = |text: String| {
            let tokens = model.encode(&text, add_special)?;
            if tokens.is_empty() {
                return Err(without_tokens(id));
            }
            Ok(Tokenized { tokens, text: Some(text) })
        };
        let of_tokens = |tokens: Vec<u32>| {
            if tokens.is_empty() {
                return Err(no_tokens(id));
            }
            Ok(Tokenized { tokens, text: None })
        };
        let mut prompts: Vec<Tokenized> = match self {
            Self::Text(text) => vec![of_text(text)?],
            Self::Tokens(tokens) => vec![of_tokens(tokens)?],
            Self::Texts(texts) => texts.into_iter().map(of_text).collect::<Result<_, _>>()?,
            Self::TokenLists(lists) => lists.into_iter().map(of_tokens).collect::<Result<_, _>>()?,
        };
        for prompt in &mut prompts {
            truncate_to(&mut prompt.tokens, truncate, model.max_model_len)?;
            if prompt.tokens.is_empty() {
                return Err(without_tokens(id));
            }
        }
        Ok(prompts)
    }
}

fn without_tokens(id: &str) -> ApiError {
    ApiError::invalid(format!("generate request `{id}` has an empty prompt_token_ids"))
}

/// The refusal of a list without tokens.
pub(super) fn no_tokens(id: &str) -> ApiError {
    ApiError::invalid(format!("text request `{id}` must contain at least one prompt token ID"))
}

/// Keeps the last tokens of a prompt; -1 keeps as many as the model takes.
pub(super) fn truncate_to(tokens: &mut Vec<u32>, limit: Option<i64>, max_model_len: u32) -> Result<(), ApiError> {
    let Some(limit) = limit else { return Ok(()) };
    if limit < -1 {
        return Err(ApiError::invalid_param("truncate_prompt_tokens", "truncate_prompt_tokens must be >= -1."));
    }
    if limit > i64::from(max_model_len) {
        return Err(ApiError::invalid(format!(
            "truncate_prompt_tokens={limit} cannot be greater than max_model_len = {max_model_len}. Please request a \
             smaller truncation size."
        )));
    }
    let kept = usize::try_from(limit).unwrap_or(max_model_len as usize);
    tokens.drain(..tokens.len().saturating_sub(kept));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_four_forms() {
        let read = |text: &str| serde_json::from_str::<Prompt>(text);
        assert!(matches!(read("\"a\""), Ok(Prompt::Text(_))));
        assert!(matches!(read("[1, 2]"), Ok(Prompt::Tokens(tokens)) if tokens == [1, 2]));
        assert!(matches!(read("[\"a\", \"b\"]"), Ok(Prompt::Texts(texts)) if texts.len() == 2));
        assert!(matches!(read("[[1], [2, 3]]"), Ok(Prompt::TokenLists(lists)) if lists.len() == 2));
        assert!(read("[1, \"a\"]").is_err() && read("[-1]").is_err() && read("{}").is_err());
    }

    #[test]
    fn the_end_of_a_truncated_prompt_is_kept() {
        let kept = |limit| {
            let mut tokens = vec![1, 2, 3, 4];
            truncate_to(&mut tokens, limit, 3).map(|()| tokens)
        };
        assert_eq!(kept(None), Ok(vec![1, 2, 3, 4]));
        assert_eq!(kept(Some(2)), Ok(vec![3, 4]));
        assert_eq!(kept(Some(-1)), Ok(vec![2, 3, 4]));
        assert!(kept(Some(4)).is_err() && kept(Some(-2)).is_err());
    }
}
