//! The number of placeholder tokens of media, and the maximum number of media in a prompt.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::Deserialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Modality {
    Image,
    Audio,
    Video,
}

impl Modality {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Video => "video",
        }
    }

    /// Names of the placeholder token, the most common first.
    pub(super) fn placeholders(self) -> &'static [&'static str] {
        match self {
            Self::Image => {
                &["<|image_pad|>", "<|image|>", "<image_soft_token>", "<IMG_CONTEXT>", "[IMG]", "<|patch|>", "<image>"]
            }
            Self::Audio => &["<|audio_pad|>", "<|audio|>", "<|AUDIO|>", "<audio_soft_token>", "[AUDIO]", "<audio>"],
            Self::Video => &["<|video_pad|>", "<|video|>", "<video>"],
        }
    }
}

/// Rules for counting and limiting media.
#[derive(Clone, Debug, Default)]
pub struct MediaRules {
    /// Tokens per image. `None` derives them from its size.
    pub image_tokens: Option<u32>,
    /// Tokens per audio. `None` derives them from its duration.
    pub audio_tokens: Option<u32>,
    /// Tokens per video. `None` means 1024.
    pub video_tokens: Option<u32>,
    /// Limits of the number of media in a prompt.
    pub limits: MediaLimits,
}

/// Tokens of an image whose size is unknown.
const IMAGE_TOKENS: u32 = 256;
const VIDEO_TOKENS: u32 = 1024;
/// One token represents a square of this width in pixels, as in Qwen2.5-VL.
const PIXELS: usize = 28;
/// Minimum and maximum tokens of an image.
const IMAGE_RANGE: (usize, usize) = (4, 16_384);
/// Tokens per second of audio, as in Qwen2-Audio.
const AUDIO_TOKENS_PER_S: f64 = 25.0;
/// Assumed duration of audio whose duration is unknown, in seconds.
const AUDIO_S: f64 = 10.0;

impl MediaRules {
    /// Tokens of an image of this size in pixels.
    pub(super) fn image(&self, size: Option<(usize, usize)>) -> u32 {
        self.image_tokens.unwrap_or_else(|| match size {
            Some((width, height)) => {
                let tokens = width.div_ceil(PIXELS).saturating_mul(height.div_ceil(PIXELS));
                tokens.clamp(IMAGE_RANGE.0, IMAGE_RANGE.1) as u32
            }
            None => IMAGE_TOKENS,
        })
    }

    /// Tokens of audio of this duration.
    pub(super) fn audio(&self, seconds: Option<f64>) -> u32 {
        let by_duration = || (seconds.unwrap_or(AUDIO_S) * AUDIO_TOKENS_PER_S).ceil().clamp(1.0, 1e9) as u32;
        self.audio_tokens.unwrap_or_else(by_duration)
    }

    pub(super) fn video(&self) -> u32 {
        self.video_tokens.unwrap_or(VIDEO_TOKENS)
    }
}

/// The maximum number of media in a prompt, by modality. Modalities without an entry are not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaLimits(BTreeMap<Modality, usize>);

impl MediaLimits {
    pub(super) fn of(&self, modality: Modality) -> Option<usize> {
        self.0.get(&modality).copied()
    }
}

/// A limit in one of vLLM's formats.
#[derive(Deserialize)]
#[serde(untagged)]
enum Limit {
    Count(usize),
    Options { count: Option<usize> },
}

impl FromStr for MediaLimits {
    type Err = String;

    /// Parses `{"image": 2, "video": {"count": 1}}`, or the older format `image=2,video=1`.
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = |_| "expected JSON such as {\"image\": 2, \"video\": 0}".to_owned();
        if !text.trim_start().starts_with('{') {
            let pair = |pair: &str| {
                let (name, count) = pair.split_once('=').ok_or_else(|| expected(()))?;
                let name = serde_json::from_value(name.trim().into()).map_err(|_| expected(()))?;
                Ok((name, count.trim().parse().map_err(|_| expected(()))?))
            };
            return text.split(',').map(pair).collect::<Result<_, String>>().map(Self);
        }
        let limits: BTreeMap<Modality, Limit> = serde_json::from_str(text).map_err(|_| expected(()))?;
        let count = |(name, limit)| match limit {
            Limit::Count(count) => Some((name, count)),
            Limit::Options { count } => count.map(|count| (name, count)),
        };
        Ok(Self(limits.into_iter().filter_map(count).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_take_tokens_by_their_size() {
        let rules = MediaRules::default();
        assert_eq!((rules.image(Some((280, 56))), rules.image(Some((281, 57)))), (20, 33));
        assert_eq!((rules.image(Some((1, 1))), rules.image(Some((1 << 20, 1 << 20)))), (4, 16_384));
        assert_eq!((rules.image(None), rules.audio(None), rules.video()), (256, 250, 1024));
        assert_eq!((rules.audio(Some(2.0)), rules.audio(Some(0.0))), (50, 1));
        let fixed = MediaRules { image_tokens: Some(7), audio_tokens: Some(8), video_tokens: Some(9), ..rules };
        assert_eq!((fixed.image(Some((999, 999))), fixed.audio(Some(9.0)), fixed.video()), (7, 8, 9));
    }

    #[test]
    fn limits_have_the_forms_of_vllm() {
        let limits: MediaLimits = r#"{"image": 2, "video": {"count": 0}, "audio": {}}"#.parse().expect("valid");
        let of = |limits: &MediaLimits| [Modality::Image, Modality::Audio, Modality::Video].map(|one| limits.of(one));
        assert_eq!(of(&limits), [Some(2), None, Some(0)]);
        assert_eq!(of(&"image=3, audio=1".parse().expect("valid")), [Some(3), Some(1), None]);
        for text in ["", "image", "smell=1", "{\"image\": -1}", "{"] {
            assert!(text.parse::<MediaLimits>().is_err(), "{text}");
        }
    }
}
