//! Chats, in vLLM's form and in those of other APIs.

mod dialects;
mod multimodal;
mod reasoning;
mod stored;
mod structured;
mod tools;
