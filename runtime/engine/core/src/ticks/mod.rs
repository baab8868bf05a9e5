//! An engine that schedules by ticks: stable priority admission with whole reservations,
//! and decode in turns.
//!
//! Owns its requests, its page count and its scheduler. The rules are those that
//! [runtime-lab](https://github.com/WaffleBits/deterministic-inference-scheduler) publishes of
//! its scheduler:
//!
//! * A request reserves the pages of its prompt and its whole output when it is admitted, and
//!   returns them when it ends. Nothing is preempted.
//! * Each tick tries all waiting requests in order of priority, arrival and submission. One
//!   that does not fit is stepped over, so that a smaller one may go before it.
//! * Prompts are not split. Those of one tick take no more than a budget of tokens.
//! * After admission the first requests in turn get one token each, up to a width, and go
//!   behind all others.
//!
//! A step is a tick; its duration is the latency model's.

mod config;
mod engine;
mod schedule;
mod serving;
mod update;

pub use config::{OPTIONS, TickConfig, TickConfigInput, option};
pub use engine::TickEngine;
