//! Passes media through a chat template: each medium is replaced with a mark in the text, and the mark with
//! placeholder tokens after rendering.

use std::borrow::Cow;

use serde_json::{Value as Json, json};
use vcr_text::{ChatTemplate, ContentFormat, Tokenizer, Value, ValueKind};
use vcr_wire::{MmFeature, PlaceholderRange};

use super::medium::{Medium, is_text_type};
use super::rules::{MediaRules, Modality};
use crate::server::error::ApiError;

/// A tokenized prompt and its media.
pub(crate) type MediaPrompt = (Vec<u32>, Option<Vec<MmFeature>>);

#[derive(Debug, Default)]
pub(crate) struct ChatMedia {
    media: Vec<Medium>,
    /// The prefix of all marks, which no message contains.
    mark: String,
}

impl ChatMedia {
    /// Replaces the media in messages with marks.
    ///
    /// # Errors
    /// When a part is invalid, or there are too many media. Errors have vLLM's texts.
    pub(crate) fn take<'a>(
        messages: &'a [Value],
        template: Option<&ChatTemplate>,
        rules: &MediaRules,
    ) -> Result<(Cow<'a, [Value]>, Self), ApiError> {
        if !messages.iter().any(may_have_media) {
            return Ok((Cow::Borrowed(messages), Self::default()));
        }
        let mut all = Self { media: Vec::new(), mark: mark() };
        let is_joined = template.is_some_and(|template| template.content_format() == ContentFormat::String);
        let mut marked = Vec::with_capacity(messages.len());
        for message in messages {
            marked.push(if may_have_media(message) {
                all.mark_parts(message, is_joined, rules)?
            } else {
                message.clone()
            });
        }
        all.check(rules)?;
        if all.media.is_empty() { Ok((Cow::Borrowed(messages), all)) } else { Ok((Cow::Owned(marked), all)) }
    }

    /// Replaces the media of a message with marks. If the template joins parts, the marks come first, as in vLLM.
    fn mark_parts(&mut self, original: &Value, is_joined: bool, rules: &MediaRules) -> Result<Value, ApiError> {
        let unreadable =
            |error: serde_json::Error| ApiError::invalid_param("messages", format!("invalid message: {error}"));
        let mut message = serde_json::to_value(original).map_err(unreadable)?;
        let Json::Array(parts) = message["content"].take() else { return Ok(original.clone()) };
        let (mut marks, mut others) = (Vec::new(), Vec::new());
        for part in parts {
            let Some(medium) = Medium::read(&part, rules)? else {
                others.push(part);
                continue;
            };
            let mark = json!({"type": "text", "text": self.mark_of(self.media.len())});
            self.media.push(medium);
            if is_joined { &mut marks } else { &mut others }.push(mark);
        }
        marks.append(&mut others);
        message["content"] = Json::Array(marks);
        serde_json::from_value(message).map_err(unreadable)
    }

    fn mark_of(&self, index: usize) -> String {
        format!("{}{index}{MARK_END}", self.mark)
    }

    fn check(&self, rules: &MediaRules) -> Result<(), ApiError> {
        for modality in [Modality::Image, Modality::Audio, Modality::Video] {
            let count = self.media.iter().filter(|medium| medium.modality == modality).count();
            if let Some(limit) = rules.limits.of(modality).filter(|limit| count > *limit) {
                let name = modality.name();
                return Err(ApiError::invalid(format!("At most {limit} {name}(s) may be provided in one prompt.")));
            }
        }
        Ok(())
    }

    /// Tokenizes the rendered text and replaces the marks with placeholder tokens.
    pub(crate) fn prompt(&self, text: &str, tokenizer: &Tokenizer, add_special: bool) -> Result<MediaPrompt, ApiError> {
        let encode = |text: &str, add_special: bool| {
            tokenizer.encode(text, add_special).map_err(|error| ApiError::invalid(error.to_string()))
        };
        if self.media.is_empty() {
            return Ok((encode(text, add_special)?, None));
        }
        let mut pieces = text.split(self.mark.as_str());
        let mut tokens = encode(pieces.next().unwrap_or_default(), add_special)?;
        let mut features = Vec::with_capacity(self.media.len());
        for piece in pieces {
            let (index, rest) = piece.split_once(MARK_END).unwrap_or_default();
            let medium = index.parse().ok().and_then(|index: usize| self.media.get(index));
            let medium = medium.ok_or_else(|| lost("changes them"))?;
            features.push(feature(medium, tokens.len()));
            let placeholder = placeholder(tokenizer, medium.modality);
            tokens.resize(tokens.len() + medium.tokens as usize, placeholder);
            if !rest.is_empty() {
                tokens.extend(encode(rest, false)?);
            }
        }
        if features.len() != self.media.len() {
            return Err(lost("leaves some of them out"));
        }
        Ok((tokens, Some(features)))
    }
}

fn lost(how: &str) -> ApiError {
    ApiError::invalid(format!("multimodal preprocessing error: the chat template {how}"))
}

/// Whether a part of the message may be more than text.
fn may_have_media(message: &Value) -> bool {
    let is_text = |part: Value| part.get_attr("type").is_ok_and(|kind| kind.as_str().is_some_and(is_text_type));
    let content = message.get_attr("content").unwrap_or_default();
    content.kind() == ValueKind::Seq && content.try_iter().is_ok_and(|mut parts| !parts.all(is_text))
}

/// Marks use private-use characters, which no tokenizer or template uses.
const MARK_END: char = '\u{e001}';

fn mark() -> String {
    let mut bytes = [0; 8];
    // A fixed mark also works, unless a message contains it.
    _ = getrandom::fill(&mut bytes);
    format!("\u{e000}{:016x}.", u64::from_le_bytes(bytes))
}

/// The placeholder token of a modality.
fn placeholder(tokenizer: &Tokenizer, modality: Modality) -> u32 {
    modality.placeholders().iter().find_map(|name| tokenizer.token_id(name)).unwrap_or(0)
}

fn feature(medium: &Medium, offset: usize) -> MmFeature {
    MmFeature {
        data: None,
        modality: medium.modality.name().to_owned(),
        identifier: medium.uuid.clone().unwrap_or_else(|| medium.hash.clone()),
        mm_position: PlaceholderRange { offset: offset as u64, length: medium.tokens.into(), is_embed: None },
        mm_hash: Some(medium.hash.clone()),
    }
}

/// Moves the media of a prompt after its first `removed` tokens were cut off.
pub(crate) fn shifted(features: Option<Vec<MmFeature>>, removed: usize) -> Option<Vec<MmFeature>> {
    let removed = removed as u64;
    let mut features = features?;
    features.retain_mut(|feature| {
        let place = &mut feature.mm_position;
        let end = place.offset + place.length;
        let start = place.offset.max(removed);
        (place.offset, place.length) = (start - removed, end.saturating_sub(start));
        place.length > 0
    });
    (!features.is_empty()).then_some(features)
}

#[cfg(test)]
mod tests {
    use vcr_text::TemplateRequest;

    use super::*;

    fn prompt(content: Json, rules: &MediaRules) -> Result<MediaPrompt, String> {
        let (tokenizer, template) = (Tokenizer::builtin(), ChatTemplate::builtin());
        let messages: Vec<Value> =
            serde_json::from_value(json!([{"role": "user", "content": content}])).expect("messages");
        let (messages, media) = ChatMedia::take(&messages, Some(&template), rules).map_err(|error| error.message)?;
        let request = TemplateRequest {
            messages: messages.iter().cloned().collect(),
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: std::collections::BTreeMap::default(),
            now_s: None,
        };
        let text = template.render_chat(&request).expect("it renders");
        media.prompt(&text, &tokenizer, false).map_err(|error| error.message)
    }

    #[test]
    fn placeholders_stand_where_media_do() {
        let rules = MediaRules { image_tokens: Some(3), ..MediaRules::default() };
        let image = |name: &str| json!({"type": "image_url", "image_url": {"url": format!("http://a/{name}")}});
        let text = |text: &str| json!({"type": "text", "text": text});
        let (plain, none) = prompt(json!("ab"), &rules).expect("a prompt");
        assert_eq!(none, None);
        let (tokens, features) = prompt(json!([image("1"), text("ab"), image("2")]), &rules).expect("a prompt");
        let features = features.expect("there are two");
        let id = Tokenizer::builtin().token_id("<|image|>").expect("it has one");
        for feature in &features {
            let start = feature.mm_position.offset as usize;
            assert_eq!(tokens[start..start + 3], [id; 3]);
        }
        assert_eq!(tokens.iter().filter(|token| **token == id).count(), 6);
        assert!(tokens.len() > plain.len() && features[0].identifier != features[1].identifier);
        let text = Tokenizer::builtin().decode(&tokens, true);
        assert!(!text.contains('\u{e000}') && !text.contains(MARK_END), "{text}");
    }

    #[test]
    fn a_prompt_may_have_so_many() {
        let rules = MediaRules { limits: "image=1".parse().expect("a limit"), ..MediaRules::default() };
        let image = json!({"type": "image_url", "image_url": {"url": "http://a/b"}});
        assert!(prompt(json!([image]), &rules).is_ok());
        let refused = prompt(json!([image, image]), &rules);
        assert_eq!(refused, Err("At most 1 image(s) may be provided in one prompt.".to_owned()));
    }

    #[test]
    fn what_is_cut_off_takes_its_media_with_it() {
        let feature = |offset, length| MmFeature {
            mm_position: PlaceholderRange { offset, length, is_embed: None },
            ..MmFeature::default()
        };
        let places = |removed| {
            let features = shifted(Some(vec![feature(2, 4), feature(10, 2)]), removed).unwrap_or_default();
            features.iter().map(|one| (one.mm_position.offset, one.mm_position.length)).collect::<Vec<_>>()
        };
        assert_eq!(places(0), [(2, 4), (10, 2)]);
        assert_eq!(places(4), [(0, 2), (6, 2)]);
        assert_eq!(places(11), [(0, 1)]);
        assert_eq!(places(12), []);
    }
}
