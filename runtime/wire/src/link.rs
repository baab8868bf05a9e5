//! The sockets of both ends.

mod engine;
mod error;
mod frontend;
mod handshake;
mod inputs;
mod kv_publisher;
mod kv_subscriber;
mod notices;
mod relay;
mod relay_pipe;
mod relay_pipes;
mod stream;
mod transport;
mod wait;
mod zmtp;

pub use engine::{EngineGreeting, EngineLink, EngineLinkConfig, EngineOutputs};
pub use error::LinkError;
pub use frontend::{FrontendLink, FrontendMessage};
pub use handshake::{DataAddress, FrontendConfig, FrontendListener};
pub use inputs::{EngineInputs, Received, Source};
pub use kv_publisher::KvEventPublisher;
pub use kv_subscriber::KvEventSubscriber;
pub use notices::{NoticeBoard, NoticeSender};
pub use relay::{Passed, Relay, RelayConfig, RelayNotice, RelayPath, RelayTap};
pub use transport::Transport;
pub use wait::{Waiter, Waker, monotonic_ns};
