//! An SGLang-style engine: a radix cache, passes that prefill first, reserves
//! that are estimated, and retraction where the estimate was wrong.
//!
//! Owns its requests, its KV pages and its scheduler, as [`Engine`] does by
//! vLLM's rules, and returns the same plans. Pages are counted and not numbered: shared ones
//! are in the radix tree, others belong to one request.
//! The rules are those of Dynamo's mocker, whose numbers it gives under either
//! [`PassOrder`], with three differences. A prompt that is computed in chunks
//! is the same request all along, so its own chunks are not reuse (1.4 counts
//! them as such). What can never fit is refused by [`ServingEngine::check`]
//! instead of waiting for ever. And where nothing else could go on, a request
//! that was retracted is admitted without a reserve for its output, and of
//! prompts that have been begun the first one stays.
//!
//! [`Engine`]: crate::Engine
//! [`ServingEngine::check`]: crate::ServingEngine::check

mod admit;
mod ahead;
mod config;
mod decode;
mod engine;
mod finish;
mod interval;
mod options;
mod pages;
mod queues;
mod reserve;
mod serving;
mod update;

pub use config::{PassOrder, PrefixLookup, Retraction, SchedulePolicy, SglangConfig, SglangConfigInput};
pub use engine::SglangEngine;
pub use options::{OPTIONS, derived_settings, option};
