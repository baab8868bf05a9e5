//! The live driver: engines in real time, behind real frontends of vLLM.
//!
//! Owns clocks, threads and what frontends say of requests; decides nothing
//! about scheduling, which is the engine core's, and knows no bytes of the
//! protocol, which is `vcr-wire`'s. Each engine is one thread, so several
//! engines of a process share nothing that they would wait for, unless a router
//! gives requests of one to another (`switchboard.rs`).
//!
//! ```no_run
//! # fn config() -> vcr_live::LiveConfig { unimplemented!() }
//! let engines = vcr_live::LiveEngines::start(config())?;
//! let handle = engines.handle();
//! std::thread::spawn(move || handle.shut_down());
//! engines.wait()?;
//! # Ok::<(), vcr_live::LiveError>(())
//! ```

mod adapters;
mod admit;
mod answer;
mod config;
mod engines;
mod error;
mod faults;
mod handle;
mod incoming;
mod injector;
mod json;
mod kv_events;
mod line;
mod logprobs;
mod outputs;
mod pause;
mod player;
mod rank;
mod replay;
mod requests;
mod routed;
mod server;
mod show;
mod shutdown;
mod stats;
mod step;
mod switchboard;
mod token_list;
mod tokens;
mod transfer;
mod utilities;
mod waves;

pub use config::{
    Identity, InjectorFactory, KvEventSettings, LatencyFactory, Limits, LiveConfig, PolicyFactory, RouterFactory,
    StatsSettings, TokenChoice, TokenSettings, TokenSourceFactory, TransferSettings,
};
pub use engines::LiveEngines;
pub use error::LiveError;
pub use faults::{FaultKind, FaultRule, FaultRuleError, RequestMatch};
pub use handle::{Command, Counters, EngineState, EnginesHandle, Snapshot};
pub use replay::ReplaySettings;
pub use token_list::{TokenList, TokenListError};
pub use vcr_core::Seat;
