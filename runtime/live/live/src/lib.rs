//! The live driver: runs engines in real time behind real vLLM frontends.
//!
//! It owns clocks, threads and the state of requests. The engine core decides the schedule, and `vcr-wire` encodes
//! the protocol. Each engine is one thread. The engines of a process share nothing that they would wait for, unless
//! a router moves requests between them (`routing/`).
//!
//! From the outside in: `process/` starts the threads. `server.rs` is the loop of one engine. `intake/` and
//! `admin/` handle messages and calls. They change the engine through `serving.rs`, which combines the owners of
//! its state: `stepping/` with the engine core, `playback/`, `egress/`, `kv_transfer/`, `routing/` and `faults/`.
//!
//! ```no_run
//! # fn config() -> vcr_live::LiveConfig { unimplemented!() }
//! let engines = vcr_live::LiveEngines::start(config())?;
//! let handle = engines.handle();
//! std::thread::spawn(move || handle.shut_down());
//! engines.wait()?;
//! # Ok::<(), vcr_live::LiveError>(())
//! ```

mod admin;
mod answers;
mod config;
mod context;
pub mod control;
mod counters;
mod egress;
mod error;
mod faults;
mod handle;
mod intake;
mod kv_transfer;
mod lifecycle;
mod playback;
mod process;
mod requests;
mod routing;
mod server;
mod serving;
mod stepping;
mod token_list;
mod tokens;

pub use admin::WEB_PAGE_HEADERS;
pub use config::{
    Identity, InjectorFactory, KvEventSettings, LatencyFactory, Limits, LiveConfig, Placement, PlacementObserver,
    PolicyFactory, RouterFactory, StatsSettings, TokenChoice, TokenFactory, TokenSettings, TransferSettings,
};
pub use counters::{CountUnit, CounterInfo, Counters};
pub use error::LiveError;
pub use faults::rule::{FaultKind, FaultRule, RequestMatch};
pub use handle::{Command, EngineState, EnginesHandle, PlaneTotals, Snapshot};
pub use kv_transfer::SharedLink;
pub use kv_transfer::peers::{KvPeer, KvPeerError};
pub use kv_transfer::settings::{
    EndedTransfer, LoadFailurePolicy, MeetingSettings, PdRole, PlaneSettings, RoomKeys, TransferFault,
    TransferObserver, TransferTime,
};
pub use playback::capture::PlaybackSettings;
pub use process::engines::LiveEngines;
pub use process::time_slice::shorten_time_slice;
pub use stepping::output::finish_reason;
pub use stepping::watch::{Sees, StepObserver, Submitted};
pub use token_list::{PromptDigest, TokenList, TokenListError, prompt_digest};
pub use vcr_base::units::rule::RuleError;
pub use vcr_core::PluginContext;
pub use vcr_transfer::PeerStatistics as PeerTotals;
