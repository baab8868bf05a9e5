//! Images, audio and video in chats. Their contents are not read: they are accounted as
//! placeholder tokens, and named by their content, so that the prefix cache tells them
//! apart.

mod medium;
mod prompt;
mod rules;
mod size;

pub(crate) use prompt::{ChatMedia, MediaPrompt, shifted};
pub use rules::{MediaLimits, MediaRules};
