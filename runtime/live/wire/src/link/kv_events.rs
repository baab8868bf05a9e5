//! The sockets of KV events: publishers and subscribers.

pub(super) mod publisher;
pub(super) mod subscriber;
