//! Targets: places to run a scenario other than virtual time. A run can use live engines in this process, with or
//! without a server or vLLM's own frontend before them, or any server with OpenAI's API.
//!
//! `drive/` sends the requests of a run when they are due and measures; it knows no target. `client/` is the client
//! of servers, and `engines/` contains live engines. [`Targets`] combines them.

mod client;
mod drive;
mod engines;
mod facts;
mod targets;

pub use targets::Targets;
