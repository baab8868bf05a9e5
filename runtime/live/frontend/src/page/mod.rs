//! The page at `/_vcr/`: a server's requests and responses, the state of its engines, and controls.
//!
//! A [`Watch`] keeps the latest exchanges, limited in number and memory. It only observes them: `around` observes
//! bodies, and [`WatchedEngines`] the engines. [`EngineWatch`] keeps samples of the engines over the last minutes.
//! A [`Page`] serves both as JSON, and the HTML that draws them. Changes go to the routes of the control plane or
//! the server, after `guard` has admitted them.

mod around;
mod engines;
mod gist;
mod guard;
mod observer;
mod served;
mod steps;
mod view;
mod watch;

pub use engines::EngineWatch;
pub use guard::{Audience, Peer};
pub use observer::WatchedEngines;
pub(crate) use served::{PREFIX, watched};
pub use served::{Page, PageOf, PageRequest};
pub use steps::StepRing;
pub(crate) use view::{headers, pairs};
pub(crate) use watch::current;
pub use watch::{Watch, WatchLimits};
