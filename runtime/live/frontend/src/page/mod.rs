//! The page at `/_vcr/`: a server's requests and answers, the state of its engines, and controls.
//!
//! A [`Watch`] keeps the latest exchanges of clients, within limits of number and memory. It sees each beside its way:
//! bodies are seen in `around`, engines tell their part by [`WatchedEngines`]. [`EngineWatch`] keeps the last minutes
//! of engines. A [`Page`] serves both as JSON, and the page that draws them; changes go to the routes of the control
//! plane and of the server, once `guard` has let them in.

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
