//! KV cache: block hashes, the pool on the device, the tiers below it, and events.

pub mod event;
pub mod hash;
pub mod pool;
pub(crate) mod tiers;
