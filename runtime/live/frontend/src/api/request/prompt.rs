//! Prompts of text completions.

use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::server::error::ApiError;
use crate::server::frontend_kind::FrontendKind;
use crate::server::model::Model;

/// One prompt or several, as text or tokens.
#[derive(Clone, Debug)]
pub(in crate::api) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

/// Reads prompts directly into lists. serde's buffer for an untagged enum would be many times larger than a long
/// list of tokens.
impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Item::deserialize(deserializer)? {
            Item::Text(text) => Ok(Self::Text(text)),
            Item::Tokens(tokens) => Ok(Self::Tokens(tokens)),
            Item::Texts(texts) => Ok(Self::Texts(texts)),
            Item::TokenLists(lists) => Ok(Self::TokenLists(lists)),
            Item::Token(_) | Item::Other => {
                Err(D::Error::custom("data did not match any variant of untagged enum Prompt"))
            }
        }
    }
}

/// A prompt, or an element of a prompt list.
enum Item {
    Token(u32),
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
    Other,
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemVisitor)
    }
}

/// Number of tokens of a list that are read before memory is allocated.
const FIRST_TOKENS: usize = 128;

/// Reads a list of tokens that starts with `first`, without storing an [`Item`] per token. A short list is copied
/// once instead of at each growth.
fn tokens<'de, A: SeqAccess<'de>>(first: u32, mut items: A) -> Result<Item, A::Error> {
    let (mut start, mut count) = ([first; FIRST_TOKENS], 1);
    let mut tokens = Vec::new();
    let mut are_tokens = true;
    while let Some(MaybeToken(token)) = items.next_element()? {
        let Some(token) = token else {
            are_tokens = false;
            continue;
        };
        if let Some(place) = start.get_mut(count) {
            *place = token;
            count += 1;
        } else {
            if tokens.is_empty() {
                tokens.extend_from_slice(&start);
            }
            tokens.push(token);
        }
    }
    if tokens.is_empty() {
        tokens.extend_from_slice(&start[..count]);
    }
    Ok(if are_tokens { Item::Tokens(tokens) } else { Item::Other })
}

/// A token, or any other value.
struct MaybeToken(Option<u32>);

impl<'de> Deserialize<'de> for MaybeToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TokenVisitor)
    }
}

struct TokenVisitor;

impl<'de> Visitor<'de> for TokenVisitor {
    type Value = MaybeToken;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a token")
    }

    #[inline]
    fn visit_u64<E>(self, token: u64) -> Result<MaybeToken, E> {
        Ok(MaybeToken(token.try_into().ok()))
    }

    fn visit_i64<E>(self, _: i64) -> Result<MaybeToken, E> {
        Ok(MaybeToken(None))
    }

    fn visit_f64<E>(self, _: f64) -> Result<MaybeToken, E> {
        Ok(MaybeToken(None))
    }

    fn visit_bool<E>(self, _: bool) -> Result<MaybeToken, E> {
        Ok(MaybeToken(None))
    }

    fn visit_unit<E>(self) -> Result<MaybeToken, E> {
        Ok(MaybeToken(None))
    }

    fn visit_str<E>(self, _: &str) -> Result<MaybeToken, E> {
        Ok(MaybeToken(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<MaybeToken, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(MaybeToken(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MaybeToken, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(MaybeToken(None))
    }
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a prompt")
    }

    fn visit_str<E>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_u64<E>(self, token: u64) -> Result<Item, E> {
        Ok(token.try_into().map_or(Item::Other, Item::Token))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Item, A::Error> {
        let Some(first) = items.next_element()? else { return Ok(Item::Tokens(Vec::new())) };
        let mut list = match first {
            Item::Token(token) => return tokens(token, items),
            Item::Text(text) => Item::Texts(vec![text]),
            Item::Tokens(tokens) => Item::TokenLists(vec![tokens]),
            _ => Item::Other,
        };
        while let Some(item) = items.next_element()? {
            match (&mut list, item) {
                (Item::Texts(texts), Item::Text(text)) => texts.push(text),
                (Item::TokenLists(lists), Item::Tokens(tokens)) => lists.push(tokens),
                (list, _) => *list = Item::Other,
            }
        }
        Ok(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Item, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Item::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Item, E> {
        Ok(Item::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Item, E> {
        Ok(Item::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Item, E> {
        Ok(Item::Other)
    }

    fn visit_unit<E>(self) -> Result<Item, E> {
        Ok(Item::Other)
    }
}

/// A prompt as tokens, and its text if the request contained text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::api) struct Tokenized {
    pub(in crate::api) tokens: Vec<u32>,
    pub(in crate::api) text: Option<String>,
}

impl Prompt {
    /// Tokenizes all prompts. `id` is the request id, for errors.
    pub(in crate::api) fn tokenize(
        self,
        model: &Model,
        add_special: bool,
        truncate: Option<i64>,
        id: &str,
    ) -> Result<Vec<Tokenized>, ApiError> {
        let of_text = |text: String| {
            let tokens = match truncate {
                None => model.encode_whole(&text, add_special)?,
                Some(_) => model.encode(&text, add_special)?,
            };
            if tokens.is_empty() {
                return Err(without_tokens(id, model));
            }
            Ok(Tokenized { tokens, text: Some(text) })
        };
        let of_tokens = |tokens: Vec<u32>| {
            if tokens.is_empty() {
                return Err(no_tokens(id, model));
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
                return Err(without_tokens(id, model));
            }
            if prompt.text.is_some() {
                model.check_text_prompt(prompt.tokens.len())?;
            }
        }
        Ok(prompts)
    }
}

fn without_tokens(id: &str, model: &Model) -> ApiError {
    ApiError::invalid(match model.frontend {
        FrontendKind::Python => NO_PROMPT.to_owned(),
        FrontendKind::Rust => format!("generate request `{id}` has an empty prompt_token_ids"),
    })
}

/// The Python server's error for an empty prompt.
const NO_PROMPT: &str = "The decoder prompt cannot be empty";

/// The error for an empty list of tokens.
pub(in crate::api) fn no_tokens(id: &str, model: &Model) -> ApiError {
    ApiError::invalid(match model.frontend {
        FrontendKind::Python => NO_PROMPT.to_owned(),
        FrontendKind::Rust => format!("text request `{id}` must contain at least one prompt token ID"),
    })
}

/// Keeps the last tokens of a prompt. -1 keeps as many as the model supports.
pub(in crate::api) fn truncate_to(
    tokens: &mut Vec<u32>,
    limit: Option<i64>,
    max_model_len: u32,
) -> Result<(), ApiError> {
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
        assert!(matches!(read("[]"), Ok(Prompt::Tokens(tokens)) if tokens.is_empty()));
        assert!(matches!(read("[[], [1]]"), Ok(Prompt::TokenLists(lists)) if lists.len() == 2));
        for text in ["[1, \"a\"]", "[-1]", "{}", "1", "null", "[[1], 2]", "[[[1]]]", "[4294967296]", "[\"a\", null]"] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains("did not match any variant of untagged enum Prompt"), "{text}: {error}");
        }
        assert!(read("[[1").is_err());
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
