//! Images, audio and video in chats. Their contents are not interpreted. They count as placeholder tokens and are
//! identified by a hash of their content, so that the prefix cache can tell them apart.

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
