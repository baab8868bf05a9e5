//! HTTP in front of any server: a reverse proxy that records, and answers from its recordings.
//!
//! A [`Proxy`] forwards every request to an [`Upstream`] and every part of the answer back as it
//! comes. A copy goes to a recorder of [`vcr_record::http`] when the exchange ends. A [`Player`]
//! precedes the routes of a server and answers from the recordings of
//! [`vcr_record::playback::http`].
//!
//! Only a [`Pace`] knows engines: it has recorded answers wait for them.

mod address;
mod connection;
mod exchange;
mod head;
mod journal;
mod pace;
mod player;
mod reverse;
mod upstream;

pub use address::{Address, AddressError};
pub use journal::Journal;
pub use pace::Pace;
pub use player::{Misses, Player, Times};
pub use reverse::{Proxy, ProxyOptions};
pub use upstream::{Upstream, UpstreamError};
