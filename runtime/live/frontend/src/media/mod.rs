//! Images, audio and video in chats. Their contents are not read: they are accounted as
//! placeholder tokens, and named by their content, so that the prefix cache tells them
//! apart.

mod encoder;
mod images;
mod medium;
mod prompt;
mod rules;
mod size;

pub use encoder::{EncoderAddress, EncoderOnly};
pub use images::ImageOptions;
pub(crate) use images::{IMAGE_URL, Images};
pub(crate) use prompt::{ChatMedia, MediaPrompt, shifted};
pub use rules::{MediaLimits, MediaRules};
