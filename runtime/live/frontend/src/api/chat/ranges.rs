//! Ranges of a chat's fields. As in vLLM's validator, an error has one line per field and no names of Rust types.

use serde_json::Value;

use crate::server::error::ApiError;

#[derive(Clone, Debug, Default)]
pub(in crate::api) struct ChatFields {
    pub(in crate::api) frequency_penalty: Option<f32>,
    pub(in crate::api) presence_penalty: Option<f32>,
    pub(in crate::api) temperature: Option<f32>,
    pub(in crate::api) top_p: Option<f32>,
    pub(in crate::api) min_p: Option<f32>,
    pub(in crate::api) repetition_penalty: Option<f32>,
    pub(in crate::api) logprobs: bool,
    pub(in crate::api) top_logprobs: Option<i32>,
    pub(in crate::api) max_tokens: Option<u32>,
    pub(in crate::api) min_tokens: Option<u32>,
    pub(in crate::api) n: Option<u32>,
    pub(in crate::api) prompt_logprobs: Option<i32>,
    pub(in crate::api) stream: bool,
    pub(in crate::api) has_stream_options: bool,
}

impl ChatFields {
    pub(in crate::api) fn check(&self) -> Result<(), ApiError> {
        let penalty = (Some(-2.0), Some(2.0));
        let lines: Vec<String> = [
            range("frequency_penalty", self.frequency_penalty, penalty),
            range("presence_penalty", self.presence_penalty, penalty),
            range("temperature", self.temperature, (Some(0.0), Some(2.0))),
            self.top_p.filter(|top_p| !(*top_p > 0.0 && *top_p <= 1.0)).map(top_p),
            range("min_p", self.min_p, (Some(0.0), Some(1.0))),
            range("repetition_penalty", self.repetition_penalty, (Some(0.0), Some(2.0))),
            range("top_logprobs", self.top_logprobs, (Some(-1), None)),
            range("max_completion_tokens", self.max_tokens, (Some(1), None)),
            range("n", self.n, (Some(1), Some(10))),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !lines.is_empty() {
            return Err(ApiError::invalid(lines.join("\n")));
        }
        self.check_pairs()
    }

    /// Refuses fields that exclude each other.
    fn check_pairs(&self) -> Result<(), ApiError> {
        if self.top_logprobs.is_some_and(|top| top != 0) && !self.logprobs {
            return Err(ApiError::invalid("__all__: top_logprobs is only allowed when logprobs is enabled"));
        }
        if self.has_stream_options && !self.stream {
            return Err(ApiError::invalid("__all__: stream_options can only be used when stream is true"));
        }
        if self.min_tokens.zip(self.max_tokens).is_some_and(|(least, most)| least > most) {
            return Err(ApiError::invalid("__all__: min_tokens cannot be greater than max_completion_tokens"));
        }
        let of_prompt = |message| Err(ApiError::invalid_param("prompt_logprobs", message));
        match self.prompt_logprobs {
            Some(count) if count < -1 => of_prompt("prompt_logprobs must be a non-negative value or -1."),
            Some(count) if self.stream && count != 0 => {
                of_prompt("prompt_logprobs are not available when stream=true.")
            }
            _ => Ok(()),
        }
    }
}

/// Describes a value outside its range.
fn range<T: PartialOrd + Into<Value>>(
    field: &str,
    given: Option<T>,
    (min, max): (Option<T>, Option<T>),
) -> Option<String> {
    let given = given?;
    // NaN is in no range.
    let is_inside = min.as_ref().is_none_or(|min| given >= *min) && max.as_ref().is_none_or(|max| given <= *max);
    if is_inside {
        return None;
    }
    let named = [("max", max), ("min", min), ("value", Some(given))];
    let parts = named.into_iter().filter_map(|(name, value)| Some(format!("\"{name}\": {:?}", value?.into())));
    Some(format!("{field}: Validation error: range [{{{}}}]", parts.collect::<Vec<_>>().join(", ")))
}

fn top_p(given: f32) -> String {
    let given = Value::from(given);
    format!(
        "top_p: Validation error: top_p must be in (0, 1] - greater than 0.0 and at most 1.0 [{{\"value\": {given:?}}}]"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(fields: &ChatFields) -> String {
        fields.check().expect_err("it is outside").message
    }

    #[test]
    fn every_field_outside_its_range_has_a_line() {
        assert!(ChatFields { temperature: Some(2.0), n: Some(10), ..ChatFields::default() }.check().is_ok());
        let fields = ChatFields { temperature: Some(3.0), top_logprobs: Some(-3), ..ChatFields::default() };
        let expected = "temperature: Validation error: range [{\"max\": Number(2.0), \"min\": Number(0.0), \"value\": \
                        Number(3.0)}]\ntop_logprobs: Validation error: range [{\"min\": Number(-1), \"value\": Number(-3)}]";
        assert_eq!(message(&fields), expected);
        assert!(ChatFields { temperature: Some(f32::NAN), ..ChatFields::default() }.check().is_err());
    }

    #[test]
    fn fields_exclude_each_other() {
        let fields = ChatFields { top_logprobs: Some(2), ..ChatFields::default() };
        assert_eq!(message(&fields), "__all__: top_logprobs is only allowed when logprobs is enabled");
        let fields = ChatFields { min_tokens: Some(5), max_tokens: Some(3), ..ChatFields::default() };
        assert_eq!(message(&fields), "__all__: min_tokens cannot be greater than max_completion_tokens");
    }
}
