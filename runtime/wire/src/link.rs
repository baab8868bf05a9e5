//! The sockets of both ends.

mod address;
mod engine;
mod error;
mod frontend;
mod handshake;
mod inputs;
mod kv_publisher;
mod kv_subscriber;
mod local;
mod notices;
mod relay;
mod relay_pipe;
mod relay_pipes;
mod relay_tap;
mod reminders;
mod stream;
mod transport;
mod wait;
mod waker;
mod zmtp;

pub use address::{check_own_address, check_peer_address, is_same_place, unresolved_host};
pub use engine::{EngineGreeting, EngineLink, EngineLinkConfig, EngineOutputs, WaitHook, WaitsFor};
pub use error::LinkError;
pub use frontend::{FrontendLink, FrontendMessage};
pub use handshake::{DataAddress, FrontendConfig, FrontendListener};
pub use inputs::{EngineInputs, Received, Source};
pub use kv_publisher::KvEventPublisher;
pub use kv_subscriber::KvEventSubscriber;
pub use local::{LocalEvent, LocalLink, LocalLinkError, LocalSink, MessageDamage, WakeUp};
pub use notices::{MetadataRequest, NoticeBoard, NoticeSender};
pub use relay::{Relay, RelayConfig};
pub use relay_tap::{Passed, RelayNotice, RelayPath, RelayTap};
pub use reminders::Reminders;
pub use transport::Transport;
pub use wait::{Waiter, monotonic_ns};
pub use waker::Waker;
