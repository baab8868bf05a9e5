//! HTTP in front of any server: a reverse proxy that records, and a player that answers from recordings.
//!
//! A [`Proxy`] forwards each request to an [`Upstream`], and each part of the response as it arrives. When the
//! exchange ends, a copy goes to a recorder of [`vcr_record::http`]. A [`Player`] runs before the routes of a
//! server and answers from the recordings of [`vcr_record::playback::http`].
//!
//! Only a [`Pace`] knows engines. It delays recorded responses until the engines have generated their tokens.

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
