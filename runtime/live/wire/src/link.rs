//! The sockets of engines and frontends.

mod address;
mod engine;
mod error;
mod frontend;
mod handshake;
mod inputs;
mod kv_events;
mod local;
mod notices;
mod relay;
mod system;
mod transport;
mod wait;

pub use address::{check_own_address, check_peer_address, is_same_place, unresolved_host};
pub use engine::{EngineGreeting, EngineLink, EngineLinkConfig, EngineOutputs, WaitHook, WaitsFor};
pub use error::LinkError;
pub use frontend::{FrontendLink, FrontendMessage};
pub use handshake::{DataAddress, FrontendConfig, FrontendListener};
pub use inputs::{EngineInputs, Received, Source};
pub use kv_events::publisher::KvEventPublisher;
pub use kv_events::subscriber::KvEventSubscriber;
pub use local::{LocalEvent, LocalLink, LocalLinkError, LocalSink, MessageDamage, WakeUp};
pub use notices::{MetadataRequest, NoticeBoard, NoticeSender};
pub use relay::tap::{Passed, RelayNotice, RelayPath, RelayTap};
pub use relay::{Relay, RelayConfig};
pub use system::Timer;
pub use transport::Transport;
pub use wait::Waiter;
pub use wait::reminders::Reminders;
pub use wait::waker::Waker;

use rustix::time::{ClockId, clock_gettime};

/// The system's monotonic clock in nanoseconds, which vLLM's timestamps use.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
