//! Chats, in vLLM's form and in other APIs' forms.

mod dialects;
mod multimodal;
mod reasoning;
mod stored;
mod structured;
mod tools;
