//! Where a scenario's run happens, other than in virtual time: live engines of this process,
//! the same behind `vcr serve`'s server or behind vLLM's own frontend, any server of OpenAI's
//! API; and the client that measures.
//!
//! `drive/` sends the requests of a run when they are due and keeps its account; it knows no
//! target. `client/` is a client of servers, `engines/` has the engines of a run's cluster.
//! [`Targets`] joins them to one target each.

mod client;
mod drive;
mod engines;
mod facts;
mod targets;

pub use targets::Targets;
