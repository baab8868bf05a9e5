//! KV that comes from elsewhere: from other engines, from the tiers below the device, and from where a connector finds it.

mod connector;
mod offloading;
mod remote_kv;
mod tier_load;

pub use connector::KvTransferReport;
pub(crate) use connector::{ConnectorState, External};
