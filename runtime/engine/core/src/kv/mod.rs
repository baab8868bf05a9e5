//! KV cache: block hashes, the pool on the device, its groups of layers, the tiers below it, and events.

pub mod event;
pub(crate) mod forecast;
pub(crate) mod groups;
pub mod hash;
pub mod pool;
pub(crate) mod tiers;
