//! The sockets of KV events: a publisher and its subscribers.

pub(super) mod publisher;
pub(super) mod subscriber;
