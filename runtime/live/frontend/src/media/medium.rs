//! An image, audio or video in a chat.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

use super::rules::{MediaRules, Modality};
use super::size::{audio_seconds, image_pixels};
use crate::server::error::ApiError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Medium {
    pub(super) modality: Modality,
    /// The number of placeholder tokens.
    pub(super) tokens: u32,
    /// A hash of the content, or of the URL.
    pub(super) hash: String,
    /// The name in the prefix cache, if the client gave one.
    pub(super) uuid: Option<String>,
}

/// Types of parts that are text for a template.
const TEXTS: [&str; 6] = ["text", "input_text", "output_text", "refusal", "thinking", "tool_reference"];
/// Types of media parts, each with the field of its content.
const MEDIA: [(&str, &str, Modality); 9] = [
    ("image_url", "image_url", Modality::Image),
    ("input_image", "image_url", Modality::Image),
    ("image_embeds", "image_embeds", Modality::Image),
    ("input_audio", "input_audio", Modality::Audio),
    ("audio_url", "audio_url", Modality::Audio),
    ("audio_embeds", "audio_embeds", Modality::Audio),
    ("video_url", "video_url", Modality::Video),
    ("input_video", "video_url", Modality::Video),
    ("video_embeds", "video_embeds", Modality::Video),
];

/// Whether parts of this type are text, whatever other fields they have.
pub(super) fn is_text_type(kind: &str) -> bool {
    TEXTS.contains(&kind)
}

impl Medium {
    /// Reads the medium of a content part. None if the part is text.
    pub(super) fn read(part: &Value, rules: &MediaRules) -> Result<Option<Self>, ApiError> {
        let has = |name: &str| part.get(name).is_some();
        let Some(kind) = part["type"].as_str() else {
            // If a part has no type, its fields decide.
            let found = MEDIA.iter().find(|(_, field, _)| has(field));
            return found.map(|(_, field, modality)| Self::of(part, field, *modality, rules)).transpose();
        };
        if is_text_type(kind) {
            return Ok(None);
        }
        let Some((_, field, modality)) = MEDIA.iter().find(|(name, ..)| *name == kind) else {
            let mut supported: Vec<&str> = TEXTS.into_iter().chain(MEDIA.map(|(name, ..)| name)).collect();
            supported.sort_unstable();
            let supported = supported.join(", ");
            let message = format!("Unsupported chat content part type: '{kind}'. Supported types: {supported}.");
            return Err(ApiError::invalid_param("type", message));
        };
        Self::of(part, field, *modality, rules).map(Some)
    }

    fn of(part: &Value, field: &str, modality: Modality, rules: &MediaRules) -> Result<Self, ApiError> {
        let uuid = part["uuid"].as_str().map(str::to_owned);
        let content = &part[field];
        // Inline audio has its data and format in the message.
        let text = content.as_str().or_else(|| content["url"].as_str());
        let inline = content["data"].as_str();
        if let Some(format) = content["format"].as_str().filter(|_| inline.is_some())
            && !["wav", "mp3"].iter().any(|known| known.eq_ignore_ascii_case(format))
        {
            return Err(refused(&format!("unsupported input_audio format `{format}`")));
        }
        let source = match (inline, text, content) {
            (Some(data), ..) => Source::Data(data),
            (_, Some(url), _) => Source::of_url(url)?,
            (_, _, Value::Object(_) | Value::Array(_)) => Source::PreRouted(content.to_string()),
            // A medium that the client sent before is referenced by its name.
            _ if uuid.is_some() => Source::PreRouted(String::new()),
            _ => return Err(refused(&format!("missing `{field}` in a content part"))),
        };
        let tokens = source.tokens(modality, rules).ok_or_else(|| refused(&format!("invalid base64 in `{field}`")))?;
        let hash = source.hash(modality);
        Ok(Self { modality, tokens, hash, uuid })
    }
}

fn refused(problem: &str) -> ApiError {
    ApiError::invalid(format!("multimodal preprocessing error: {problem}"))
}

enum Source<'a> {
    /// In the message, as base64.
    Data(&'a str),
    /// Elsewhere: a URL or another description.
    PreRouted(String),
}

/// Length of the base64 that is decoded for a file's header. Metadata before an image's size can take about 64 kB.
const HEAD_CHARS: usize = 400_000;

/// The number of bytes that the base64 text encodes.
fn decoded_len(data: &str) -> usize {
    data.trim_end_matches('=').len() * 3 / 4
}

impl<'a> Source<'a> {
    fn of_url(url: &'a str) -> Result<Self, ApiError> {
        let Some(rest) = url.strip_prefix("data:") else {
            return match url.split_once("://") {
                Some(("http" | "https" | "file" | "s3" | "gs", _)) => Ok(Self::PreRouted(url.to_owned())),
                // Embeddings are plain base64.
                None => Ok(Self::Data(url)),
                Some((scheme, _)) => {
                    Err(refused(&format!("invalid URL scheme `{scheme}`: expected http, https, data, file, s3 or gs")))
                }
            };
        };
        match rest.split_once(',') {
            Some((head, data)) if head.ends_with("base64") => Ok(Self::Data(data)),
            _ => Err(refused("only base64 data URLs are supported")),
        }
    }

    /// The number of placeholder tokens. None if the data is not base64.
    fn tokens(&self, modality: Modality, rules: &MediaRules) -> Option<u32> {
        let Self::Data(data) = self else {
            return Some(match modality {
                Modality::Image => rules.image(None),
                Modality::Audio => rules.audio(None),
                Modality::Video => rules.video(),
            });
        };
        let chars = data.len().min(HEAD_CHARS);
        let chars = if chars < data.len() { chars / 4 * 4 } else { chars };
        let head = STANDARD.decode(data.as_bytes().get(..chars)?).ok()?;
        Some(match modality {
            Modality::Image => rules.image(image_pixels(&head)),
            Modality::Audio => rules.audio(Some(audio_seconds(&head, decoded_len(data)))),
            Modality::Video => rules.video(),
        })
    }

    fn hash(&self, modality: Modality) -> String {
        let content = match self {
            Self::Data(data) => data,
            Self::PreRouted(name) => name.as_str(),
        };
        format!("{:032x}", xxh3_128(content.as_bytes()) ^ (modality as u128 + 1))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(part: Value) -> Result<Option<Medium>, String> {
        Medium::read(&part, &MediaRules::default()).map_err(|error| error.message)
    }

    #[test]
    fn parts_are_told_apart() {
        for text in [json!({"type": "text", "text": "a"}), json!({"text": "a"}), json!("a")] {
            assert_eq!(read(text), Ok(None));
        }
        let tokens = |part| read(part).map(|medium| medium.map(|medium| (medium.modality.name(), medium.tokens)));
        let url = "https://example.org/cat.png";
        assert_eq!(tokens(json!({"type": "image_url", "image_url": {"url": url}})), Ok(Some(("image", 256))));
        assert_eq!(tokens(json!({"image_url": url})), Ok(Some(("image", 256))));
        assert_eq!(tokens(json!({"type": "video_url", "video_url": {"url": url}})), Ok(Some(("video", 1024))));
        let data = STANDARD.encode(vec![0; 32_000]);
        let audio = json!({"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}});
        assert_eq!(tokens(audio), Ok(Some(("audio", 50))));
        assert!(read(json!({"type": "smell"})).is_err_and(|message| message.contains("content part type: 'smell'")));
    }

    #[test]
    fn contents_name_media_and_bad_ones_are_refused() {
        let image = |url: &str| read(json!({"type": "image_url", "image_url": {"url": url}}));
        let hash = |url: &str| image(url).map(|medium| medium.map(|medium| medium.hash));
        assert_eq!(hash("data:image/png;base64,AAAA"), hash("data:image/jpeg;base64,AAAA"));
        assert_ne!(hash("data:image/png;base64,AAAA"), hash("data:image/png;base64,AAAB"));
        assert_ne!(hash("http://a/1"), hash("http://a/2"));
        for (url, problem) in [
            ("data:image/png;base64,&&", "invalid base64"),
            ("data:image/png,raw", "only base64 data URLs"),
            ("gopher://a/b", "invalid URL scheme `gopher`"),
        ] {
            assert!(image(url).is_err_and(|message| message.contains(problem)), "{url}");
        }
        assert!(read(json!({"type": "image_url"})).is_err_and(|message| message.contains("missing `image_url`")));
        let named = read(json!({"type": "image_url", "image_url": null, "uuid": "cat"}));
        assert!(named.is_ok_and(|medium| medium.is_some_and(|medium| medium.uuid.as_deref() == Some("cat"))));
    }
}
