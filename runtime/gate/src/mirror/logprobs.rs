//! Token ids and log probabilities in the answers of servers.

use serde_json::{Map, Value};

use crate::error::Problem;

/// Part of an answer in one choice of a response or a chunk.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Piece {
    pub(super) text: Option<String>,
    pub(super) token_ids: Option<Vec<u32>>,
    pub(super) logprobs: Option<Vec<f64>>,
}

impl Piece {
    /// Of a choice of OpenAI's or vLLM's API: a message, a delta, a text or token ids.
    pub(super) fn of_choice(choice: &Value) -> Result<Self, Problem> {
        let message = choice.get("delta").or_else(|| choice.get("message"));
        let text = message.and_then(|message| message.get("content")).or_else(|| choice.get("text"));
        let token_ids = choice.get("token_ids").filter(|ids| !ids.is_null()).map(token_ids).transpose()?;
        let logprobs = choice.get("logprobs").and_then(Value::as_object).map(logprobs).transpose()?.flatten();
        Ok(Self { text: text.and_then(Value::as_str).map(str::to_owned), token_ids, logprobs })
    }

    /// Of a text.
    pub(super) fn of_text(text: Option<&Value>) -> Self {
        Self { text: text.and_then(Value::as_str).map(str::to_owned), ..Self::default() }
    }

    /// Tokens that it has, as far as it says.
    pub(super) fn tokens(&self) -> u32 {
        let ids = self.token_ids.as_ref().map(Vec::len);
        let known = ids.or_else(|| self.logprobs.as_ref().map(Vec::len));
        let has_text = self.text.as_ref().is_some_and(|text| !text.is_empty());
        known.map_or(u32::from(has_text), |len| len as u32)
    }

    /// Appends a later piece.
    pub(super) fn extend(&mut self, later: Self) {
        append(&mut self.text, later.text, |text, more| text.push_str(&more));
        append(&mut self.token_ids, later.token_ids, |ids, more| ids.extend(more));
        append(&mut self.logprobs, later.logprobs, |logprobs, more| logprobs.extend(more));
    }
}

fn append<T>(whole: &mut Option<T>, later: Option<T>, extend: impl Fn(&mut T, T)) {
    match (whole.as_mut(), later) {
        (Some(whole), Some(later)) => extend(whole, later),
        (None, later) => *whole = later,
        (Some(_), None) => {}
    }
}

pub(super) fn token_ids(ids: &Value) -> Result<Vec<u32>, Problem> {
    let invalid = || Problem::new("token_ids", "invalid token ids: expected an array of whole numbers");
    let of_one = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(invalid);
    ids.as_array().ok_or_else(invalid)?.iter().map(of_one).collect()
}

/// Log probabilities of the chosen tokens: `content` of chats, `token_logprobs` of completions.
fn logprobs(of: &Map<String, Value>) -> Result<Option<Vec<f64>>, Problem> {
    let invalid = || Problem::new("logprobs", "invalid log probability: expected a finite number");
    let finite = |value: &Value| value.as_f64().filter(|value| value.is_finite()).ok_or_else(invalid);
    if let Some(content) = of.get("content").and_then(Value::as_array) {
        return content.iter().map(|token| finite(&token["logprob"])).collect::<Result<_, _>>().map(Some);
    }
    match of.get("token_logprobs").and_then(Value::as_array) {
        // The first token of an echoed prompt has none.
        Some(all) => all.iter().filter(|value| !value.is_null()).map(finite).collect::<Result<_, _>>().map(Some),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn choices_of_every_api_have_pieces() {
        let piece = |choice: Value| Piece::of_choice(&choice).expect("it is one");
        let chat =
            piece(json!({"delta": {"content": "ab"}, "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1}]}}));
        assert_eq!(
            (chat.text.as_deref(), chat.logprobs.as_deref(), chat.tokens()),
            (Some("ab"), Some(&[-0.5, -1.0][..]), 2)
        );
        let completion = piece(json!({"text": "x", "logprobs": {"token_logprobs": [null, -2.0]}}));
        assert_eq!((completion.logprobs.as_deref(), completion.tokens()), (Some(&[-2.0][..]), 1));
        let mut ids = piece(json!({"token_ids": [1, 2]}));
        ids.extend(piece(json!({"token_ids": [3], "text": "t"})));
        assert_eq!((ids.token_ids, ids.text), (Some(vec![1, 2, 3]), Some("t".to_owned())));
        assert_eq!(piece(json!({"delta": {"role": "assistant"}})).tokens(), 0);
        assert!(Piece::of_choice(&json!({"token_ids": [-1]})).is_err());
        assert!(Piece::of_choice(&json!({"logprobs": {"content": [{}]}})).is_err());
    }
}
